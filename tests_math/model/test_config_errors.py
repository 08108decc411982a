"""Configs that are wrong: one clear error that names the file and the key; no crash, no hang, nothing guessed."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membudget.model import ConfigError, Model, UnknownModelType, build, load
from tests_math.model.test_families_real import MODELS, REFUSED

pytestmark = pytest.mark.suite

LLAMA = json.loads(MODELS["meta-llama/Llama-3.1-8B"].read_text(encoding="utf-8"))
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")


def written(folder: Path, text: str) -> str:
    """A config.json with this content."""
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [-1, 0, 10**18, -(10**30), 0.5, 1e300, float("nan"), "4096", "", [4096], {}, True])
def test_a_size_that_is_none(key: str, value: Any, tmp_path: Path) -> None:
    """Negative, zero, huge, fractional, text, a list, an object, true: refused, with file, key and what is allowed."""
    path = written(tmp_path, json.dumps({**LLAMA, key: value}))
    with pytest.raises(ConfigError) as raised:
        build(path)
    message = str(raised.value)
    assert path in message
    assert key in message
    assert "allowed is" in message
    assert len(message) < 400


def test_a_float_that_is_whole() -> None:
    """32.0 is 32: JSON writers differ."""
    assert build({**LLAMA, "num_hidden_layers": 32.0}).count == build(LLAMA).count


@pytest.mark.parametrize("key", [*SIZES, "num_key_value_heads"])
def test_null_where_the_class_has_no_way_out(key: str) -> None:
    """null is not absent: no default stands in for it, except key/value heads, which are then all heads."""
    if key == "num_key_value_heads":
        assert build({**LLAMA, key: None}).config.kv_heads == 32
        return
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        build({**LLAMA, key: None})


def test_heads_that_do_not_divide() -> None:
    """33 heads over 4096, and 5 key/value heads under 32: contradictions, named."""
    with pytest.raises(ConfigError, match="hidden_size 4096 is not divisible by num_attention_heads 33"):
        build({**LLAMA, "num_attention_heads": 33, "num_key_value_heads": 1})
    with pytest.raises(ConfigError, match=r"num_key_value_heads is 5; .* divides num_attention_heads 32"):
        build({**LLAMA, "num_key_value_heads": 5})
    with pytest.raises(ConfigError, match="num_key_value_heads is 64"):
        build({**LLAMA, "num_key_value_heads": 64})


def test_more_experts_a_token_than_there_are() -> None:
    """9 of 8 experts."""
    raw = json.loads(MODELS["mistralai/Mixtral-8x7B-v0.1"].read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="num_experts_per_tok is 9"):
        build({**raw, "num_experts_per_tok": 9})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("openai/gpt-oss-20b", "layer_types", ["full_attention"]),
        ("openai/gpt-oss-20b", "layer_types", "full_attention"),
        ("openai/gpt-oss-20b", "layer_types", [1] * 24),
        ("MiniMaxAI/MiniMax-M3", "moe_layer_freq", [1] * 3),
        ("deepseek-ai/DeepSeek-V4-Flash", "compress_ratios", [0, 5]),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "hybrid_override_pattern", "M?*"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "hybrid_override_pattern", 3),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "block_configs", [{}]),
        ("google/gemma-4-26B-A4B", "per_layer_config", [1]),
        ("google/gemma-4-26B-A4B", "per_layer_config", {"x": {}}),
        ("Qwen/Qwen3-30B-A3B", "mlp_only_layers", ["0"]),
    ],
)
def test_lists_of_layers(name: str, key: str, value: Any) -> None:
    """A per-layer list of the wrong length or kind is refused by its key."""
    raw = json.loads(MODELS[name].read_text(encoding="utf-8"))
    place = raw["text_config"] if isinstance(raw.get("text_config"), dict) else raw
    place[key] = value
    if key == "layer_types" and "mlp_layer_types" in place:
        place["mlp_layer_types"] = None
    with pytest.raises(ConfigError, match=key):
        build(raw, name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("3", "JSON object"),
        ("{}", "model_type"),
        ('{"model_type": null}', "model_type"),
        ('{"model_type": 3}', "model_type"),
        ('{"model_type": ["llama"]}', "model_type"),
        ("[" * 100_000 + "]" * 100_000, "config.json"),
        ('{"text_config":' * 30 + '{"model_type":"llama"}' + "}" * 30, "nested"),
    ],
)
def test_documents_that_are_no_config(text: str, says: str, tmp_path: Path) -> None:
    """Empty, cut off, no object, no model_type, nested without end."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        build(path)
    assert path in str(raised.value)
    assert says in str(raised.value)


def test_a_hundred_megabytes(tmp_path: Path) -> None:
    """Refused by its size, before it is read."""
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    before = time.process_time()
    with pytest.raises(ConfigError, match="104,857,600 bytes exceed"):
        load(str(path))
    assert time.process_time() - before < 5


def test_a_config_that_holds_itself() -> None:
    """A mapping that is its own text_config."""
    raw: dict[str, Any] = {"model_type": "llama"}
    raw["text_config"] = raw
    with pytest.raises(ConfigError, match="nested"):
        build(raw)


def test_unknown_type() -> None:
    """An unknown type is named, with the closest family by keys and the way to try it."""
    raw = json.loads(MODELS["Qwen/Qwen3-8B"].read_text(encoding="utf-8"))
    raw.update(model_type="qwen9", architectures=["Qwen9ForCausalLM"])
    with pytest.raises(UnknownModelType) as raised:
        build(raw, "config.json")
    message = str(raised.value)
    assert "'qwen9'" in message
    assert "--as qwen3" in message
    assert "unproven" in message
    assert "docs/new-model-family.md" in message


def test_architecture_names_the_family() -> None:
    """DeepseekV3ForCausalLM under a model_type of its own is closest to deepseek_v3."""
    raw = json.loads(MODELS["moonshotai/Kimi-K2-Instruct"].read_text(encoding="utf-8"))
    with pytest.raises(UnknownModelType, match="--as deepseek_v3"):
        build({**raw, "model_type": "kimi_k9"})


def test_as_another_type() -> None:
    """At the user's word: the same count, marked unproven; a size it leaves out is missing, not the type's default."""
    raw = {**LLAMA, "model_type": "llama9"}
    model = build(raw, as_type="llama")
    assert model.unproven
    assert model.count == build(LLAMA).count
    assert not build(LLAMA, as_type="llama").unproven
    with pytest.raises(UnknownModelType, match="--as lama: unknown model_type"):
        build(raw, as_type="lama")
    del raw["intermediate_size"]
    with pytest.raises(ConfigError, match="intermediate_size is missing"):
        build(raw, as_type="llama")


# ---- any real config, spoilt anywhere ---------------------------------------------------------

NAMES = [name for name in MODELS if name not in REFUSED]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**19), 10**19),
    st.integers(0, 70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=4),
    st.lists(st.integers(-1, 3), max_size=3),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "x"]), max_size=3),
    st.just({}),
    st.just({"a": {"b": []}}),
)


@st.composite
def spoilt_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with one to three values replaced, removed or invented, at any depth."""
    raw: dict[str, Any] = json.loads(MODELS[draw(st.sampled_from(NAMES))].read_text(encoding="utf-8"))
    for _ in range(draw(st.integers(1, 3))):
        place = raw
        while True:
            key = draw(st.sampled_from(sorted(place)))
            inner = place[key]
            if isinstance(inner, dict) and inner and draw(st.booleans()):
                place = inner
                continue
            break
        how = draw(st.sampled_from(["replace", "remove", "shorten"]))
        if how == "remove":
            del place[key]
        elif how == "shorten" and isinstance(place[key], list):
            place[key] = place[key][: len(place[key]) // 2]
        else:
            place[key] = copy.deepcopy(draw(JUNK))  # a later round may spoil it, and other draws share it
        if not place:
            break
    return raw


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(spoilt_configs())
def test_any_spoilt_config(raw: dict[str, Any]) -> None:
    """A Model or a ConfigError that names the file; never another exception, and never a model without end."""
    before = copy.deepcopy(raw)
    model, said = _built(raw)
    assert repr(raw) == repr(before)
    if model is None:
        assert "somewhere/config.json" in said
        assert len(said) < 1000
    else:
        assert 0 < model.count.params <= model.count.checkpoint
        assert len(model.tensors) < 2 * 10**6


def _built(raw: dict[str, Any]) -> tuple[Model | None, str]:
    try:
        return build(raw, "somewhere/config.json"), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize("architectures", [["WombatForCausalLM"], None])
def test_a_config_with_llamas_keys_is_closest_to_llama(architectures: list[str] | None) -> None:
    """Nothing in it that Llama has not, an activation's name included: no rarer family is proposed."""
    config = {
        "model_type": "wombat9", "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 80, "vocab_size": 32000,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    if architectures:
        config["architectures"] = architectures
    with pytest.raises(UnknownModelType, match="closest to llama: --as llama"):
        build(config)
