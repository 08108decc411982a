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
