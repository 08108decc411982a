"""A GGUF file alone describes the model: the same tensors and caches as its config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import by_role, compare, config_of, read_path
from membudget.checkpoint.roles import canonical
from membudget.model import ConfigError, Model, Tensor, UnknownModelType, build
from tests_math.checkpoint.checkpoint_files import ARCHITECTURES, gguf_keys, gguf_tensors, write_gguf, write_model

pytestmark = pytest.mark.math
pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")

Raw = Callable[[str], dict[str, Any]]

MODELS = [
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-2-7b-hf",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen1.5-MoE-A2.7B",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-35B-A3B",
    "google/gemma-2b",
    "google/gemma-2-2b",
    "google/gemma-2-27b",
    "google/gemma-3-1b-it",
    "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B",
    "nvidia/Gemma-4-31B-IT-NVFP4",
    "microsoft/Phi-3-mini-128k-instruct",
    "microsoft/phi-4",
    "microsoft/Phi-4-mini-instruct",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "allenai/OLMo-2-1124-13B",
    "allenai/Olmo-3.1-32B-Instruct",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
    "zai-org/GLM-4.5-Air",
    "MiniMaxAI/MiniMax-M2.5",
]


def known(raw: dict[str, Any], name: str) -> Model:
    """The model, or a skip where no recipe knows its type yet."""
    try:
        return build(raw, name)
    except UnknownModelType as error:
        pytest.skip(str(error)[:160])


def is_text_parameter(tensor: Tensor) -> bool:
    """Whether this is a parameter of the language model, as opposed to a tower or what is stored beside it."""
    return tensor.part == "params" and tensor.role not in ("vision", "audio")


def text_parameters(model: Model) -> dict[str, tuple[tuple[int, ...], int]]:
    """The language model's parameters under their names without a wrapper's prefix."""
    return {canonical(t.name): (t.shape, t.copies) for t in model.tensors if is_text_parameter(t)}


@pytest.mark.parametrize("name", MODELS)
def test_gguf_alone_gives_the_same_model(name: str, raw_config: Raw, tmp_path: Path) -> None:
    """Every parameter and every layer's cache, from the metadata that llama.cpp's converter writes."""
    model = known(raw_config(name), name)
    checkpoint = read_path(str(write_model(tmp_path / "m.gguf", model)))
    again = build(config_of(checkpoint), name)
    ours, theirs = text_parameters(again), text_parameters(model)
    assert ours == theirs
    read = [sum(t.active_elements for t in m.tensors if is_text_parameter(t)) for m in (again, model)]
    assert read[0] == read[1] == again.count.active
    if model.model_type not in ("mistral", "mixtral"):  # their window is not in GGUF files
        assert again.caches == model.caches
    assert again.config.integer("max_position_embeddings") == model.config.integer("max_position_embeddings")
    differences = compare(checkpoint, again)
    assert differences.ok
    assert not differences.regrouped
    assert sum(by_role(checkpoint, again).values()) == checkpoint.nbytes
    apart = ("vision", "audio", "mtp")
    beside = sum(t.elements for t in model.tensors if t.part != "params" and t.role not in apart)
    assert checkpoint.elements in (again.count.params, again.count.params + beside)


def llama(tmp_path: Path, model: Model, **keys: Any) -> Path:
    """Llama-3.2-1B as a GGUF with some keys changed (None leaves one out)."""
    all_keys = {**gguf_keys(model), **{f".{key.replace('__', '.')}": value for key, value in keys.items()}}
    kept = {key: value for key, value in all_keys.items() if value is not None}
    return write_gguf(tmp_path / "m.gguf", "llama", kept, gguf_tensors(model))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_count": None}, r"llama\.block_count is missing"),
        ({"block_count": 0}, r"llama\.block_count leaves 0 layers"),
        ({"embedding_length": None}, r"llama\.embedding_length is missing"),
        ({"embedding_length": 4096}, r"token_embd\.weight is of shape \[128256, 2048\], embedding_length 4096"),
        ({"attention__head_count": 0}, r"llama\.attention\.head_count is 0"),
        ({"attention__head_count_kv": [8] * 15 + [4]}, r"llama\.attention\.head_count_kv differs from layer to layer"),
        ({"attention__head_count": "32"}, r"llama\.attention\.head_count is '32', not a whole number"),
        ({"attention__value_length": 128}, r"llama\.attention\.value_length is 128, key_length 64"),
        ({"context_length": None}, r"llama\.context_length is missing"),
    ],
)
def test_what_is_not_known_is_refused(
    keys: dict[str, Any], message: str, model: Callable[[str], Model], tmp_path: Path
) -> None:
    """A missing, contradictory or per-layer key is an error that names the file and the key."""
    path = llama(tmp_path, model("meta-llama/Llama-3.2-1B"), **keys)
    with pytest.raises(ConfigError, match=message) as caught:
        config_of(str(path))
    assert str(path) in str(caught.value)


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    """An architecture that is not in the table: its name, what is known, what to do."""
    path = write_gguf(tmp_path / "m.gguf", "rwkv7", {".block_count": 2}, {"token_embd.weight": ("F32", (4, 8))})
    with pytest.raises(ConfigError, match=r"architecture 'rwkv7' is not read.*Known are: .*qwen3moe.*config\.json"):
        config_of(str(path))


def test_projector_is_no_model(tmp_path: Path) -> None:
    """An mmproj file (clip) is named as what it is."""
    path = write_gguf(
        tmp_path / "mmproj.gguf", "clip", {"general.type": "mmproj"}, {"v.patch_embd.weight": ("F32", (4,))}
    )
    with pytest.raises(ConfigError, match="is a multimodal projector, not a language model"):
        config_of(str(path))


def test_equal_list_counts_as_one_number(model: Callable[[str], Model], tmp_path: Path) -> None:
    """A per-layer list whose entries are all alike is that number."""
    llama_1b = model("meta-llama/Llama-3.2-1B")
    config = config_of(str(llama(tmp_path, llama_1b, attention__head_count_kv=[8] * 16)))
    assert build(config).caches == llama_1b.caches


def test_old_mla_keys(raw_config: Raw, tmp_path: Path) -> None:
    """Files from before 2025-04: full heads as key_length, one kv_b; the same model."""
    model = known(raw_config("deepseek-ai/DeepSeek-V3"), "v3")
    keys = gguf_keys(model)
    keys |= {".attention.key_length": 192, ".attention.value_length": 128, ".attention.head_count_kv": 128}
    del keys[".attention.key_length_mla"], keys[".attention.value_length_mla"]
    tensors = gguf_tensors(model)
    for layer in range(61):
        del tensors[f"blk.{layer}.attn_k_b.weight"], tensors[f"blk.{layer}.attn_v_b.weight"]
        tensors[f"blk.{layer}.attn_kv_b.weight"] = ("F16", (128 * 256, 512))
    checkpoint = read_path(str(write_gguf(tmp_path / "old.gguf", "deepseek2", keys, tensors)))
    again = build(config_of(checkpoint))
    assert again.count == model.count
    assert again.caches == model.caches
    differences = compare(checkpoint, again)
    assert differences.ok
    assert {len(group.found) for group in differences.regrouped} == {1}
    assert len(differences.regrouped) == 61


def test_separate_output_of_a_tied_model(model: Callable[[str], Model], tmp_path: Path) -> None:
    """Qwen's official Qwen2.5-0.5B files carry output.weight: the file's own head counts."""
    qwen = model("Qwen/Qwen2.5-0.5B")
    tensors = {**gguf_tensors(qwen), "output.weight": ("Q8_0", (151936, 896))}
    checkpoint = read_path(str(write_gguf(tmp_path / "q.gguf", "qwen2", gguf_keys(qwen), tensors)))
    again = build(config_of(checkpoint))
    assert again.count.params == qwen.count.params + 151_936 * 896
    against_config = compare(checkpoint, qwen)
    assert against_config.ok
    assert [entry.name for entry in against_config.unused["tied_head"]] == ["output.weight"]
    assert against_config.unused_bytes == 151_936 * 896 // 32 * 34


def test_every_architecture_of_the_table_is_tried() -> None:
    """No architecture is read that no test writes, but aliases and those without a shipped config."""
    from membudget.checkpoint.gguf_config import ARCHITECTURES as READ

    untested = set(READ) - set(ARCHITECTURES.values())
    assert untested == {"mistral3", "qwen2vl", "qwen3vl", "qwen3vlmoe", "glm4", "seed_oss"}
