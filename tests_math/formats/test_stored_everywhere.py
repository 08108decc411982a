"""What a format says is stored is what the inventory holds, for every model_type: names, shapes, bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from membudget.formats import get
from membudget.model import build
from tests_math.model.family_reference import TOWERS, UNBUILDABLE, raw

pytestmark = pytest.mark.math

CENSUS = json.loads((Path(__file__).parents[2] / "fixtures" / "census.json").read_text(encoding="utf-8"))["types"]
TYPES = sorted(name for name, row in CENSUS.items() if row.get("random") and name not in TOWERS | UNBUILDABLE.keys())


@pytest.mark.parametrize("model_type", TYPES)
def test_bf16_stores_every_tensor_as_it_is(model_type: str) -> None:
    """One tensor a name, of the shape that transformers saves it in, two bytes an element (four where fp32 stays)."""
    row = CENSUS[model_type]
    model = build(raw(model_type, row["random"][0]["config"], row.get("under")))
    form = get("bf16")
    for tensor in model.tensors:
        (stored,) = form.stored(tensor, model)
        shapes = dict(tensor.expand())
        width = {"F32": 4, "I64": 8}.get(stored.dtype, 2)
        if "*" in tensor.name or tensor.copies == 1:
            assert {stored.shape} == set(shapes.values()), tensor.name
            assert (stored.copies, stored.nbytes) == (tensor.copies, tensor.numel * width), tensor.name
        else:
            assert shapes == {stored.name: stored.shape}
            assert (stored.copies, stored.nbytes) == (1, tensor.elements * width), tensor.name
    assert form.weigh(model).total >= 2 * model.count.params
