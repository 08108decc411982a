"""How much a measurement takes at its worst moments: by the trace where there is one, by an upper bound where not.

A start is refused by this figure, so it is never the closed form alone: that is exact for Llama
and its like, and far too low for mixtures, MLA and recurrent layers.  Pure: no machine, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from membudget.engines import activations
from membudget.model import Model
from membudget.units import short

#: What the closed form is multiplied by where no trace has been made.  Traced on transformers 5.24 at 8,192 tokens:
#: Qwen3-30B-A3B 2.8, Nemotron-3-Nano 4.6, Qwen3.5-35B-A3B 5.0 times the closed form; a tiny hybrid whose prompt is
#: shorter than a chunk of its scan 16.
PLAIN, OTHER, RECURRENT = 2, 8, 32
#: Bytes of a mask for each pair of positions: two of booleans and one of 16-bit numbers.
MASK = 4
#: Kinds of cache whose layers have the temporaries that the closed form counts.
_PLAIN_CACHES = {"full", "sliding", "chunked", "none", "shared"}


@dataclass(frozen=True)
class Moment:
    """One measurement at its largest.  Sizes in bytes, over the weights."""

    group: str  # of lines
    trace: str  # the step whose peak says it exactly, cache included; "" where nothing traces it
    held: int  # the cache by then
    temporary: int  # an upper bound of everything else, for when there is no trace
    room: int | None = None  # what its own ceiling leaves; None where it has none of its own


@dataclass(frozen=True)
class Need:
    """The most memory at once."""

    bytes: int  # with the weights
    why: str  # which measurement, and what says so


def bound(model: Model, closed_form: int, tokens: int, sequences: int, width: int) -> int:
    """An upper bound of a step's temporaries where only the closed form is known.  Bytes.

    Windows need a mask of every position by every other, MLA every score: without a fused kernel for unlike
    keys and values they are all there.
    """
    most = closed_form * _times(model)
    kinds = {spec.kind for spec in model.caches}
    if kinds & {"sliding", "chunked"}:
        length = -(-tokens // sequences)
        most += MASK * length * length * sequences
    if "latent" in kinds:
        eager = activations.prefill(model, tokens, sequences=sequences, attention="eager", width=width)
        most = max(most, PLAIN * eager.bytes)
    return most


def behind(model: Model, held: int, tokens: int, sequences: int, step: int) -> int:
    """What a step takes more because of the `tokens` that are cached already (`held` bytes): an upper bound, bytes.

    A causal mask is no longer a square, so it is made: every position of the step by every cached one.  With a mask
    keys and values are repeated for every query head.  The layer that grows has its old and its new tensors at once.
    """
    layers = max(model.config.integer("num_hidden_layers"), 1)
    heads = model.config.integer("num_attention_heads")
    groups = heads // max(model.config.raw.get("num_key_value_heads") or heads, 1) if heads else 1
    return MASK * sequences * step * tokens + held // layers * (1 + max(groups, 1))


def _times(model: Model) -> int:
    """What the closed form is multiplied by: least where it was written for the model's layers."""
    kinds = {spec.kind for spec in model.caches}
    if any(spec.states for spec in model.caches) or kinds - _PLAIN_CACHES - {"latent"}:
        return RECURRENT
    mixture = any(role.endswith("experts") for role in model.count.by_part)
    return OTHER if mixture or "latent" in kinds else PLAIN


def needed(weights: int, moments: Iterable[Moment], found: Mapping[str, Mapping[str, Any]]) -> Need:
    """The largest of some moments, each by its trace where `found` has it.

    Weights count as the model's own class keeps them, where a trace has built it: routers in fp32, rotary tables.
    """
    base = weights
    for figures in found.values():
        if "peak" in figures and "weights" in figures:
            base = max(base, int(figures["weights"]) + int(figures.get("buffers", 0)))
    most, why = base, "the weights alone"
    for moment in moments:
        traced = found.get(moment.trace, {}).get("peak") if moment.trace else None
        if traced is None:
            over, said = moment.held + moment.temporary, f"the {moment.group} lines, not traced: an upper bound"
        else:
            over, said = int(traced), f"the {moment.group} lines, traced: {short(int(traced))} over the weights"
        if moment.room is not None and base + over > weights + moment.room:
            # its own ceiling stops it, weights included
            over, said = max(moment.room + weights - base, 0), f"the {moment.group} lines, up to their ceiling"
        if base + over > most:
            most, why = base + over, said
    return Need(most, why)
