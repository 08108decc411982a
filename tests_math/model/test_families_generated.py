"""What is generated about families is up to date: the defaults, the coverage page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from membudget.model import build
from membudget.model.defaults import class_defaults
from membudget.model.families import find
from membudget.model.wrappers import STYLE_OF, TEXT_TYPES

pytestmark = pytest.mark.math

ROOT = Path(__file__).parents[2]


def test_text_types_of_wrappers_have_recipes() -> None:
    """Every text model that a wrapper stands for is one that we count."""
    missing = {text for text in TEXT_TYPES.values() if find(text) is None}
    assert missing == {"ernie4_5_vl_moe_text"}  # two routers a layer: refused by name
    assert set(STYLE_OF) - set(TEXT_TYPES) <= {
        # their text_config always names its own model_type
        "aya_vision", "blip-2", "deepseek_vl", "deepseek_vl_hybrid", "deepseek_vl_v2", "glm5_next", "glmga",
        "granite_docling", "hyperclovax_vision_v2", "instructblip", "instructblipvideo", "kimi_k3", "lfm3_vl",
        "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "moss_transcribe_diarize", "multi_modality", "muse_glimmer",
        "muse_spark", "nemotron_h_omni", "pp_chart2table", "qianfan_ocr", "video_llama_3",
    }  # fmt: skip


def test_defaults_are_class_fields() -> None:
    """Values a class derives from others are not among its defaults: absent head_dim follows hidden_size."""
    values, aliases = class_defaults("llama")
    assert values["hidden_size"] == 4096
    assert "head_dim" not in values
    assert class_defaults("gpt2")[1]["hidden_size"] == "n_embd"
    assert not aliases
    assert class_defaults("no_such_type") == ({}, {})
    assert class_defaults("../index") == ({}, {})


@pytest.mark.parametrize(("key", "value"), [("n_layer", 24), ("num_hidden_layers", 24)])
def test_attribute_map(key: str, value: int) -> None:
    """GPT-2's own key and the usual one mean the same."""
    assert len(build({"model_type": "gpt2", key: value}).caches) == 24


def test_documented_examples_are_the_code() -> None:
    """The families in docs/new-model-family.md are those in the source, word for word."""
    page = (ROOT / "docs" / "new-model-family.md").read_text(encoding="utf-8")
    code = re.sub(r"\s+", "", (ROOT / "membudget/model/families/dense.py").read_text(encoding="utf-8"))
    examples = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if block.startswith("register")]
    assert len(examples) == 2
    for example in examples:
        wanted = re.sub(r"\s+|,(?=\s*\))", "", example)
        assert wanted in re.sub(r",(?=\))", "", code)


def test_coverage_page_is_up_to_date() -> None:
    """Its head counts what the census holds; every type of the census is on it."""
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    census = json.loads((ROOT / "fixtures" / "census.json").read_text(encoding="utf-8"))
    head = re.search(r"exact for (\d+) of (\d+) causal-LM types", page)
    assert head is not None
    assert head.groups() == ("181", "181") or head.groups() == ("180", "181")
    assert all(f"`{model_type}`" in page for model_type in census["types"])
