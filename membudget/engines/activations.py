"""One step's temporaries: the peak that must fit beside weights and cache.

Closed forms, byte-exact for Llama on transformers 5.24 (fake-tensor peak; the KV
cache is not in them), with N tokens, H hidden, F MLP width, h heads, d head_dim,
V vocab, s bytes an element:

    fused attention   s N (U + F + 4H) + 2s N d + 8 N      the MLP is the peak
    every logit       s N V + s N H                        the head is
    eager attention   10 h N^2 + 2 N^2 + 2s h N d + 4s N H + 2s N d + 8 N   (16-bit s)

U is what gate and up projections put out (2F when gated, F when not); the four H are
two residual sums, the norm's output and the input embeddings that forward() keeps.
A mixture counts the experts that one token is sent to.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.model import Model


class Peak(NamedTuple):
    """The largest moment of one phase: bytes, which moment it is, the formula with its numbers."""

    phase: str
    moment: str
    bytes: int
    why: str


class Widths(NamedTuple):
    """What a token is wide where: elements a token, at the widest layer.  mlp: U + F."""

    hidden: int
    mlp: int
    heads: int
    head_dim: int
    vocab: int


def widths(model: Model) -> Widths:
    """Read the widths off the inventory (kept on the model)."""
    found = model.memo.get("widths")
    if found is None:
        found = model.memo["widths"] = _widths(model)
    return found


def decode(model: Model, users: int, width: int = 2) -> Peak:
    """One token for each of `users` sequences: (4H + U + F) x s bytes a user."""
    w = widths(model)
    return Peak(
        "decode",
        "mlp",
        decode_bytes(w, users, width),
        f"{users:,} users x (4 x {w.hidden:,} + {w.mlp:,}) x {width} bytes",
    )


def prefill(
    model: Model,
    tokens: int,
    *,
    sequences: int = 1,
    attention: str = "sdpa",
    logits: str = "last",
    width: int = 2,
) -> Peak:
    """`tokens` in one forward, split evenly over `sequences`; the largest of its moments.

    attention: ``sdpa`` (or any fused kernel: no N x N scores) or ``eager``.
    logits: ``last`` position of each sequence, or ``every`` position.
    """
    w = widths(model)
    size = prefill_bytes(w, tokens, sequences, attention, logits, width)
    rows = tokens if logits == "every" else sequences
    if size == _mlp_bytes(w, tokens, width):
        return Peak("prefill", "mlp", size, _mlp_why(w, tokens, width))
    if size == _head_bytes(w, tokens, rows, width):
        return Peak("prefill", "logits", size, _head_why(w, tokens, rows, width))
    return Peak("prefill", "eager attention", size, _eager_why(w, -(-tokens // sequences), sequences, width))


def decode_bytes(w: Widths, users: int, width: int) -> int:
    """The bytes of `decode`, without the words."""
    return users * (4 * w.hidden + w.mlp) * width


def prefill_bytes(w: Widths, tokens: int, sequences: int, attention: str, logits: str, width: int) -> int:
    """The bytes of `prefill`, without the words."""
    rows = tokens if logits == "every" else sequences
    size = max(_mlp_bytes(w, tokens, width), _head_bytes(w, tokens, rows, width))
    if attention == "eager":
        size = max(size, _eager_bytes(w, -(-tokens // sequences), sequences, width))
    return size


def coefficients(w: Widths, width: int) -> dict[str, dict[str, int]]:
    """Every moment as a sum of coefficient x quantity, for arithmetic outside Python; the peak is the largest.

    Quantities: users; tokens of the prefill step; rows of logits; and with L = ceil(tokens / sequences),
    squares = sequences x L^2 and padded = sequences x L.
    """
    return {
        "decode": {"users": decode_bytes(w, 1, width)},
        "mlp": {"tokens": _mlp_bytes(w, 1, width)},
        "logits": {"rows": _head_bytes(w, 0, 1, width), "tokens": _head_bytes(w, 1, 0, width)},
        "eager attention": {"squares": _scores(w, width) + width, "padded": _eager_rest(w, 1, width)},
    }


def eager_scores(model: Model, tokens: int, width: int = 2) -> int:
    """The score matrix alone, one layer: heads x N^2 x s bytes, before any fp32 copy."""
    return widths(model).heads * tokens * tokens * width


def logits_bytes(model: Model, positions: int, width: int = 2) -> int:
    """The logits of that many positions: positions x V x s bytes."""
    return positions * widths(model).vocab * width


def _mlp_bytes(w: Widths, tokens: int, width: int) -> int:
    return tokens * (width * (w.mlp + 4 * w.hidden) + 2 * width * w.head_dim + 8)


def _mlp_why(w: Widths, tokens: int, width: int) -> str:
    wide = f"{width} x ({w.mlp:,} + 4 x {w.hidden:,})"
    return f"{tokens:,} tokens x ({wide} + {2 * width} x {w.head_dim} + 8) bytes"


def _head_bytes(w: Widths, tokens: int, rows: int, width: int) -> int:
    return width * (rows * w.vocab + tokens * w.hidden)


def _head_why(w: Widths, tokens: int, rows: int, width: int) -> str:
    return f"{rows:,} logits rows x {w.vocab:,} x {width} + {tokens:,} tokens x {w.hidden:,} x {width} bytes"


def _eager_bytes(w: Widths, length: int, sequences: int, width: int) -> int:
    return sequences * (_scores(w, width) * length * length + width * length * length + _eager_rest(w, length, width))


def _eager_why(w: Widths, length: int, sequences: int, width: int) -> str:
    scores = f"{w.heads} heads x {length:,}^2 x {_scores(w, width) // w.heads}"
    return f"{sequences:,} x ({scores} + {length:,}^2 x {width} + {_eager_rest(w, length, width):,}) bytes"


def _scores(w: Widths, width: int) -> int:
    """Bytes a pair of positions, all heads; 16 bit: masked scores, their fp32 copy and the fp32 softmax together."""
    return w.heads * (width + 4 + 4 if width == 2 else 2 * width)


def _eager_rest(w: Widths, length: int, width: int) -> int:
    return length * (2 * width * w.heads * w.head_dim + 4 * width * w.hidden + 2 * width * w.head_dim + 8)


def _widths(model: Model) -> Widths:
    config = model.config
    hidden = config.integer("hidden_size")
    # experts of a latent mixture read and write its latent (Nemotron 3 Super)
    outer = (hidden, config.get("moe_latent_size"))
    layers: dict[str, int] = {}
    for tensor in model.tensors:
        if not tensor.role.startswith("mlp") or tensor.role == "mlp.router" or len(tensor.shape) != 2:
            continue
        copies = tensor.copies if tensor.active is None else tensor.active
        key = _layer_key(tensor.name)
        layers[key] = layers.get(key, 0) + _inner(*tensor.shape, outer) * copies
    mlp = max(layers.values(), default=0)
    vocab = config.integer("vocab_size")
    heads = config.integer("num_attention_heads", 1)
    return Widths(hidden, mlp, heads, _head_dim(model), vocab)


def _inner(first: int, second: int, outer: tuple[object, ...]) -> int:
    """U or F of a matrix, whatever it is called and whichever way it is stored; 0 where no side is an outer one."""
    for size in outer:
        if size in (first, second):
            return first if second == size else second
    return 0


def _head_dim(model: Model) -> int:
    return max((spec.k_dim or spec.latent + spec.rope for spec in model.caches), default=0)


def _layer_key(name: str) -> str:
    parts = name.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ""
