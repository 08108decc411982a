"""Dense decoders."""

from __future__ import annotations

from membudget.model.blocks import glu, gqa
from membudget.model.families.base import one_full_in, qwen_window, register, sliding_if_set

SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

register("llama", "smollm3", attention=gqa(bias="attention_bias"), mlp=glu(bias="mlp_bias"))
register("mistral", "ministral3", attention=gqa(), mlp=glu(), kinds=sliding_if_set)
register("qwen2", attention=gqa(bias=True, out_bias=False), mlp=glu(), kinds=qwen_window)
register("qwen3", attention=gqa(bias="attention_bias", qk_norm="head"), mlp=glu(), kinds=qwen_window)
register("phi3", attention=gqa(fused=True), mlp=glu(fused=True), kinds=sliding_if_set)
register(
    "gemma",
    attention=gqa(bias="attention_bias"),
    mlp=glu(),
    defaults={"tie_word_embeddings": True, "head_dim": 256},
)
register(
    "gemma2",
    attention=gqa(bias="attention_bias"),
    mlp=glu(),
    norms=SANDWICH,
    kinds=lambda c: ["full_attention" if i % 2 else "sliding_attention" for i in range(c.layers)],
    defaults={"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096},
)
register(
    "gemma3_text",
    attention=gqa(bias="attention_bias", qk_norm="head"),
    mlp=glu(),
    norms=SANDWICH,
    kinds=one_full_in(6),
    defaults={"tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096},
)
register(
    "olmo2",
    attention=gqa(bias="attention_bias", qk_norm="full"),
    mlp=glu(),
    norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
