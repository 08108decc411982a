"""What a format says is stored is what the inventory holds, for every model_type: names, shapes, bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from membudget.formats import get
from membudget.formats.gguf import gguf
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


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        # query heads a KV head of the first layer: 4 and more make Q4_K (llama-quant.cpp, LLAMA_FTYPE_MOSTLY_IQ3_XXS)
        ({"model_type": "llama", "num_key_value_heads": 2}, "Q4_K"),
        ({"model_type": "llama", "num_key_value_heads": 1}, "Q4_K"),
        ({"model_type": "llama", "num_key_value_heads": 4}, "IQ3_XXS"),
        ({"model_type": "llama", "num_key_value_heads": 8}, "IQ3_XXS"),
    ],
)
def test_values_by_the_heads_that_share_them(config: dict[str, Any], kind: str) -> None:
    """attn_v of IQ3_XXS with an importance matrix, which the mix asks for."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 512}
    model = build({**sizes, "intermediate_size": 1024, **config})
    form = gguf("iq3_xxs", "IQ3_XXS")
    found = {item.name: item.dtype for tensor in model.tensors for item in form.stored(tensor, model)}
    assert {found[f"blk.{layer}.attn_v.weight"] for layer in (0, 1)} == {kind}
