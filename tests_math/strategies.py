"""Every hypothesis strategy of the suite."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

sizes = st.integers(min_value=0, max_value=2**60)
contexts = st.integers(min_value=1, max_value=2**20)
user_counts = st.integers(min_value=1, max_value=4096)
#: A divisor pair (attention heads, key-value heads) as real models have them.
head_pairs = st.sampled_from([(1, 1), (4, 1), (8, 2), (8, 8), (16, 4), (32, 8), (40, 8), (64, 8), (64, 64)])


@st.composite
def llama_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A small Llama-shaped config.json with every key that changes a shape drawn."""
    heads, kv_heads = draw(head_pairs)
    head_dim = draw(st.sampled_from([None, 8, 16, 64, 80, 128]))
    hidden = heads * draw(st.sampled_from([8, 16, 32, 64])) if head_dim is None else draw(st.integers(8, 512))
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": draw(st.integers(1, 2048)),
        "num_hidden_layers": draw(st.integers(1, 6)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": draw(st.integers(8, 4096)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    return config


#: What people, scripts and cats type behind `membudget`.
_WORDS = [
    "plan", "count", "check", "fleet", "machines", "formats", "models", "schema", "pool", "init", "fetch",
    "log", "oracle", "help", "--help", "-h", "--version", "--json", "--ctx", "--users", "--machine",
    "--format", "--kv-cache-dtype", "--engine", "--why", "--layers", "--params", "--kv-heads", "--tp",
    "--gpu-memory-utilization", "--available-kv", "--as", "--offline", "--machines", "--node", "--ctx=8k",
    "--users=-1", "--", "-", "Qwen/Qwen3-8B", "dgx-spark", "rtx-4090", "this-machine", "bf16", "q4_k_m",
    "8", "32k", "0", "-1", "1e9", "nan", "60GiB", "8xh100", "budgets/", ".",
]  # fmt: skip
_words = st.one_of(
    st.sampled_from(_WORDS),
    st.text(max_size=12),
    st.text(alphabet=st.characters(codec=None, categories=("Cs", "Cc", "So")), max_size=4),
)
command_lines = st.one_of(
    st.lists(_words, max_size=8),
    st.tuples(st.sampled_from(["plan", "count", "fleet", "pool"]), st.just("Qwen/Qwen3-8B"), _words, _words).map(list),
)
