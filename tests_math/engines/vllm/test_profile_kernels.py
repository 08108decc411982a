"""What kernels keep of quantized weights: against vLLM's own preparation, run by tools/loaded_weights.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.data import data_path
from membudget.engines.vllm.profile import ProfileSettings
from membudget.engines.vllm.profile.kernels import Linear, held, kernels, kind
from membudget.engines.vllm.profile.loaded_weights import ranks
from membudget.engines.vllm.profile.non_torch import non_torch
from membudget.formats import get
from membudget.machines import get as machine_named
from membudget.model import Model, build
from membudget.units import GIB

pytestmark = pytest.mark.math

COUNTED: dict[str, Any] = json.loads((Path(data_path("oracle")) / "loaded_weights.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = COUNTED["rows"]
NEWEST = (0, 32, 0)


def _stored(form: str, n: int, k: int) -> tuple[str, Linear]:
    """A layer as its file has it."""
    group, block = COUNTED["group"], COUNTED["block"]
    if form.startswith("w4a16"):
        pieces = {"weight_packed": n * k // 2, "weight_scale": n * (k // group) * 2}
        if form.endswith("asym"):
            pieces["weight_zero_point"] = n // 8 * (k // group) * 4
        return "packed", Linear(n, k, pieces, k // group)
    if form == "nvfp4":
        return "nvfp4", Linear(n, k, {"weight": n * k // 2, "weight_scale": n * k // 16}, k // 16)
    if form == "fp8-block":
        groups = -(-k // block)
        return "fp8", Linear(n, k, {"weight": n * k, "weight_scale_inv": -(-n // block) * groups * 4}, groups)
    return "fp8", Linear(n, k, {"weight": n * k, "weight_scale": 4 if form == "fp8" else 2 * n}, 1)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "experts" not in row["format"]], ids=lambda row: f"{row['kernel']}-{row['format']}"
)
def test_a_layer(row: dict[str, Any]) -> None:
    """Every kernel, for shapes that fit its tiles and shapes that do not."""
    what, layer = _stored(row["format"], row["n"], row["k"])
    assert sorted(held(what, row["kernel"], layer, NEWEST).values()) == sorted(row["bytes"].values())


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "experts" in row["format"]], ids=lambda row: f"{row['format']}-{row['n']}"
)
def test_experts(row: dict[str, Any]) -> None:
    """Marlin pads each expert's gate and up, and down's inputs."""
    n, k, count = row["n"], row["k"], COUNTED["experts"]
    form = row["format"].partition(" ")[0]
    what, up = _stored(form, n, k)
    _, down = _stored(form, k, n)
    first = held(what, "marlin", up._replace(expert="up"), NEWEST)
    last = held(what, "marlin", down._replace(expert="down"), NEWEST)
    assert 2 * count * first["weight"] == row["bytes"]["w13_weight"]
    assert 2 * count * first["scale"] == row["bytes"]["w13_scale"]
    assert count * last["weight"] == row["bytes"]["w2_weight"]
    assert count * last["scale"] == row["bytes"]["w2_scale"]


def test_before_0_24_nothing_is_padded() -> None:
    """marlin_padded_nk is in 0.24.0's marlin_utils.py and not in 0.23.0's."""
    what, layer = _stored("fp8-channel", 160, 384)
    assert held(what, "marlin", layer, (0, 23, 0))["weight"] == 160 * 384
    assert held(what, "marlin", layer, (0, 24, 0))["weight"] > 160 * 384


@pytest.mark.parametrize(
    ("what", "machine", "told", "expected"),
    [
        ("fp8", "a100-80gb", {}, ("marlin",)),
        ("fp8", "l40s", {}, ("native",)),
        ("nvfp4", "h100-80gb", {}, ("marlin",)),
        ("nvfp4", "b200", {}, ("native",)),
        ("packed", "h100-80gb", {}, ("machete",)),
        ("packed", "h100-80gb", {"expert": True}, ("marlin",)),
        ("packed", "a100-80gb", {}, ("marlin",)),
    ],
)
def test_kernels(what: str, machine: str, told: dict[str, bool], expected: tuple[str, ...]) -> None:
    """kernels/linear: the first of the list that supports the device."""
    assert kernels(what, machine_named(machine), NEWEST, **told) == expected
    unknown = replace(machine_named(machine), compute_capability=None)
    assert set(expected) <= set(kernels(what, unknown, NEWEST, **told))


def test_awq_takes_marlin_on_hopper_before_0_24() -> None:
    """awq_marlin.py repacks for Marlin without asking; from 0.24 on the kernel is chosen (auto_awq.py)."""
    assert kernels("packed", machine_named("h100-80gb"), (0, 23, 0), awq=True) == ("marlin",)
    assert kernels("packed", machine_named("h100-80gb"), (0, 24, 0), awq=True) == ("machete",)


def test_kind() -> None:
    """By what is stored: mxfp8, mxfp4, gguf and 16 bits are kept as they are."""
    assert kind({"weight": "F8_E4M3", "weight_scale": "U8"}) == kind({"weight": "BF16"}) == ""
    assert kind({"weight_packed": "U8", "weight_scale": "U8"}) == ""
    assert kind({"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"}) == "nvfp4"


def _model(name: str) -> Model:
    return build(f"{data_path('models')}/{name}.json")


def test_fp8_blocks_on_a_card_without_fp8() -> None:
    """A scale of 4 B for 128 x 128 weights becomes 128 of 2 B for each 128: 1/64 of the weights more, before the
    allocator's blocks.
    """
    model, form = _model("Qwen--Qwen3-8B"), get("fp8-block")
    sizes = [
        ranks(model, form, machine_named(name), ProfileSettings(), NEWEST)[0].weights.bytes
        for name in ("a100-80gb", "l40s")
    ]
    linear = sum(
        tensor.shape[0] * tensor.shape[1]
        for tensor in model.tensors
        if tensor.role in ("attn", "mlp") and len(tensor.shape) == 2
    )
    assert sizes[0] - sizes[1] == pytest.approx(linear / 64 - linear / 4096, rel=0.2)


def test_a_card_that_is_not_known_has_a_range() -> None:
    """Both kernels' figures are in the range, and the words name them."""
    model, form = _model("Qwen--Qwen3-8B"), get("fp8-block")
    machine = replace(machine_named("l40s"), compute_capability=None)
    found = ranks(model, form, machine, ProfileSettings(), NEWEST)[0].weights
    for name in ("a100-80gb", "l40s"):
        known = ranks(model, form, machine_named(name), ProfileSettings(), NEWEST)[0].weights
        assert found.low <= known.bytes <= found.high
    assert "native" in found.why
    assert "marlin" in found.why


def test_gptq_on_hopper_keeps_its_zero_points() -> None:
    """Llama-3.1-8B w4a16, 0.19.0, H100: "Model loading took 5.38 GiB" (fixtures/logs/available_kv)."""
    settings = ProfileSettings(dtype="float16")
    found = ranks(_model("meta-llama--Llama-3.1-8B"), get("gptq"), machine_named("h100-80gb"), settings, (0, 19, 0))
    assert found[0].weights.bytes / GIB == pytest.approx(5.38, abs=0.006)


def test_hosts_are_in_the_range() -> None:
    """NCCL over a network: more may be kept, and one host's ranks or one rank keep what they kept."""
    machine = machine_named("a100-40gb")
    one, two = (non_torch(machine, 2, 1, (0, 10, 1), nodes) for nodes in (1, 2))
    assert (one.bytes, one.low) == (two.bytes, two.low)
    assert two.high > one.high
    assert non_torch(machine, 1, 1, (0, 10, 1), 2) == non_torch(machine, 1, 1, (0, 10, 1))
