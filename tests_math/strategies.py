"""Every hypothesis strategy of the suite."""

from __future__ import annotations

import json
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


@st.composite
def tolerances(draw: st.DrawFn, unit: str = "bytes") -> Any:
    """Any tolerance of a budget's lines."""
    from membudget.budgets.tolerance import EXACT, Tolerance

    kind = draw(st.sampled_from(["exact", "within", "within+", "below"]))
    if kind == "exact":
        return EXACT
    if kind != "below" and draw(st.booleans()):
        return Tolerance(kind, draw(st.integers(0, 10**11)), "%")
    return Tolerance(kind, draw(st.integers(0, 2**60)), unit)


@st.composite
def size_texts(draw: st.DrawFn) -> str:
    """A size as people write it, a whole number of bytes."""
    unit = draw(st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"]))
    number = draw(st.integers(0, 999_999))
    text = draw(st.sampled_from([f"{number}", f"{number:_}"]))
    half = ".5" if unit != "B" and draw(st.booleans()) else ""
    return f"{text}{half}{draw(st.sampled_from(['', ' ']))}{unit}"


#: What a budget file must refuse wherever a number, a size or a word stands, as JSON values.
budget_junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 0),
    st.sampled_from([0.5, 8.25, -1.5]),
    st.sampled_from(
        ["", " ", "8G", "8 gb", "32k", "010", "1e3", "12:30", "on", "yes", "8,192", "-8", "x" * 70, "within 1", "GiB"]
    ),
    st.just([]),
    st.just({}),
    st.just({"on": True}),
    st.just([[1]]),
)


@st.composite
def budget_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A budget file's content as JSON: good, or with a few fields spoilt, left out or invented."""
    count = st.one_of(st.integers(1, 2**24), st.sampled_from(["8Ki", "32 Ki", "1Mi", "9_000", "12345"]))
    counts = st.one_of(count, st.lists(count, min_size=1, max_size=3, unique_by=str))
    words = st.sampled_from(["bf16", "fp8", "dgx-spark", "Qwen/Qwen3-8B", "./config.json"])
    size = size_texts()
    number = st.one_of(
        st.integers(0, 2**60),
        st.sampled_from(["8_030_261_248", "within 1% of 100", "within +2 of 1_000", "below 10", "within 2 of 8Ki"]),
    )
    bytes_expected = st.one_of(
        st.integers(0, 2**60),
        size,
        size.map(lambda text: f"within 0.5% of {text}"),
        size.map(lambda text: f"below {text}"),
        size.map(lambda text: f"within +{text} of {text}"),
    )
    share = st.sampled_from([0.25, 0.5, 1, 0.85])
    vllm = {"gpu_memory_utilization": share, "block_size": count, "enforce_eager": st.booleans()}
    measured = {"weights": tolerances().map(str), "pool_tokens": tolerances("count").map(str)}
    broken = {"attention": "eager", "ctx": "16Ki", "outcome": "out_of_memory", "expect": {"scores": "16 GiB"}}
    parts: dict[str, st.SearchStrategy[Any]] = {
        "model": st.one_of(words, st.lists(words, min_size=1, max_size=2, unique=True)),
        "format": words,
        "kv_cache_dtype": words,
        "ctx": counts,
        "users": counts,
        "machine": words,
        "why": st.text("abc xyz.", min_size=1).filter(str.strip),
        "engine": st.one_of(
            st.fixed_dictionaries({"vllm": st.fixed_dictionaries({}, optional=vllm)}),
            st.just({"transformers": {"attention": "eager", "logits": "every"}}),
            st.just({"llama_cpp": {"n_ubatch": 512}}),
        ),
        "overhead": st.fixed_dictionaries({}, optional={"cuda_context": size, "non_torch": size}),
        "os_reserve": size,
        "capacity": st.sampled_from(["reported", "nominal"]),
        "expect": st.fixed_dictionaries(
            {},
            optional={"fits": st.booleans(), "params": number, "weights": bytes_expected, "max_users": number,
                      "headroom": st.one_of(st.integers(-(2**50), 2**50), size.map(lambda text: f"-{text}"))},
        ),
        "measure": st.fixed_dictionaries({}, optional=measured),
        "break": st.just([broken]),
        "ceiling": size,
    }  # fmt: skip
    fields = draw(st.sets(st.sampled_from(sorted(parts)))) | set(
        draw(st.sampled_from([(), ("model", "ctx", "users", "machine")]))
    )
    # A copy: what is spoilt below may be an object that other draws share.
    document = json.loads(json.dumps({name: draw(parts[name]) for name in parts if name in fields}))
    for _ in range(draw(st.integers(0, 2))):
        place: Any = document
        while isinstance(place, (dict, list)) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], (dict, list)) or draw(st.booleans()):
                place[key] = json.loads(json.dumps(draw(budget_junk)))
                break
            place = place[key]
        if isinstance(place, dict) and draw(st.integers(0, 3)) == 0:
            place[draw(st.sampled_from(["contex", "users ", "Model", "on", "fits"]))] = json.loads(
                json.dumps(draw(budget_junk))
            )
    return document


@st.composite
def _pool_caches(draw: st.DrawFn) -> Any:
    """Layers of one model's caches: full, sliding and chunked, of one or two widths."""
    from membudget.model import CacheSpec

    count = draw(st.integers(1, 24))
    kinds = draw(st.sampled_from([("full",), ("sliding",), ("full", "sliding"), ("full", "chunked"), ("chunked",)]))
    window = draw(st.sampled_from([16, 128, 1000, 4096]))
    heads, dim = draw(st.sampled_from([(1, 64), (2, 128), (8, 128), (16, 256)]))
    wide = draw(st.sampled_from([1, 1, 2, 4]))
    pattern = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    return tuple(
        CacheSpec(i, kind, heads * (wide if kind == "full" else 1), dim, dim, 0 if kind == "full" else window)
        for i, kind in enumerate(pattern)
    )


#: What a model's layers keep, for vLLM's pool.
pool_caches = _pool_caches()
