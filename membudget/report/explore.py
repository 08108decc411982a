"""The page to play with a plan: Python's coefficients and piecewise rules, evaluated by `static/ledger.js`.

No number is computed twice in two ways: weights, cache and overhead travel as bytes, activations as
coefficients (`membudget.engines.transformers.activations.coefficients`), and what the script does with them are the
sums, minima and maxima of `membudget.planning.ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from membudget import __version__, formats
from membudget.budgets.settings import declared, is_gguf
from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, DEFAULT_OVERHEAD, DRAWN, MAX_CTX, MAX_USERS, SMALL_STEP
from membudget.engines.llama_cpp import cells as llama_cpp
from membudget.engines.transformers import activations
from membudget.formats import Format, kv
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.suggestions import foreign_formats, most_share
from membudget.report import html
from membudget.report.plan import model_context


class Choice(NamedTuple):
    """One model of the page.  format, kv_cache_dtype: what it starts with.  notes: what a reader should know."""

    model: Model
    format: Format
    kv_cache_dtype: str
    notes: tuple[str, ...] = ()


class Start(NamedTuple):
    """Where the sliders stand at first; machines: the names whose bars are shown."""

    ctx: int
    users: int
    machines: tuple[str, ...]


def render(choices: Sequence[Choice], machines: Iterable[Machine], start: Start) -> str:
    """The whole page."""
    names = [choice.model.name for choice in choices]
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return html.page(
        "explore.html",
        f"{title}: memory",
        styles=("base.css", "explore.css"),
        scripts=("ledger.js", "curve.js", "explore.js"),
        data=document(choices, machines, start),
    )


def document(choices: Sequence[Choice], machines: Iterable[Machine], start: Start) -> dict[str, Any]:
    """What the page knows, as JSON: sizes in bytes, whole numbers below 2^53."""
    return {
        "version": __version__,
        "drawn": DRAWN,
        "models": [_model(choice) for choice in choices],
        "machines": [_machine(machine) for machine in machines],
        "overhead": DEFAULT_OVERHEAD,
        "engines": {
            name: {
                "batched_tokens": kind.batched_tokens,
                "kv": kind.kv,
                "small_cache": kind.small_cache,
                "smaller": [one.format for one in kind.smaller],
                "smallest": [one.format for one in kind.smallest],
            }
            for name, kind in declared().items()
        },
        "gguf": foreign_formats(),
        "small_step": SMALL_STEP,
        "cells": llama_cpp.PAD,
        "max": {"ctx": MAX_CTX, "users": MAX_USERS},
        "start": {**start._asdict(), "batched": DEFAULT_BATCHED_TOKENS},
    }


def _model(choice: Choice) -> dict[str, Any]:
    model = choice.model
    own = published(choice)
    forms = {own: choice.format, **{name: formats.get(name) for name in formats.names()}}
    wide = activations.widths(model)
    return {
        "name": model.name,
        "type": model.model_type,
        "params": model.count.params,
        "active": model.count.active,
        "max_ctx": model_context(model),
        "unknown": list(model.unknown),
        "notes": list(choice.notes),
        "format": own,
        "kv_cache_dtype": choice.kv_cache_dtype,
        "formats": {name: _weights(form, model) for name, form in forms.items()},
        "caches": {name: _cache(name, model) for name in dict.fromkeys([*kv.names()[1:], choice.kv_cache_dtype])},
        "activations": {str(width): activations.coefficients(wide, width) for width in (2, 4)},
    }


def published(choice: Choice) -> str:
    """What the page calls the format that a model starts with.

    A published quantization may share its name with a plain format and not its bytes (experts in fp4): it is
    then an entry of its own.
    """
    name = choice.format.name
    try:
        alike = formats.get(name).key == choice.format.key
    except formats.UnknownFormat:
        return name
    return name if alike else f"{name} (published)"


def _weights(form: Format, model: Model) -> dict[str, Any]:
    """name: what suggestions call it.  width: bytes an element of a temporary, as `planning.capacity` has it."""
    try:
        weights = form.weigh(model)
    except formats.FormatError as error:
        return {"error": str(error)}
    width = 4 if form.name == "fp32" else 2
    found = {"name": form.name, "bytes": weights.total, "active": weights.active, "width": width}
    return {**found, "gguf": is_gguf(form)}


def _cache(name: str, model: Model) -> dict[str, Any]:
    """engine: whose dtype it is, as `membudget.budgets.budget.EngineKind` has it; null for any.

    llama_cpp: the cells of one slot, or the error that refuses them.
    """
    engine = kv.get(name).engine
    try:
        found = kv.cache(model, name)._asdict()
    except formats.FormatError as error:
        return {"error": str(error)}
    try:
        cells = llama_cpp.slot(model, name)
        slot: dict[str, Any] = {"grows": cells.grows, "fixed": cells.fixed}
    except formats.FormatError as error:
        slot = {"error": str(error)}
    return {**found, "engine": None if engine == "any" else engine, "llama_cpp": slot}


def _machine(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "title": machine.title,
        "reported": machine.memory,
        "nominal": machine.nominal,
        "unified": machine.unified,
        "most_share": most_share(machine),
        "os_reserve": machine.os_reserve,
        "cuda_total": machine.cuda_total,
        "bandwidth": machine.bandwidth,
        "notes": list(machine.notes),
    }
