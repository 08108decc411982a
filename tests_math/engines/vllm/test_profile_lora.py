"""LoRA's stacked weights: against vLLM's own layer classes, run by tools/golden_lora.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.main import main
from membudget.data import data_path
from membudget.engines.vllm.profile import Available, ProfileError, ProfileSettings, available
from membudget.engines.vllm.profile.loaded_weights import ranks
from membudget.engines.vllm.profile.lora import by_module
from membudget.formats import get
from membudget.machines import get as machine_named
from membudget.model import build

pytestmark = pytest.mark.math

MADE: dict[str, Any] = json.loads((Path(data_path("oracle")) / "lora.json").read_text(encoding="utf-8"))
NEWEST = (0, 32, 0)
#: vLLM's modules by our roles.
ROLES = {"qkv_proj": "attn", "o_proj": "attn", "gate_up_proj": "mlp", "down_proj": "mlp", "gate": "mlp",
         "experts": "mlp.experts", "embed_tokens": "embed", "lm_head": "lm_head"}  # fmt: skip
CASES = [(name, size) for name, sizes in MADE["cases"].items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_stacked(name: str, size: str) -> None:
    """Every module of vLLM's, by tensor parallel size."""
    model, tp = build(f"{data_path('models')}/{name}.json"), int(size[2:])
    rank = ranks(model, get("bf16"), machine_named("h100-80gb"), ProfileSettings(tp=tp), NEWEST)[0].model
    each = 2 * MADE["max_loras"] * MADE["max_lora_rank"]
    theirs: dict[str, int] = {}
    for module, found in MADE["cases"][name][size].items():
        theirs[ROLES[module]] = theirs.get(ROLES[module], 0) + found
    mine = {role: count * each for role, count in by_module(model, rank, tp, NEWEST).items()}
    assert {role: mine[role] for role in theirs} == theirs


def _left(name: str, version: str = "0.32.0", **told: Any) -> Available:
    model = build(f"{data_path('models')}/{name}.json")
    return available(model, get("bf16"), machine_named("h100-80gb"), ProfileSettings(**told), version)


def test_it_is_a_part() -> None:
    """The parts still add up; without adapters there is no such part; twice the adapters take twice the stacks."""
    plain, one, two = (_left("meta-llama--Llama-3.1-8B", max_loras=count, max_lora_rank=64) for count in (0, 1, 2))
    assert [part.name for part in plain.parts] == ["requested", "weights", "activation", "non_torch", "cuda_graphs"]
    assert one.bytes == one.parts[0].bytes - sum(part.bytes for part in one.parts[1:])
    assert plain.bytes - one.bytes == one.part("lora").bytes
    assert two.bytes - one.bytes == one.bytes - plain.bytes + 8192 * 48
    assert "lora" in dict(one.notes)


def test_embeddings_where_the_model_names_them() -> None:
    """embedding_modules: Llama's class has it, Qwen2's has none, Qwen3's since 0.17."""
    names = ("meta-llama--Llama-3.1-8B", "Qwen--Qwen2.5-0.5B", "Qwen--Qwen3-8B")
    sizes = {name: _left(name, max_loras=1).part("lora") for name in names}
    assert ["embeddings" in part.why for part in sizes.values()] == [True, False, True]
    assert "embeddings" not in _left("Qwen--Qwen3-8B", "0.15.0", max_loras=1).part("lora").why


def test_experts_since_0_12() -> None:
    """lora/layers/fused_moe.py is in 0.12.0 and not in 0.11.0."""
    old, new = (
        _left("Qwen--Qwen3-30B-A3B", version, max_loras=1).part("lora").bytes for version in ("0.11.0", "0.12.0")
    )
    assert new > 20 * old


def test_a_rank_below_one() -> None:
    """LoRAConfig takes 1 and more."""
    with pytest.raises(ProfileError):
        _left("Qwen--Qwen3-8B", max_loras=1, max_lora_rank=0)


def test_adapters_are_a_part_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """With --enable-lora the plan's weights grow by the buffers, and the line to type has the flags."""
    asked = ["plan", "Qwen/Qwen3-8B", "--machine", "h100-80gb", "--ctx", "8k", "--json"]
    found = []
    for more in ([], ["--enable-lora", "--max-loras", "4", "--max-lora-rank", "64"]):
        assert main([*asked, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, served = found
    part = next(part for part in served["pool"]["parts"] if part["name"] == "lora")
    assert served["weights"] - plain["weights"] == part["bytes"] > 2**30
    assert served["command"].endswith("--enable-lora --max-loras 4 --max-lora-rank 64")
    assert main([*asked, "--enable-lora", "--max-lora-rank", "63"]) == 2
    assert "vLLM takes 1, 8, 16, 32, 64" in capsys.readouterr().out
