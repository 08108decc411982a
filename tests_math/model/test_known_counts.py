"""Parameter counts against published totals and against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from membudget.model import ConfigError, Model, UnknownModelType, build
from membudget.model.tensors import Tensor, count
from tests_math.strategies import llama_configs

pytestmark = pytest.mark.math

Get = Callable[[str], Model]

# safetensors totals that the hub publishes for these repositories
PUBLISHED = {
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
}


@pytest.mark.parametrize(("name", "params"), PUBLISHED.items())
def test_published_total(name: str, params: int, model: Get) -> None:
    """From config.json alone, the parameters of the published checkpoint."""
    assert model(name).count.params == params


def test_llama_8b_parts(model: Get) -> None:
    """Every part of Llama-3.1-8B, as h, I, V, heads and layers give it."""
    llama = model("meta-llama/Llama-3.1-8B")
    roles = llama.count.by_role
    assert roles["embed"] == 128_256 * 4096 == 525_336_576
    assert roles["attn"] == 32 * 41_943_040
    assert roles["mlp"] == 32 * 176_160_768
    assert roles["norms"] == 32 * 8_192 + 4_096
    assert roles["lm_head"] == 525_336_576
    assert roles["other"] == 0
    assert sum(roles.values()) == llama.count.params


def test_tied_head_counts_once(model: Get) -> None:
    """Llama-3.2-1B ties its head: lm_head is 0 and no tensor of that name is in the inventory."""
    llama = model("meta-llama/Llama-3.2-1B")
    assert llama.count.by_role["lm_head"] == 0
    assert not any(tensor.role == "lm_head" for tensor in llama.tensors)


def test_mixture_counts_active_experts(model: Get) -> None:
    """Qwen3-30B-A3B: 8 of 128 experts a token; the card says 3.3 B are activated."""
    qwen = model("Qwen/Qwen3-30B-A3B")
    expert = 3 * 2048 * 768
    assert qwen.count.params - qwen.count.active == 48 * (128 - 8) * expert
    assert round(qwen.count.active / 10**9, 1) in (3.3, 3.4)
    assert qwen.count.by_part["mlp.experts"] == 48 * 128 * expert
    assert qwen.count.by_part["mlp.router"] == 48 * 128 * 2048


def _closed_form(c: dict[str, Any]) -> int:
    """embed + L x (attention + MLP + 2 norms) + final norm + head, written independently of the blocks."""
    h, inner, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    n, k = c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or h // n
    attention = 2 * h * n * d + 2 * h * k * d
    if c["attention_bias"]:
        attention += n * d + 2 * k * d + h
    mlp = 3 * h * inner + (2 * inner + h if c["mlp_bias"] else 0)
    return int(v * h * (1 if c["tie_word_embeddings"] else 2) + c["num_hidden_layers"] * (attention + mlp + 2 * h) + h)


@given(llama_configs())
def test_inventory_equals_closed_form(config: dict[str, Any]) -> None:
    """The sum over tensors is the textbook formula, whatever the shape."""
    model = build(config, "drawn")
    assert model.count.params == _closed_form(config)
    assert sum(tensor.elements for tensor in model.tensors) == model.count.checkpoint


@given(llama_configs())
def test_tying_saves_exactly_one_table(config: dict[str, Any]) -> None:
    """Tied embeddings save vocab_size x hidden_size parameters, no more and no less."""
    tied = build({**config, "tie_word_embeddings": True}, "tied").count.params
    untied = build({**config, "tie_word_embeddings": False}, "untied").count.params
    assert untied - tied == config["vocab_size"] * config["hidden_size"]


@given(llama_configs())
def test_grouped_queries_never_cost_more(config: dict[str, Any]) -> None:
    """GQA has at most the parameters and the cache of MHA."""
    grouped = build(config, "gqa")
    full = build({**config, "num_key_value_heads": config["num_attention_heads"]}, "mha")
    assert grouped.count.params <= full.count.params
    assert grouped.cache_shape.per_token() <= full.cache_shape.per_token()


@given(llama_configs())
def test_two_config_forms_agree(config: dict[str, Any]) -> None:
    """The hub's form, and what transformers 5 saves: layer_types, rope_parameters, dtype, nested text_config."""
    hub = {**config, "torch_dtype": "bfloat16", "rope_theta": 10000.0}
    text = {
        **config,
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] * config["num_hidden_layers"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    nested = {"model_type": "llava", "text_config": text, "tie_word_embeddings": config["tie_word_embeddings"]}
    forms = [build(form, "form") for form in (hub, text)]
    text_only = build({**nested, "model_type": "llama"}, "nested")
    assert forms[0].count == forms[1].count == text_only.count
    assert forms[0].caches == forms[1].caches == text_only.caches
    assert forms[0].config.dtype == forms[1].config.dtype == text_only.config.dtype == "bfloat16"


DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_layers": 40,
    "n_heads": 48,
    "vocab_size": 100_352,
    "max_seq_len": 32_768,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000},
    "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4},
}


def test_nested_configs_are_read() -> None:
    """DBRX keeps its shapes in attn_config and ffn_config: 132 B parameters, 36 B active, says its card."""
    model = build(DBRX, "dbrx")
    assert (model.count.params + 5 * 10**8) // 10**9 == 132
    assert (model.count.active + 5 * 10**8) // 10**9 == 36
    assert {(spec.kv_heads, spec.k_dim) for spec in model.caches} == {(8, 128)}


def test_nested_config_of_the_wrong_kind_is_refused() -> None:
    """attn_config is an object; anything else is refused by its name."""
    with pytest.raises(ConfigError, match="attn_config"):
        build({**DBRX, "attn_config": 8}, "dbrx")


def test_unknown_type_is_refused() -> None:
    """A model_type without a recipe names what is known and how to add one."""
    with pytest.raises(UnknownModelType, match="is not supported") as error:
        build({"model_type": "never_heard_of", "hidden_size": 8}, "some/model")
    assert "llama" in str(error.value)
    assert "docs/new-model-family.md" in str(error.value)
    assert "some/model" in str(error.value)


def test_a_type_in_another_spelling_is_suggested() -> None:
    """Llama is not llama to transformers either, and the error says what was meant."""
    with pytest.raises(UnknownModelType, match="Did you mean 'qwen3_moe'"):
        build({"model_type": "Qwen3-MoE", "hidden_size": 8}, "some/model")


def test_one_tensor_or_many_alike_ones() -> None:
    """8 experts of 3 x 5, of which a token reads 2: apart, stacked in a dimension of their own, or joined."""
    apart = Tensor("experts.*.up.weight", (3, 5), "mlp.experts", 8, 2)
    assert (apart.numel, apart.elements, apart.active_elements) == (15, 120, 30)
    assert list(apart.expand()) == [(f"experts.{number}.up.weight", (3, 5)) for number in range(8)]
    stacked = apart._replace(name="experts.up")
    assert list(stacked.expand()) == [("experts.up", (8, 3, 5))]
    assert list(stacked._replace(joined=True).expand()) == [("experts.up", (24, 5))]
    one = Tensor("norm.weight", (7,), "norms")
    assert (one.elements, one.active_elements) == (7, 7)
    assert list(one.expand()) == [("norm.weight", (7,))]
    assert list(one._replace(joined=True).expand()) == [("norm.weight", (7,))]
    # a scalar is one element
    assert Tensor("scale", (), "other").numel == 1


def test_a_sum_of_tensors() -> None:
    """Parameters, those that a token reads, and what lies beside them in the file; by bucket and by role."""
    total = count([
        Tensor("experts.*.up.weight", (3, 5), "mlp.experts", 8, 2),
        Tensor("router.weight", (8, 5), "mlp.router"),
        Tensor("norm.weight", (5,), "norms", 2),
        Tensor("norm.bias", (5,), "norms"),
        Tensor("tower.weight", (2, 2), "vision"),
        Tensor("router.bias", (8,), "mlp.router", part="checkpoint"),
    ])  # fmt: skip
    assert (total.params, total.active, total.checkpoint) == (120 + 40 + 15 + 4, 30 + 40 + 15 + 4, 179 + 8)
    assert total.by_part == {"mlp.experts": 120, "mlp.router": 40, "norms": 15, "vision": 4}
    assert total.by_role == {"embed": 0, "attn": 0, "mlp": 160, "norms": 15, "lm_head": 0, "other": 0, "vision": 4}


def shapes(config: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """(shape, role) by name."""
    return {tensor.name: (tensor.shape, tensor.role) for tensor in build(config, "drawn").tensors}


def test_gpt2_stores_its_matrices_as_in_out(model: Get) -> None:
    """Conv1D weights are (in, out), as in openai-community/gpt2-medium's file."""
    found = {tensor.name: tensor.shape for tensor in model("openai-community/gpt2-medium").tensors}
    assert found["transformer.h.0.attn.c_attn.weight"] == (1024, 3072)
    assert found["transformer.h.0.attn.c_attn.bias"] == (3072,)
    assert found["transformer.h.0.attn.c_proj.weight"] == (1024, 1024)
    assert found["transformer.h.0.mlp.c_fc.weight"] == (1024, 4096)


SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16,
}  # fmt: skip


def test_norms_of_queries_and_keys() -> None:
    """Qwen3: one of head_dim; OLMo-2: one of all heads; Cohere: a row a head, where it has them."""
    at = "model.layers.0.self_attn."
    qwen, olmo = (shapes({**SMALL, "model_type": kind}) for kind in ("qwen3", "olmo2"))
    assert (qwen[at + "q_norm.weight"], qwen[at + "k_norm.weight"]) == (((16,), "norms"),) * 2
    assert (olmo[at + "q_norm.weight"], olmo[at + "k_norm.weight"]) == (((64,), "norms"), ((32,), "norms"))
    cohere = {**SMALL, "model_type": "cohere", "use_qk_norm": True}
    found = shapes(cohere)
    assert (found[at + "q_norm.weight"], found[at + "k_norm.weight"]) == (((4, 16), "norms"), ((2, 16), "norms"))
    assert not any("q_norm" in name for name in shapes({**cohere, "use_qk_norm": False}))


def test_norms_with_a_bias() -> None:
    """Persimmon's are LayerNorms of head_dim: weights and biases are norms, both."""
    found = shapes({**SMALL, "model_type": "persimmon", "qk_layernorm": True})
    norms = {name: known for name, known in found.items() if "q_layernorm" in name or "k_layernorm" in name}
    assert sorted(name.rpartition(".")[2] for name in norms) == ["bias", "bias", "weight", "weight"]
    assert set(norms.values()) == {((16,), "norms")}


def test_heads_must_divide_the_hidden_size() -> None:
    """GPT-NeoX has no head_dim: 64 does not make 3 heads."""
    with pytest.raises(ConfigError, match="hidden_size"):
        build({**SMALL, "model_type": "gpt_neox", "num_attention_heads": 3}, "odd")


def test_layers_that_share_keys() -> None:
    """Gemma-4's last layers read an earlier layer's keys and values: they are named so and keep nothing."""
    config = {**SMALL, "model_type": "gemma4_text", "num_hidden_layers": 4, "num_kv_shared_layers": 2,
              "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}  # fmt: skip
    caches = build(config, "shared").caches
    assert [spec.kind for spec in caches] == ["sliding", "full", "shared", "shared"]
    assert [spec.per_token > 0 for spec in caches] == [True, True, False, False]
