"""Configs once counted wrong in silence; the right values are another witness's (fixtures/hostile/README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget import formats
from membudget.model import ConfigError, build
from membudget.model.unread import HARMLESS, HARMLESS_FOR

pytestmark = pytest.mark.math

HOSTILE = Path(__file__).parents[2] / "fixtures" / "hostile"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("longcat-flash-chat", 560_664_958_976),
        ("falcon-mamba-7b", 7_272_665_088),
        ("bloom-560m", 559_214_592),
        ("doge-moe", 1_417_880_704),
        ("hunyuan-a13b", 80_393_183_232),
        ("glm5-index_topk_pattern", 743_189_562_624),
        ("santacoder", 1_124_886_528),
    ],
)
def test_parameters(name: str, params: int) -> None:
    """Parameters as published, or as another version of transformers builds them."""
    assert build(str(HOSTILE / f"{name}.config.json")).count.params == params


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mlx-4bit", 4_517_404_672),
        ("gptq-subset", 15_266_226_176),
        ("auto-round-extra-config", 14_075_568_128),
    ],
)
def test_bytes(name: str, size: int) -> None:
    """Weights in bytes where the quantization names modules, by hand: see the README."""
    model = build(str(HOSTILE / f"{name}.config.json"))
    assert formats.of_config(model.config).weigh(model).total == size


def test_mlx_by_hand() -> None:
    """Llama-3.1-8B: 266,240 elements of norms in 16 bits, all others in 4.5 bits."""
    norms = 266_240
    assert (8_030_261_248 - norms) * 9 // 16 + 2 * norms == 4_517_404_672


def test_one_kv_head_of_santacoder() -> None:
    """Multi-query attention under model_type gpt2: one KV head, and the custom code is said."""
    model = build(str(HOSTILE / "santacoder.config.json"))
    assert {spec.kv_heads for spec in model.caches} == {1}
    assert model.custom_code == "modeling_gpt2_mq.GPT2LMHeadCustomModel"
    assert any("custom code" in note for note in model.notes)


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
    "intermediate_size": 96, "num_key_value_heads": 2, "torch_dtype": "bfloat16", "rope_theta": 1e4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, ()),
        ({"attention_gate_rank": 8}, ("attention_gate_rank",)),
        ({"use_moe": True, "attn_window_list": [1, 2]}, ("attn_window_list", "use_moe")),
        # switched off, or known to change no size
        ({"use_moe": False, "new_part": None, "sep_token_id": 7, "rms_norm_eps": 1e-5}, ()),
    ],
)
def test_keys_that_nothing_reads_are_named(more: dict[str, object], named: tuple[str, ...]) -> None:
    """An unknown key is a note, never silence."""
    model = build({**LLAMA, **more})
    assert model.not_read == named
    assert bool(model.notes) == bool(named)


def test_harmless_keys_hold_no_sizes() -> None:
    """No key that a recipe reads for any type is harmless for all types."""
    sizes = {"hidden_size", "num_hidden_layers", "num_experts", "intermediate_size", "head_dim", "sliding_window"}
    assert not sizes & HARMLESS
    assert all(set(keys.split()).isdisjoint(HARMLESS) for keys in HARMLESS_FOR.values())


@pytest.mark.parametrize("pattern", ["FSX", "FS", 3, ["full"], "F" * 77])
def test_a_bad_indexer_pattern_is_refused(pattern: object) -> None:
    """One letter a layer, F or S."""
    raw = json.loads((HOSTILE / "glm5-index_topk_pattern.config.json").read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="index_topk_pattern"):
        build({**raw, "index_topk_pattern": pattern})


def test_steps_heads_of_sliding_layers(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Step-3.5's attention_other_setting says them, where num_sliding_attention_heads does not."""
    base = raw_config("stepfun-ai/Step-3.7-Flash")

    def count(**more: object) -> int:
        return build({**base, **more}).count.params

    other = {"attention_other_setting": {"num_attention_heads": 32}}
    assert count(**other) == count(num_sliding_attention_heads=32) != count()
    assert count(**other, num_sliding_attention_heads=48) == count(num_sliding_attention_heads=48)
