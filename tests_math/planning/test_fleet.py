"""Fleet sizing: published figures, the laws of the bound, tensor parallelism, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from membudget import formats
from membudget.formats import FormatError
from membudget.machines import Machine, get
from membudget.model import Model
from membudget.planning.fleet import (
    BOUND,
    SIZES,
    CacheShape,
    Fleet,
    FleetError,
    FleetLoad,
    TensorParallel,
    for_model,
    for_params,
    parameters,
)
from membudget.planning.fleet_text import as_json, gb, gib, lines, refusal, verdict
from membudget.units import GB, GIB

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
#: A 70B with 80 layers, 64 query heads of 128, and 8 KV heads or one for every query head.
SHAPE: dict[str, Any] = {"layers": 80, "head_dim": 128, "heads": 64, "ctx": 32_768, "users": 100}


def sized(params: Any, format: str = "bf16", **more: Any) -> Fleet:
    """A fleet of the shape and the load that are named together."""
    shape = {name: more.pop(name) for name in ("layers", "kv_heads", "head_dim", "heads") if name in more}
    return for_params(params, CacheShape(**shape), FleetLoad(**more), format)


def seventy(kv_heads: int = 8, dtype: str = "bf16", **more: Any) -> Fleet:
    """70 billion parameters for 100 users at 32,768 tokens, weights and cache in one dtype."""
    return sized(70, kv_heads=kv_heads, format=dtype, kv_cache_dtype=dtype, **(SHAPE | more))


def way(fleet: Fleet, size: int) -> TensorParallel:
    """What is said about one tensor-parallel size."""
    return next(item for item in fleet.tensor_parallel if item.size == size)


@pytest.mark.parametrize(
    ("kv_heads", "dtype", "cache_gib", "total", "h100", "h200", "ratio"),
    [(64, "bf16", 8000, "8,749.40 GB", 110, 63, 1), (8, "bf16", 1000, "1,233.21 GB", 16, 9, 8),
     (8, "fp8", 500, "626.34 GB", 8, 5, 16)],
)  # fmt: skip
def test_published_figures(
    kv_heads: int, dtype: str, cache_gib: int, total: str, h100: int, h200: int, ratio: int
) -> None:
    """A 70B at 32,768 x 100: decimal totals with 70e9 parameters in the cache's dtype, devices of 80 and 141 GB."""
    fleet = seventy(kv_heads, dtype)
    assert fleet.weights == 70 * 10**9 * (2 if dtype == "bf16" else 1)
    assert fleet.kv_cache == cache_gib * GIB
    assert gb(fleet.total) == total
    assert [(count.machine, count.devices) for count in fleet.counts] == [("h100-80gb", h100), ("h200-141gb", h200)]
    assert fleet.mha_bf16 == ratio * fleet.kv_cache
    assert any(f"would take {ratio}x the cache" in line for line in lines(fleet)) == (ratio > 1)


def test_cache_in_both_systems() -> None:
    """1,000 GiB are 1,073.74 GB: both are printed, each with its unit."""
    line = next(line for line in lines(seventy()) if line.startswith("kv_cache"))
    assert "1,073.74 GB = 1,000.00 GiB" in line


def test_reserve_is_the_published_assumption() -> None:
    """4.5 GB + 0.00035 GB a token of prefill, and 3.5 GB for CUDA and NCCL: 19.4688 GB at 32,768 tokens."""
    assert seventy().reserve == 4_500_000_000 + 350_000 * 32_768 + 3_500_000_000 == 19_468_800_000
    assert gb(seventy().reserve) == "19.47 GB"


def test_fits_one_node() -> None:
    """In fp8 the plan is within 8 x H100: 626.34 of 640 GB."""
    fleet = seventy(dtype="fp8")
    assert fleet.node_bytes == 640 * GB
    assert fleet.fits
    assert refusal(fleet) is None
    assert verdict(fleet) == "within one node: 626.34 GB of the 640.00 GB of 8 x h100-80gb"


def test_exceeding_the_node_is_refused_with_both_figures() -> None:
    """A plan that needs more than the node says what it needs and what the node has."""
    fleet = seventy()
    assert not fleet.fits
    assert refusal(fleet) is not None
    assert refusal(fleet).startswith(
        "refused: exceeds the node: 1,233.21 GB are needed and 8 x h100-80gb have 640.00 GB"
    )


def test_unbudgeted_prefill_peak_is_refused() -> None:
    """104 users in fp8 fit without the reserve of 19.47 GB and not with it."""
    fleet = seventy(dtype="fp8", users=104)
    assert fleet.weights + fleet.kv_cache < fleet.node_bytes < fleet.total
    assert refusal(fleet) is not None
    assert "an unbudgeted prefill peak" in refusal(fleet)
    assert "628.35 GB" in refusal(fleet)
    assert "640.00 GB" in refusal(fleet)
    assert "reserve of 19.47 GB" in refusal(fleet)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_max_users_is_the_edge(dtype: str) -> None:
    """As many users as are said to fit do, and one more does not."""
    most = seventy(dtype=dtype).max_users
    assert seventy(dtype=dtype, users=most).fits
    assert not seventy(dtype=dtype, users=most + 1).fits


def test_weights_alone_may_be_too_much() -> None:
    """A model larger than the node leaves no user."""
    fleet = sized(405, kv_heads=8, **SHAPE)
    assert fleet.max_users == 0
    assert "not even one user fits" in str(refusal(fleet))


def test_bound_says_what_it_does_not_prove() -> None:
    """The sentence stands in the text and in the JSON."""
    fleet = seventy()
    assert "an aggregate bound proves no sharding layout" in BOUND
    assert BOUND in lines(fleet)
    assert as_json(fleet)["lower_bound_text"] == BOUND


@pytest.mark.parametrize("field", ["ctx", "users", "layers", "head_dim", "heads", "kv_heads"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_fields_that_are_not_positive(field: str, value: Any) -> None:
    """Zero, negative and other values are errors that name the field (ctx is called seq_len too)."""
    if field == "heads" and value is None:
        return
    with pytest.raises(FleetError, match=rf"{'ctx .seq_len.' if field == 'ctx' else field} is "):
        sized(70, **({"kv_heads": 8} | SHAPE | {field: value}))


def test_more_fields_that_are_refused(model: Get) -> None:
    """Heads that KV heads do not divide, a node without devices, sizes of 0, formats that need a config."""
    with pytest.raises(FleetError, match="heads is 60; allowed is a multiple of kv_heads, 8"):
        seventy(heads=60)
    with pytest.raises(FleetError, match="node's devices is 0"):
        seventy(node=(get("h100"), 0))
    with pytest.raises(FleetError, match="tensor_parallel is 0"):
        seventy(sizes=[0])
    with pytest.raises(FleetError, match=r"q4_k_m.*config"):
        sized(70, kv_heads=8, format="q4_k_m", **SHAPE)
    with pytest.raises(FormatError, match="unknown kv cache dtype"):
        sized(70, kv_heads=8, kv_cache_dtype="fp7", **SHAPE)
    with pytest.raises(FleetError, match="users is 0"):
        for_model(model("meta-llama/Llama-3.1-8B"), formats.get("bf16"), FleetLoad(ctx=8192, users=0))


@pytest.mark.parametrize(
    ("text", "count"),
    [(70, 70 * 10**9), ("70", 70 * 10**9), ("70.6", 70_600_000_000), ("70.553706496", 70_553_706_496),
     ("0.5B", 5 * 10**8), ("1.10", 1_100_000_000), (" 8 B", 8 * 10**9), ("0.000000001", 1), ("007", 7 * 10**9)],
)  # fmt: skip
def test_billions_are_decimal_and_exact(text: str | int, count: int) -> None:
    """A number of billions is read as a decimal, to the parameter."""
    assert parameters(text) == count


@pytest.mark.parametrize("text", ["", "0", "0.0", "-1", "70b70", "7e1", "1,000", "1_0", ".5", "70.", "0.0000000001",
                                  True, "nan", "٧٠", "1" * 16])  # fmt: skip
def test_other_numbers_are_refused(text: Any) -> None:
    """Nothing else is read as a number of billions."""
    with pytest.raises(FleetError, match="params is"):
        parameters(text)


@given(st.integers(1, 10**15 - 1))
def test_billions_round_trip(count: int) -> None:
    """Any whole number of parameters, written in billions, is read back."""
    whole, rest = divmod(count, 10**9)
    text = f"{whole}.{rest:09}"
    assume(len(text.rstrip("0")) <= 16)
    assert parameters(text) == count


@pytest.mark.parametrize(
    ("size", "decimal", "binary"),
    [(0, "0.00 GB", "0.00 GiB"), (10**9, "1.00 GB", "0.93 GiB"), (2**30, "1.07 GB", "1.00 GiB"),
     (1_234_565_000_000, "1,234.57 GB", "1,149.78 GiB"), (-5 * 10**9, "-5.00 GB", "-4.66 GiB")],
)  # fmt: skip
def test_sizes_are_printed_with_their_unit(size: int, decimal: str, binary: str) -> None:
    """GB is decimal, GiB binary, both rounded to hundredths."""
    assert (gb(size), gib(size)) == (decimal, binary)


def test_tensor_parallel_of_seventy() -> None:
    """64 heads split by powers of two; above 8 KV heads, heads are replicated and the cache a device stays as it is."""
    fleet = seventy(sizes=[3, 12])
    assert [item.size for item in fleet.tensor_parallel] == sorted({*SIZES, 3, 12, 9})
    assert [item.size for item in fleet.tensor_parallel if item.divides] == [1, 2, 4, 8, 16, 32]
    eight, sixteen, thirty_two = way(fleet, 8), way(fleet, 16), way(fleet, 32)
    assert eight.kv_cache == sixteen.kv_cache == thirty_two.kv_cache == fleet.kv_cache // 8
    assert (eight.kv_copies, sixteen.kv_copies, thirty_two.kv_copies) == (1, 2, 4)
    assert (eight.weights, sixteen.weights) == (17_500_000_000, 8_750_000_000)
    assert way(fleet, 9).why == "64 attention heads are not divisible by 9"
    assert way(fleet, 9).weights is None
    assert "each of 8 KV heads is held by 2 devices" in sixteen.why


def test_the_bound_is_no_layout() -> None:
    """16 H100 have the bytes that GQA in bf16 needs, yet no device of tensor parallel 16 can hold its part."""
    fleet = seventy()
    assert fleet.counts[0].devices == 16
    device = way(fleet, 16)
    assert device.weights is not None
    assert device.kv_cache is not None
    assert device.weights + device.kv_cache > 80 * GB
    line = next(line for line in lines(fleet) if line.startswith("tensor parallel 16"))
    assert "62.97 GB more than 80.00 GB" in line


@pytest.mark.parametrize(("kv_heads", "size", "divides"), [(10, 2, True), (10, 4, False), (2, 4, True), (3, 2, False),
                                                           (3, 6, True), (1, 8, True)])  # fmt: skip
def test_kv_heads_split_or_replicate(kv_heads: int, size: int, divides: bool) -> None:
    """KV heads must be a multiple of the size, or the size a multiple of the KV heads."""
    fleet = sized(7, **(SHAPE | {"kv_heads": kv_heads, "heads": kv_heads * 24, "sizes": [size]}))
    assert way(fleet, size).divides == divides
    assert ("KV heads are neither" in way(fleet, size).why) != divides


def test_heads_that_are_unknown_are_not_checked() -> None:
    """Without query heads only the KV heads decide, and MHA is no comparison."""
    fleet = seventy(heads=None, sizes=[40])
    assert fleet.mha_bf16 is None
    assert way(fleet, 40).divides


@given(
    layers=st.integers(1, 200), kv_heads=st.integers(1, 128), head_dim=st.integers(1, 512), ctx=st.integers(1, 2**22),
    users=st.integers(1, 10_000), billions=st.integers(1, 2000), dtype=st.sampled_from(["bf16", "fp8"]),
)  # fmt: skip
def test_laws_of_the_bound(
    layers: int, kv_heads: int, head_dim: int, ctx: int, users: int, billions: int, dtype: str
) -> None:
    """Parts sum to the total; the count is the least that has the bytes; caches are additive in users."""
    shape: dict[str, Any] = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "ctx": ctx}
    fleet = sized(billions, users=users, format=dtype, kv_cache_dtype=dtype, **shape)
    assert fleet.total == sum(part.bytes for part in fleet.parts) == fleet.weights + fleet.kv_cache + fleet.reserve
    assert fleet.kv_cache == 2 * layers * kv_heads * head_dim * ctx * users * (2 if dtype == "bf16" else 1)
    for count in fleet.counts:
        assert (count.devices - 1) * count.marketed < fleet.total <= count.devices * count.marketed
    assert fleet.fits == (refusal(fleet) is None) == (fleet.total <= 640 * GB)
    assert fleet.fits == (fleet.max_users >= users)
    more = sized(billions, users=users + 1, format=dtype, kv_cache_dtype=dtype, **shape)
    assert more.kv_cache * users == fleet.kv_cache * (users + 1)
    for item in fleet.tensor_parallel:
        if item.weights is not None and item.kv_cache is not None:
            # All devices together hold everything, and what is replicated once more for each copy.
            assert item.size * item.weights >= fleet.weights
            assert item.size * item.kv_cache == fleet.kv_cache * item.kv_copies


def test_model_and_parameters_agree(model: Get) -> None:
    """Llama-3.1-70B from its config has the cache that its shape gives, and its own exact weights."""
    fleet = for_model(model("meta-llama/Llama-3.1-70B"), formats.get("bf16"), FleetLoad(ctx=32_768, users=100))
    assert fleet.kv_cache == seventy().kv_cache
    assert fleet.weights == 2 * 70_553_706_496
    assert fleet.mha_bf16 == 8 * fleet.kv_cache
    assert [count.devices for count in fleet.counts] == [16, 9]


def test_tensor_parallel_weights_of_a_model(model: Get) -> None:
    """8B: norms stay whole; with 16 devices each keeps a KV head of its own, twice its even share of K and V."""
    fleet = for_model(model("meta-llama/Llama-3.1-8B"), formats.get("bf16"), FleetLoad(ctx=8192, users=1))
    norms = 2 * (32 * 8192 + 4096)
    split = fleet.weights - norms
    assert way(fleet, 1).weights == fleet.weights
    assert way(fleet, 8).weights == norms + split // 8
    # K and V rows of half a head: 32 layers x 4096 x 2 x 128 / 2, in bf16
    assert way(fleet, 16).weights == norms + split // 16 + 2 * 32 * 4096 * 2 * 64
    assert way(fleet, 16).kv_cache == way(fleet, 8).kv_cache == GIB // 8


def test_widths_that_do_not_divide(model: Get) -> None:
    """Qwen2.5-7B has 28 heads: 4 devices split them, 8 do not."""
    fleet = for_model(model("Qwen/Qwen2.5-7B"), formats.get("bf16"), FleetLoad(ctx=8192, users=1))
    assert way(fleet, 4).divides
    assert way(fleet, 8).why == "28 attention heads are not divisible by 8"


def test_mlp_width_that_does_not_divide(model: Get) -> None:
    """Qwen2.5-32B: 40 devices divide its 40 heads and replicate its 8 KV heads, but not its MLP of 27,648."""
    fleet = for_model(model("Qwen/Qwen2.5-32B"), formats.get("bf16"), FleetLoad(ctx=8192, users=1, sizes=[40]))
    assert way(fleet, 40).why == "intermediate_size 27,648 is not divisible by 40"
    assert way(fleet, 8).divides


def test_experts_replicate_kv_heads(model: Get) -> None:
    """Qwen3-30B-A3B has 4 KV heads: on 32 devices each is held by 8."""
    fleet = for_model(model("Qwen/Qwen3-30B-A3B"), formats.get("bf16"), FleetLoad(ctx=8192, users=1))
    assert way(fleet, 32).kv_copies == 8
    assert way(fleet, 32).kv_cache == fleet.kv_cache // 4


def test_other_devices_and_nodes() -> None:
    """Any machine of the table can be counted and be the node; a Spark gives 128 GB less 10 GiB: 1,233.21 / 117.26."""
    fleet = seventy(devices=[get("b200"), get("dgx-spark")], node=(get("b200"), 8))
    assert [(count.machine, count.devices) for count in fleet.counts] == [("b200", 7), ("dgx-spark", 11)]
    assert fleet.node_bytes == 1440 * GB
    assert fleet.fits


def test_json_is_whole_numbers() -> None:
    """The JSON is one document, bytes are integers, and it holds what the text says."""
    fleet = seventy(dtype="fp8", users=104)
    document = json.loads(json.dumps(as_json(fleet), allow_nan=False))
    assert document["total"] == fleet.total == sum(part["bytes"] for part in document["parts"])
    assert document["node"] == {"machine": "h100-80gb", "devices": 8, "bytes": 640 * GB}
    assert (document["fits"], document["max_users"], document["refusal"]) == (False, 102, refusal(fleet))
    assert not [value for value in document.values() if isinstance(value, float)]
    assert {item["size"] for item in document["tensor_parallel"]} >= set(SIZES)


def test_an_exactly_full_node_fits() -> None:
    """A node with as many bytes as are needed holds the plan, and one byte less does not."""
    total = seventy().total
    full = Machine("full", 1, -(-total * 2**30 // 10**9), False, 0)
    short = replace(full, nominal=-(-(total - 1) * 2**30 // 10**9))
    assert (full.marketed, short.marketed) == (total, total - 1)
    assert seventy(node=(full, 1)).fits
    assert not seventy(node=(short, 1)).fits


def test_latent_cache_is_held_whole(model: Get) -> None:
    """DeepSeek-V3's latent cache is not split: every device of 8 keeps all of it."""
    fleet = for_model(model("deepseek-ai/DeepSeek-V3"), formats.get("bf16"), FleetLoad(ctx=8192, users=3))
    assert way(fleet, 8).kv_cache == fleet.kv_cache
    assert way(fleet, 8).kv_copies == 8
    assert "the whole latent cache" in way(fleet, 8).why


def test_recurrent_states_are_split(model: Get) -> None:
    """Qwen3.5-9B: 2 devices share the states of its linear layers as they share the KV heads."""
    hybrid = model("Qwen/Qwen3.5-9B")
    assert any(spec.states for spec in hybrid.caches)
    fleet = for_model(hybrid, formats.get("bf16"), FleetLoad(ctx=8192, users=3))
    half = way(fleet, 2)
    assert half.kv_cache is not None
    assert 2 * half.kv_cache == fleet.kv_cache


@pytest.mark.parametrize(
    ("name", "known"),
    [("meta-llama/Llama-3.1-8B", True), ("google/gemma-3-27b-it", False), ("deepseek-ai/DeepSeek-V3", False)],
)
def test_mha_is_a_comparison_for_full_attention_alone(name: str, known: bool, model: Get) -> None:
    """Windows and latents have no cache with a KV head for every attention head."""
    fleet = for_model(model(name), formats.get("bf16"), FleetLoad(ctx=8192, users=1))
    assert fleet.mha_bf16 == (8192 * 32 * 32 * 256 * 2 if known else None)
