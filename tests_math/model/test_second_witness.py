"""vLLM's own model classes, counted on the meta device, hold what we count: a witness beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.model import build

pytestmark = pytest.mark.math

ROWS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "vllm_params.json").read_text(encoding="utf-8")
)["types"]
#: Types of which vLLM's class holds something else, and why.
OTHERWISE = {"gemma4_text": "vLLM has experts where num_experts is set, transformers where enable_moe_block is"}
COUNTED = sorted(name for name, row in ROWS.items() if "params" in row and name not in OTHERWISE)


@pytest.mark.parametrize("model_type", COUNTED)
def test_as_vllm_holds_it(model_type: str) -> None:
    """The same number, or with what the files have beside (routers' correction biases are parameters there)."""
    row = ROWS[model_type]
    model = build(row["config"])
    stored = sum(tensor.elements for tensor in model.tensors if tensor.role != "mtp")
    assert row["params"] in (model.count.params, stored)


def test_there_are_many() -> None:
    """Most types that vLLM serves by a class of its own; the others have a reason in the file."""
    assert len(COUNTED) >= 59
    assert all(row.get("params") or row["why"] for row in ROWS.values())


PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "published_types.json").read_text(encoding="utf-8")
)["types"]


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_as_published(model_type: str) -> None:
    """The total of a real checkpoint of the type, to the element; an MTP layer beside it is made of our own layer."""
    row = PUBLISHED[model_type]
    model = build(row["config"])
    beside = row.get("beside")
    more = 0
    if beside:
        last = f"model.layers.{beside['layer']}."
        more = sum(tensor.elements for tensor in model.tensors if tensor.name.startswith(last))
        more += beside["projection"][0] * (beside["projection"][1] + beside["norms"])
    assert row["published"] - more in (model.count.params, model.count.checkpoint)


def test_kimi_linear_as_its_files_name_it() -> None:
    """Shapes and names of the dense layer, of the experts and of either kind of attention, as in the hub's files."""
    model = build(PUBLISHED["kimi_linear"]["config"])
    found = {tensor.name: tensor.shape for tensor in model.tensors}
    assert found["model.layers.0.mlp.down_proj.weight"] == (2304, 9216)
    assert found["model.layers.1.block_sparse_moe.gate.e_score_correction_bias"] == (256,)
    assert found["model.layers.1.block_sparse_moe.shared_experts.up_proj.weight"] == (1024, 2304)
    assert found["model.layers.2.self_attn.A_log"] == (1, 1, 32, 1)
    assert found["model.layers.26.self_attn.kv_a_proj_with_mqa.weight"] == (576, 2304)
    assert found["model.layers.26.self_attn.q_proj.weight"] == (6144, 2304)
    assert not model.not_read
