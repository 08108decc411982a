"""Dense decoders of the Llama kind: gated or plain MLPs behind grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator

from membudget.model.attention import Heads, QkNorm, gqa
from membudget.model.blocks import Block, Layer, buffer, norms, together, weight, when
from membudget.model.families.base import (
    PRE,
    SANDWICH,
    alternating,
    one_full_in,
    pattern,
    qwen_window,
    register,
    sliding_if_set,
    unrotated_slide,
)
from membudget.model.feedforward import glu, half_gated, mlp
from membudget.model.tensors import Tensor

LLAMA = gqa(bias="attention_bias")
QK_HEAD = gqa(bias="attention_bias", norm=QkNorm("head"))
POST = ("post_attention_layernorm", "post_feedforward_layernorm")


def _stale_rotary(layer: Layer) -> Iterator[Tensor]:
    """Llama checkpoints that transformers before 4.32 saved hold each layer's rotary frequencies."""
    version = str(layer.config.get("transformers_version") or "").split(".")
    if len(version) > 1 and version[0] == "4" and version[1].isdigit() and int(version[1]) < 32:
        name = layer.prefix + "self_attn.rotary_emb.inv_freq"
        yield Tensor(name, (layer.config.head_dim // 2,), "other", part="checkpoint")


register("llama", LLAMA, glu(bias="mlp_bias"), Block(_stale_rotary))
register("emu3_text_model internlm3 iquestcoder granite granite_docling_text", LLAMA, glu(bias="mlp_bias"))
register("smollm3", LLAMA, glu(bias="mlp_bias"), kinds=unrotated_slide)
ONE_FULL_THEN_THREE = pattern("full_attention", "sliding_attention", "sliding_attention", "sliding_attention")
register("cwm", LLAMA, glu(bias="mlp_bias"), kinds=ONE_FULL_THEN_THREE)
register("mistral ministral ministral3", LLAMA, glu(bias="mlp_bias"), kinds=sliding_if_set)
register("helium", gqa(bias="attention_bias", out_bias=False, sizes=Heads(out_in="hidden_size")), glu(bias="mlp_bias"))
register("hyperclovax", LLAMA, glu(bias="mlp_bias"), when("use_post_norm", norms("post_norm1", "post_norm2")))
register("ernie4_5 paddleocr_vl_text", gqa(bias="use_bias"), glu(bias="use_bias"))
register("gemma", LLAMA, glu())
register(
    "qwen2 qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text",
    gqa(bias=True, out_bias=False),
    glu(),
    kinds=qwen_window,
)
register("seed_oss", gqa(bias="attention_bias", out_bias="attention_out_bias"), glu(bias="mlp_bias"))
register("arcee", LLAMA, mlp(bias="mlp_bias"))
register("qwen3 qwen3_vl_text", QK_HEAD, glu(), kinds=qwen_window)
register("gemma2", LLAMA, glu(), norms=SANDWICH, kinds=alternating)
register("vaultgemma", LLAMA, glu(), norms=("input_layernorm", "pre_feedforward_layernorm"), kinds=alternating)
register("gemma3_text", QK_HEAD, glu(), norms=SANDWICH, kinds=one_full_in(6))
register("exaone4", gqa(norm=QkNorm("head")), glu(), norms=POST, kinds=one_full_in(4))
register("olmo2", gqa(bias="attention_bias", norm=QkNorm("full")), glu(), norms=POST)
register("olmo3", gqa(bias="attention_bias", norm=QkNorm("full")), glu(), norms=POST, kinds=one_full_in(4))
register("olmo", LLAMA, glu(), norms=(), final="")
register(
    "cohere",
    gqa(bias="attention_bias", norm=QkNorm("cohere", when="use_qk_norm")),
    glu(),
    norms=("input_layernorm",),
)
register("cohere2", LLAMA, glu(), norms=("input_layernorm",), kinds=one_full_in(4))
register("glm", gqa(bias="attention_bias", out_bias=False), glu(fused="gate_up_proj"))
register(
    "glm4 glm_ocr_text",
    gqa(bias="attention_bias", out_bias=False),
    glu(fused="gate_up_proj"),
    norms=(*PRE, "post_self_attn_layernorm", "post_mlp_layernorm"),
)
register(
    "glm4v_text",
    gqa(bias=True, out_bias=False),
    glu(fused="gate_up_proj"),
    norms=(*PRE, "post_self_attn_layernorm", "post_mlp_layernorm"),
)
register("phi3", gqa(fused="qkv_proj"), glu(fused="gate_up_proj"), kinds=sliding_if_set)
register(
    "phi",
    gqa(
        bias=True,
        norm=QkNorm("head_ln", when="qk_layernorm", names=("q_layernorm", "k_layernorm")),
        names=("q_proj", "k_proj", "v_proj", "dense"),
    ),
    mlp(names=("fc1", "fc2")),
    norms=("input_layernorm",),
    norm_bias=True,
    final="final_layernorm",
    head_bias=True,
)
register(
    "stablelm",
    gqa(
        bias="use_qkv_bias",
        out_bias=False,
        norm=QkNorm("each", when="qk_layernorm", names=("q_layernorm", "k_layernorm")),
    ),
    glu(),
    norms("input_layernorm", bias=True),
    when("use_parallel_residual", norms(), norms("post_attention_layernorm", bias=True)),
    norms=(),
    final_bias=True,
)
register(
    "starcoder2",
    gqa(bias="use_bias"),
    mlp(bias="use_bias", names=("c_fc", "c_proj")),
    norm_bias=True,
    kinds=sliding_if_set,
)
register("jais2 nemotron", LLAMA, mlp(bias="mlp_bias"), norm_bias=True)
register(
    "exaone",
    gqa(
        bias="attention_bias",
        name="attn.attention.",
        names=("q_proj", "k_proj", "v_proj", "out_proj"),
    ),
    glu(bias="mlp_bias", names=("c_fc_0", "c_fc_1", "c_proj")),
    norms=("ln_1", "ln_2"),
    root="transformer.",
    embed="wte",
    layers="h",
    final="ln_f",
)
register("nanochat", LLAMA, mlp(bias=False, names=("fc1", "fc2")), norms=(), final="")
register(
    "bitnet",
    together(gqa(bias="attention_bias"), norms("self_attn.attn_sub_norm")),
    glu(),
    weight("mlp.ffn_sub_norm.weight", "intermediate_size", role="norms"),
)
register(
    "hunyuan_v1_dense",
    gqa(bias="attention_bias", norm=QkNorm("head", names=("query_layernorm", "key_layernorm"))),
    glu(),
)
register(
    "diffllama",
    LLAMA,
    *(
        weight(f"self_attn.lambda_{part}", lambda layer: layer.config.head_dim, role="attn")
        for part in ("q1", "k1", "q2", "k2")
    ),
    glu(),
)
register("granite_swa", gqa(bias="attention_bias", sinks="sinks"), glu(bias="mlp_bias"), kinds=ONE_FULL_THEN_THREE)
register(
    "moshi",
    gqa(names=("q_proj.linear", "k_proj.linear", "v_proj.linear", "o_proj.linear")),
    half_gated("mlp.", "ffn_dim"),
    tied=False,
    kinds=sliding_if_set,
    embed_size=(lambda layer: layer.config.integer("vocab_size") + 1, "hidden_size"),
    head_size=("vocab_size", "hidden_size"),
)
APERTUS = mlp(bias=False), weight("mlp.act_fn.alpha_p", 1, role="mlp"), weight("mlp.act_fn.alpha_n", 1, role="mlp")
register(
    "apertus apertus1p5_text",
    QK_HEAD,
    *APERTUS,
    buffer("mlp.act_fn.beta", role="mlp"),
    buffer("mlp.act_fn.eps", role="mlp"),
    norms=("attention_layernorm", "feedforward_layernorm"),
)
