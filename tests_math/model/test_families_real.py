"""Real config.json files: parameters against transformers and against published checkpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from membudget.model import ConfigError, Model, build
from membudget.model.tensors import ROLES

pytestmark = pytest.mark.math

FIXTURES = Path(__file__).parents[2] / "fixtures"
SHIPPED = FIXTURES.parent / "membudget" / "data" / "models"
MODELS = {path.stem.replace("--", "/", 1): path for path in sorted((SHIPPED).glob("*--*.json"))}
COUNTED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "models_params.json").read_text(encoding="utf-8"))["models"]
PUBLISHED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "published_params.json").read_text(encoding="utf-8"))[
    "models"
]
#: Refused by name: what they have beside a known family has no recipe.
REFUSED = {"moonshotai/Kimi-K3": "attn_res_block_size"}


def shipped(name: str) -> Model:
    """A shipped model."""
    return build(str(MODELS[name]), name)


@pytest.mark.parametrize("name", MODELS)
def test_every_shipped_config_is_counted_or_refused(name: str) -> None:
    """One Model, tensors of positive sizes with names of their own, a cache spec a layer; or one clear error."""
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            shipped(name)
        return
    model = shipped(name)
    assert model.count.active <= model.count.params <= model.count.checkpoint
    assert sum(model.count.by_role.values()) == sum(model.count.by_part.values()) == model.count.params
    assert all(extent > 0 for tensor in model.tensors for extent in tensor.shape)
    assert {tensor.role.partition(".")[0] for tensor in model.tensors} <= set(ROLES)
    assert set(model.count.by_role) >= {"embed", "attn", "mlp", "norms", "lm_head", "other"}
    names = [tensor.name for tensor in model.tensors]
    assert len(names) == len(set(names))
    assert [spec.layer for spec in model.caches] == list(range(len(model.caches)))


def test_sources() -> None:
    """Every shipped config says where it comes from, and every alias leads to one."""
    sources = json.loads((SHIPPED / "SOURCES.json").read_text(encoding="utf-8"))
    aliases = json.loads((SHIPPED / "ALIASES.json").read_text(encoding="utf-8"))
    assert set(sources) == set(MODELS)
    assert len(MODELS) >= 150
    assert set(aliases.values()) <= set(MODELS)
    assert not set(aliases) & set(MODELS)


@pytest.mark.parametrize("name", COUNTED)
def test_text_model_as_transformers_counts_it(name: str) -> None:
    """The text model and its head, to the parameter; what stands beside it is named."""
    model, known = shipped(name), COUNTED[name]
    text = sum(tensor.elements for tensor in model.tensors if tensor.part == "params" and _of_text(tensor.role))
    # `text` counts the text model without its head where the wrapper owns the head
    head = model.count.by_role["lm_head"]
    assert known["text"] in (text, text - head)
    if known["total"] != known["text"] and known["total"] - known["text"] != head:
        assert model.unknown or any(not _of_text(tensor.role) for tensor in model.tensors)


def _of_text(role: str) -> bool:
    return role.partition(".")[0] not in ("vision", "audio")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_total(name: str) -> None:
    """Published elements = our params, plus parts that are named: nothing is left unexplained, or how much is."""
    model, known = shipped(name), PUBLISHED[name]
    text = [tensor for tensor in model.tensors if _of_text(tensor.role)]
    parts = known["parts"]
    expected = sum(t.elements for t in text if t.part == "params" or "checkpoint" in parts)
    for part in parts:
        if part == "head":
            assert model.count.by_role["lm_head"] == 0  # tied, and stored all the same
            expected += model.count.by_role["embed"]
        elif number := re.match(r"[\d,]+ ", part):
            expected += int(number.group().replace(",", ""))
        elif part.endswith("tower"):
            tower = sum(t.elements for t in model.tensors if t.part == "params" and not _of_text(t.role))
            if not tower and name not in COUNTED:
                assert model.unknown
                assert expected < known["published"]
                return
            expected += tower or COUNTED[name]["total"] - COUNTED[name]["text"]
    assert expected == known["published"]


MTP = {
    # the published total less our params and the model's router buffers; a head's own router has a buffer too
    "zai-org/GLM-5": 9_952_920_320 + 256,
    "zai-org/GLM-5.3": 9_952_920_320 + 256,
    "Qwen/Qwen3.5-9B": 243_290_624,
    "Qwen/Qwen3.5-27B": 424_699_392,
    "nvidia/Qwen3.6-35B-A3B-NVFP4": 844_640_768,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 2_942_324_736 + 512,
    "zai-org/GLM-4.5-Air": 110_468_824_832 - 106_852_245_504 - 45 * 128,
    "XiaomiMiMo/MiMo-7B-Base": 210_790_400,
}


@pytest.mark.parametrize("name", MTP)
def test_multi_token_prediction_heads(name: str) -> None:
    """One more decoder layer, a projection of 2 H to H and norms; in the checkpoint, not in the model."""
    heads = [tensor for tensor in shipped(name).tensors if tensor.role == "mtp"]
    assert sum(tensor.elements for tensor in heads) == MTP[name]
    assert {tensor.part for tensor in heads} == {"checkpoint"}


def test_absent_is_not_null() -> None:
    """DeepSeek-V2-Lite: q_lora_rank null is no low rank; without the key the class's 1536 holds, +42,508,800."""
    raw = json.loads(MODELS["deepseek-ai/DeepSeek-V2-Lite"].read_text(encoding="utf-8"))
    assert raw["q_lora_rank"] is None
    lite = build(raw).count.params
    del raw["q_lora_rank"]
    assert build(raw).count.params - lite == 42_508_800


def test_three_totals_of_glm() -> None:
    """GLM-4.5-Air: the card says 106 B total, 12 B active; 110 B are stored with the MTP head."""
    count = shipped("zai-org/GLM-4.5-Air").count
    assert count.params == 106_852_245_504
    assert count.checkpoint == 110_468_824_832
    assert 12 * 10**9 < count.active < 14 * 10**9
