"""Types whose code lives with their checkpoints (trust_remote_code): no class of transformers reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from membudget.model.attention import Heads, fused_mha, gqa, kv_spec, mha_dim
from membudget.model.blocks import Block, Layer, dense_or, linear, norm, when
from membudget.model.caches import CacheSpec
from membudget.model.config import Config
from membudget.model.families.base import PRE, first_dense, qwen_window, register
from membudget.model.families.heads import MAX_HEADS
from membudget.model.feedforward import Shared, glu, mlp, moe, times
from membudget.model.tensors import Tensor

register("internlm", gqa(bias=lambda layer: layer.config.flag("bias", True)), glu())
register(
    "internlm2",
    gqa(bias="bias", fused="wqkv", name="attention.", names=("", "", "", "wo")),
    glu(name="feed_forward.", names=("w1", "w3", "w2")),
    norms=("attention_norm", "ffn_norm"),
    embed="tok_embeddings",
    head="output",
)
register("baichuan", fused_mha("self_attn.", "W_pack", "o_proj", bias=False), glu())
register("xverse llava_llama", gqa(), glu())
register("orion", gqa(bias="attention_bias"), glu(), norm_bias=True)
register("phi3_v", gqa(fused="qkv_proj"), glu(fused="gate_up_proj"))


def _half_width(layer: Layer) -> int:
    """Qwen (v1): intermediate_size counts gate and up together."""
    return layer.config.integer("intermediate_size") // 2


register(
    "qwen",
    fused_mha("attn.", "c_attn", "c_proj", bias=True, out_bias=False),
    glu(width=_half_width, name="mlp.", names=("w1", "w2", "c_proj")),
    norms=("ln_1", "ln_2"),
    root="transformer.",
    embed="wte",
    layers="h",
    final="ln_f",
)


def _rotary_table(name: str, width: Callable[[Layer], int], each: bool = False) -> Block:
    """A table of rotary frequencies that old checkpoints store: width / 2 numbers."""
    return Block(lambda layer: iter([Tensor(layer.prefix + name, (width(layer) // 2,), "other", part="checkpoint")]))


def _chatglm(config: Config) -> dict[str, Any]:
    """ChatGLM's names in the usual ones."""
    heads = config.integer("num_attention_heads")
    kv = config.integer("multi_query_group_num") if config.flag("multi_query_attention") else heads
    return {
        "vocab_size": config.integer("padded_vocab_size"),
        "head_dim": config.integer("kv_channels"),
        "num_key_value_heads": kv,
        "intermediate_size": config.integer("ffn_hidden_size"),
        "with_qkv_bias": config.flag("add_qkv_bias") or config.flag("add_bias_linear"),
    }


register(
    "chatglm",
    gqa(
        bias="with_qkv_bias",
        out_bias="add_bias_linear",
        fused="query_key_value",
        name="self_attention.",
        names=("", "", "", "dense"),
    ),
    glu(bias="add_bias_linear", fused="dense_h_to_4h", names=("", "", "dense_4h_to_h")),
    root="transformer.",
    embed="embedding.word_embeddings",
    layers="encoder.layers",
    final="encoder.final_layernorm",
    head="transformer.output_layer",
    # half of head_dim is rotated
    after=_rotary_table("rotary_pos_emb.inv_freq", lambda layer: layer.config.integer("head_dim") // 2),
    derive=_chatglm,
)
register(
    "minicpm",
    gqa(bias="attention_bias"),
    when(lambda layer: layer.config.size("num_experts") > 0, moe(width="intermediate_size"), glu()),
)
DEEPSEEK_EXPERTS = moe(shared=Shared(times("moe_intermediate_size", "n_shared_experts"), bias="mlp_bias"))
register(
    "deepseek unlimited_ocr_text",
    gqa(bias="attention_bias"),
    dense_or(DEEPSEEK_EXPERTS, glu(bias="mlp_bias")),
    ffn=first_dense(),
)


def _mimo_mtp(family: Any, config: Config) -> Iterator[Tensor]:
    """MiMo-7B: heads with their own input projection and norms."""
    hidden, last = config.integer("hidden_size"), family.layers(config)[-1]
    for index in range(config.integer("num_nextn_predict_layers", 0, minimum=0, maximum=MAX_HEADS)):
        layer = last.at(f"model.mtp_layers.{index}.")
        found = [tensor for block in family.blocks for tensor in block.tensors(layer)]
        found += linear(layer.prefix + "input_proj", hidden, 2 * hidden, "mtp")
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            found += norm(layer.prefix + name, hidden)
        for tensor in found:
            yield tensor._replace(role="mtp", part="checkpoint")


register(
    "mimo",
    gqa(bias=lambda layer: layer.config.flag("attention_bias", True), out_bias=False),
    glu(),
    kinds=qwen_window,
    mtp=_mimo_mtp,
)
register(
    "phi-msft",
    fused_mha("mixer.", "Wqkv", "out_proj", kv_heads=lambda layer: layer.config.kv_heads),
    mlp(
        width=lambda layer: layer.config.integer("intermediate_size", 4 * layer.config.integer("hidden_size")),
        names=("fc1", "fc2"),
    ),
    norms=("ln",),
    norm_bias=True,
    root="transformer.",
    embed="embd.wte",
    layers="h",
    final="",
    after=Block(lambda layer: norm("lm_head.ln", layer.config.integer("hidden_size"), True)),
    head="lm_head.linear",
    head_bias=True,
)
register(
    "phi3small",
    gqa(bias=True, fused="query_key_value", names=("", "", "", "dense")),
    glu(width="ff_intermediate_size", bias=True, fused="up_proj", names=("", "", "down_proj")),
    norm_bias=True,
    final="final_layernorm",
    derive=lambda config: {"tie_word_embeddings": config.flag("tie_word_embeddings", True)},
)


# ---- nemotron-nas: every layer has a shape of its own ------------------------------------------


def _nas(layer: Layer, part: str) -> Config:
    """What block_configs says of this layer's attention or ffn."""
    c = layer.config
    listed = c.get("block_configs")
    if not isinstance(listed, list) or len(listed) != c.layers or not isinstance(listed[layer.index], dict):
        raise c.error("block_configs", "is not a list of objects, one a layer", f"{c.layers} objects")
    return c.overlay(listed[layer.index]).section(part)


def _nas_kv(layer: Layer) -> int:
    group = _nas(layer, "attention").integer("n_heads_in_group")
    heads = layer.config.heads
    if heads % group:
        raise layer.config.error("block_configs", f"has n_heads_in_group {group}", f"divisors of {heads} heads")
    return heads // group


def _nas_width(layer: Layer) -> int:
    """ffn_mult times two thirds of hidden_size, rounded up to a multiple of 256."""
    width = int(2 * _nas(layer, "ffn").factor("ffn_mult") * layer.config.integer("hidden_size") / 3)
    return -(-width // 256) * 256


NAS_ATTENTION, NAS_MLP = (
    gqa(bias="attention_bias", sizes=Heads(kv_heads=_nas_kv)),
    glu(width=_nas_width, bias="mlp_bias"),
)


def _nas_layer(layer: Layer) -> Iterator[Tensor]:
    """Either part may be missing, or one linear layer."""
    c, at = layer.config, layer.prefix
    hidden = c.integer("hidden_size")
    for part, name, role, own, before in (
        ("attention", "self_attn.linear_attn", "attn", NAS_ATTENTION, PRE[0]),
        ("ffn", "mlp.linear_mlp", "mlp", NAS_MLP, PRE[1]),
    ):
        says = _nas(layer, part)
        if says.flag("no_op"):
            continue
        yield from norm(at + before, hidden)
        if says.flag("replace_with_linear"):
            yield from linear(at + name, hidden, hidden, role)
        else:
            yield from own.tensors(layer)


def _nas_cache(layer: Layer) -> CacheSpec:
    says = _nas(layer, "attention")
    if says.flag("no_op") or says.flag("replace_with_linear"):
        return CacheSpec(layer.index, "none")
    d = mha_dim(layer)
    return kv_spec(layer, _nas_kv(layer), d, d)


register("nemotron-nas", Block(_nas_layer, _nas_cache), norms=())
