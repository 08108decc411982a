"""What transformers' caches hold, to the byte: fixtures/cache_census.json, measured by tools/cache_census.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.engines.transformers.caches import cache_bytes, growth_per_token
from membudget.formats import kv
from membudget.model import Model, build
from membudget.planning.ledger import predict

pytestmark = pytest.mark.math
Get = Callable[[str], Model]
CENSUS = json.loads((Path(__file__).parents[2] / "fixtures" / "cache_census.json").read_text(encoding="utf-8"))
MEASURED = {name: row for name, row in CENSUS["types"].items() if "draws" in row}


def raw(model_type: str, row: dict[str, Any], draw: dict[str, Any]) -> dict[str, Any]:
    """The config.json of one draw."""
    under = row.get("under")
    return {"model_type": model_type, **({under: draw["config"]} if under else draw["config"])}


def test_census_is_whole() -> None:
    """The census covers what the facts name: 156 types and more, and its version is stamped."""
    assert len(MEASURED) >= 170
    assert CENSUS["transformers"] == "5.24.0"
    assert all(len(row["draws"]) >= 1 for row in MEASURED.values())


@pytest.mark.parametrize("model_type", MEASURED)
def test_dynamic_cache(model_type: str) -> None:
    """DynamicCache after prompts of 7, 64 and 129 tokens and after decode steps: tensors and storages, exact."""
    row = MEASURED[model_type]
    for draw in row["draws"]:
        model = build(raw(model_type, row, draw))
        found, expected = {}, {}
        for prompt, measured in draw["runs"].items():
            for step, held in zip((0, *CENSUS["steps"]), measured, strict=True):
                ours = cache_bytes(
                    model,
                    int(prompt) + step,
                    CENSUS["batch"],
                    stage="decode" if step else "prefill",
                    encoder_tokens=draw["encoder"],
                )
                found[prompt, step] = [ours.tensors, ours.storage]
                expected[prompt, step] = held
        assert found == expected


@pytest.mark.parametrize("model_type", [name for name, row in MEASURED.items() if "static" in row["draws"][0]])
def test_static_cache(model_type: str) -> None:
    """StaticCache is allocated whole: max_cache_len tokens, or the window where that is less."""
    row = MEASURED[model_type]
    for draw in row["draws"]:
        ours = cache_bytes(build(raw(model_type, row, draw)), CENSUS["static_len"], CENSUS["batch"], kind="static")
        assert [ours.tensors, ours.storage] == draw["static"]


#: Older versions, and what they keep elsewhere or more of, in bytes of two sequences at 129 tokens.
OLDER = {
    "5.8.0": {"glm_moe_dsa": "the indexer's keys are kept in its module, not in the cache"},
    "4.57.6": {"lfm2": "a convolution's state is allocated for attention layers too"},
}


@pytest.mark.parametrize("version", OLDER)
def test_older_versions(version: str) -> None:
    """The same types on transformers 4.57 and 5.8: expanded MLA heads, 16-bit states in 5.8; exact but where named."""
    path = Path(__file__).parents[2] / "fixtures" / f"cache_census-{version}.json"
    census = json.loads(path.read_text(encoding="utf-8"))
    assert census["transformers"] == version
    assert len(census["types"]) >= 18
    number = tuple(int(part) for part in version.split("."))
    differ = set()
    for model_type, row in census["types"].items():
        (draw,) = row["draws"]
        model = build(raw(model_type, row, draw))
        for prompt, measured in draw["runs"].items():
            for step, held in zip((0, *census["steps"]), measured, strict=True):
                stage = "decode" if step else "prefill"
                source = draw["encoder"]
                ours = cache_bytes(model, int(prompt) + step, 2, stage=stage, version=number, encoder_tokens=source)
                if [ours.tensors, ours.storage] != held:
                    differ.add(model_type)
        if "static" in draw:
            static = cache_bytes(model, census["static_len"], 2, kind="static", version=number)
            assert [static.tensors, static.storage] == draw["static"]
    assert differ == set(OLDER[version])


def test_storage_after_a_prompt_differs() -> None:
    """More than 40 types hold more in storage than in tensors after a long prompt: the whole of it in windows."""
    wide = [
        name
        for name, row in MEASURED.items()
        if any(draw["runs"]["129"][0][1] > draw["runs"]["129"][0][0] for draw in row["draws"])
    ]
    assert len(wide) >= 41


MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "sliding_window": 16,
}


@pytest.mark.parametrize("model_type", ["mistral", "mixtral", "phi3", "starcoder2"])
def test_slides_on_every_layer(model_type: str) -> None:
    """sliding_window without layer_types slides everywhere; W - 1 tokens are kept, W are stored after a step."""
    model = build({**MISTRAL, "model_type": model_type, "num_local_experts": 2, "num_experts_per_tok": 1})
    token = 4 * 2 * 2 * 16 * 2  # layers x K and V x heads x head_dim x bytes
    prefill, decode = cache_bytes(model, 129, stage="prefill"), cache_bytes(model, 130)
    assert (prefill.tensors, prefill.storage) == (15 * token, 129 * token)
    assert (decode.tensors, decode.storage) == (15 * token, 16 * token)
    assert growth_per_token(model) == 0


def test_a_window_of_one_keeps_everything() -> None:
    """keys[-W + 1:] with W = 1 is keys[0:]: transformers never cuts such a layer."""
    assert cache_bytes(build({**MISTRAL, "sliding_window": 1}), 100).tensors == 100 * 4 * 2 * 2 * 16 * 2


def test_no_window() -> None:
    """sliding_window null: every layer keeps every token."""
    model = build({**MISTRAL, "sliding_window": None})
    assert cache_bytes(model, 100).storage == 100 * growth_per_token(model) == 100 * 4 * 2 * 2 * 16 * 2


def test_latent_by_version(model: Get) -> None:
    """DeepSeek-V3: 61 x (512 + 64) x 2 bytes a token since 5.15, 61 x 128 x (192 + 128) x 2 before."""
    v3 = model("deepseek-ai/DeepSeek-V3")
    assert growth_per_token(v3) == 61 * 576 * 2 == 70_272
    assert growth_per_token(v3, version=(4, 57, 6)) == 61 * 128 * (192 + 128) * 2
    assert cache_bytes(v3, 1000, 3, version=(5, 14, 1)).tensors == 3 * 1000 * 61 * 128 * 320 * 2
    assert cache_bytes(v3, 1000, 3, version=(5, 15)).tensors == 3 * 1000 * 70_272


def test_shared_layers_hold_nothing(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Gemma-3n's and Gemma-4's last num_kv_shared_layers layers keep no cache of their own."""
    row = MEASURED["gemma4_text"]
    for draw in row["draws"]:
        model = build(raw("gemma4_text", row, draw))
        held = cache_bytes(model, 50).by_layer
        shared = draw["config"].get("num_kv_shared_layers", 0)
        assert [layer.storage == 0 for layer in held] == [i >= len(held) - shared for i in range(len(held))]


def test_latent_of_a_model_with_indexers_in_some_layers(model: Get) -> None:
    """GLM-5.2 has 21 indexers in 78 layers: its latent is cached since 5.18, and 64 x (192 + 64 + 256) before."""
    glm = model("zai-org/GLM-5.2-FP8")
    indexers = 21 * 128 * 2
    assert growth_per_token(glm, version=(5, 18)) == 78 * 576 * 2 + indexers
    assert growth_per_token(glm, version=(5, 17, 9)) == 78 * 64 * 512 * 2 + indexers


@pytest.mark.parametrize(
    ("version", "width"), [((4, 57, 6), 4), ((5, 0), 2), ((5, 13, 9), 2), ((5, 14), 4), ((5, 24), 4)]
)
def test_states_are_narrow_in_some_versions(version: tuple[int, ...], width: int, model: Get) -> None:
    """From 5.0 until 5.14 recurrent states were in the model's dtype: 24 x 32 x 128 x 128 of Qwen3.5-9B in 2 bytes."""
    states = 24 * 32 * 128 * 128 * width
    # 4 columns of 8,192 channels, and 8 layers of 4 heads of 256 for the one token
    rest = 2 * (24 * 4 * 8192 + 8 * 2 * 4 * 256)
    assert cache_bytes(model("Qwen/Qwen3.5-9B"), 1, version=version).tensors == states + rest


def test_a_dtype_of_one_byte() -> None:
    """Half of 16 bits; of nothing is refused."""
    model = build({**MISTRAL, "sliding_window": None})
    assert 2 * cache_bytes(model, 5, dtype_bytes=1).tensors == cache_bytes(model, 5).tensors
    with pytest.raises(ValueError, match="dtype_bytes 0"):
        cache_bytes(model, 5, dtype_bytes=0)


def test_a_window_of_two_slides() -> None:
    """W - 1 tokens are kept: one."""
    held = cache_bytes(build({**MISTRAL, "sliding_window": 2}), 100)
    token = 4 * 2 * 2 * 16 * 2
    assert (held.tensors, held.storage) == (token, 2 * token)


def test_cross_attention_without_an_encoder() -> None:
    """Without encoder tokens only the decoder's own keys and values are kept."""
    row = MEASURED["bart"]
    model = build(raw("bart", row, row["draws"][0]))
    held = cache_bytes(model, 5)
    assert {layer.kind: layer.tensors > 0 for layer in held.by_layer} == {"full": True, "cross": False}
    assert cache_bytes(model, 5, encoder_tokens=1).tensors > held.tensors


@pytest.mark.parametrize(
    ("tokens", "stage", "held"),
    [
        (3, "prefill", (16_704, 16_704)), (4, "decode", (19_392, 34_752)), (4, "prefill", (19_392, 34_752)),
        (5, "decode", (24_960, 24_960)), (5, "prefill", (24_960, 40_320)), (8, "prefill", (27_264, 57_984)),
        (9, "decode", (32_832, 32_832)),
    ],
)  # fmt: skip
def test_entries_of_a_few_tokens(tokens: int, stage: str, held: tuple[int, int]) -> None:
    """DeepSeek-V4, two sequences on transformers 5.24: 4 tokens wait to be an entry, and 4 stay for the next."""
    row = MEASURED["deepseek_v4"]
    ours = cache_bytes(build(raw("deepseek_v4", row, row["draws"][0])), tokens, 2, stage=stage)
    assert (ours.tensors, ours.storage) == held


def test_nothing_is_kept_before_the_first_token(model: Get) -> None:
    """A DynamicCache allocates with the first forward: states too; a StaticCache of no tokens is none."""
    for name in ("Qwen/Qwen3.5-9B", "Qwen/Qwen3-8B"):
        for kind in ("dynamic", "static"):
            held = cache_bytes(model(name), 0, 3, kind=kind)
            assert (held.tensors, held.storage) == (0, 0)


def test_by_layer_adds_up(model: Get) -> None:
    """The layers' bytes are the totals, one row a cache layer."""
    held = cache_bytes(model("google/gemma-3-27b-it"), 5000, 2, stage="prefill")
    assert len(held.by_layer) == 62
    assert sum(layer.tensors for layer in held.by_layer) == held.tensors
    assert sum(layer.storage for layer in held.by_layer) == held.storage
    assert {layer.kind for layer in held.by_layer} == {"full", "sliding"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "paged"}, "kind is 'paged'; allowed are dynamic and static"),
        ({"stage": "later"}, "stage is 'later'; allowed are prefill and decode"),
        ({"tokens": -1}, "tokens -1"),
        ({"batch": 0}, "batch 0"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    """An argument out of range is an error that names it."""
    with pytest.raises(ValueError, match=message):
        cache_bytes(build(MISTRAL), **{"tokens": 5, **options})


@settings(deadline=None)
@given(st.sampled_from(sorted(MEASURED)), st.integers(0, 3000), st.integers(1, 9), st.sampled_from([2, 4]))
def test_invariants(model_type: str, tokens: int, batch: int, width: int) -> None:
    """Any type, length and batch: storage holds the tensors, more tokens never hold less, batches multiply."""
    row = MEASURED[model_type]
    model = build(raw(model_type, row, row["draws"][0]))
    one = cache_bytes(model, tokens, dtype_bytes=width, encoder_tokens=7)
    many = cache_bytes(model, tokens, batch, dtype_bytes=width, encoder_tokens=7)
    first = cache_bytes(model, tokens, dtype_bytes=width, stage="prefill", encoder_tokens=7)
    static = cache_bytes(model, tokens, dtype_bytes=width, kind="static", encoder_tokens=7)
    assert one.storage >= one.tensors >= 0
    assert first.tensors == one.tensors
    assert first.storage >= first.tensors
    assert (many.tensors, many.storage) == (batch * one.tensors, batch * one.storage)
    assert static.storage == static.tensors
    far = cache_bytes(model, tokens + 5000, dtype_bytes=width, encoder_tokens=7)
    if model_type not in ("deepseek_v4", "deepseek_ref"):
        assert far.tensors >= one.tensors
        later = cache_bytes(model, tokens + 5001, dtype_bytes=width, encoder_tokens=7)
        assert later.tensors - far.tensors == growth_per_token(model, dtype_bytes=width)


def test_falcons_new_architecture_keeps_a_head_for_each_query_head() -> None:
    """Falcon-40B (60 layers, 128 heads of 64, 8 of keys): transformers broadcasts before it caches, vLLM does not.

    Source: modeling_falcon.py, `_split_heads`; vLLM's models/falcon.py gives its attention 8 heads.
    """
    raw = {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024,
    }  # fmt: skip
    model = build(raw)
    assert growth_per_token(model) == 60 * 128 * 64 * 2 * 2
    assert kv.cache(model, "bf16").per_token() == 60 * 8 * 64 * 2 * 2
    asked = {"format": formats.get("bf16"), "ctx": 2048, "users": 1, "machine": machines.get("h200-141gb")}
    for engine, heads in (("transformers", 128), ("arithmetic", 8)):
        found = predict(Budget(id="x", model=model, kv_cache_dtype="bf16", engine=Settings(engine), **asked))
        assert found.kv_cache == 2048 * 60 * heads * 64 * 2 * 2
