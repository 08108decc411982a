"""The page to play with a plan: a table of coefficients from Python, summed by `static/ledger.js`.

Weights, overhead and reserves travel as bytes, caches and activations as coefficients of tokens and users
(`_terms`, `membudget.engines.activations.coefficients`).  What the page says when it opens, suggestions
included, is what `membudget plan` says; for what is moved by hand the script sums the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from membudget import __version__, formats
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Declared, Settings, declared, is_gguf
from membudget.data.defaults import DEFAULT_BATCHED_TOKENS, DEFAULT_OVERHEAD, DRAWN, MAX_CTX, MAX_USERS
from membudget.engines import activations
from membudget.formats import Format, FormatError, kv
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.ledger import predict
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
        engines=list(summed()),
    )


def document(choices: Sequence[Choice], machines: Iterable[Machine], start: Start) -> dict[str, Any]:
    """What the page knows, as JSON: sizes in bytes, whole numbers below 2^53.

    start.verdicts: what `membudget plan` says of the first model on each machine, as the page opens.
    """
    known = list(machines)
    verdicts = {machine.name: predict(budget_of(choices[0], machine, start)).verdict for machine in known}
    return {
        "version": __version__,
        "drawn": DRAWN,
        "models": [_model(choice) for choice in choices],
        "machines": [_machine(machine) for machine in known],
        "overhead": DEFAULT_OVERHEAD,
        "engines": {
            name: {
                "batched_tokens": kind.batched_tokens,
                "kv": kind.kv,
                "small_cache": kind.small_cache,
                "smaller": [one.format for one in kind.smaller],
                "smallest": [one.format for one in kind.smallest],
            }
            for name, kind in summed().items()
        },
        "max": {"ctx": MAX_CTX, "users": MAX_USERS},
        "start": {**start._asdict(), "batched": DEFAULT_BATCHED_TOKENS, "verdicts": verdicts},
    }


def budget_of(choice: Choice, machine: Machine, start: Start) -> Budget:
    """What the page asks when it opens, as a budget."""
    return Budget(
        id="page",
        model=choice.model,
        format=choice.format,
        kv_cache_dtype=choice.kv_cache_dtype,
        ctx=start.ctx,
        users=start.users,
        machine=machine,
        engine=Settings("arithmetic"),
    )


def summed() -> dict[str, Declared]:
    """The engines whose plan is a sum of coefficients; of the others the page has what Python says."""
    found = {name: kind for name, kind in declared().items() if not (kind.claims or kind.cells)}
    return dict(sorted(found.items(), key=lambda item: item[0] != "arithmetic"))


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
    except FormatError as error:
        return {"error": str(error)}
    width = 4 if form.name == "fp32" else 2
    found = {"name": form.name, "bytes": weights.total, "active": weights.active, "width": width}
    return {**found, "gguf": is_gguf(form)}


def _cache(name: str, model: Model) -> dict[str, Any]:
    """One KV cache dtype.  engine: whose it is, None for any.  by: its coefficients by engine, or why it is refused."""
    engine = kv.get(name).engine
    try:
        found = kv.cache(model, name)
    except FormatError as error:
        return {"error": str(error)}
    plain = _terms(found.fixed, found.grows, found.entries)
    return {"engine": None if engine == "any" else engine, "by": dict.fromkeys(summed(), plain)}


def _terms(
    fixed: int, grows: Iterable[tuple[int, int | None]], entries: Iterable[tuple[int, int]] = ()
) -> dict[str, Any]:
    """One user's cache as a table of coefficients.

    fixed: bytes whatever the tokens.  terms: [bytes, window, rate]: bytes x floor(kept / rate), where kept is the
    tokens, at most the window (0 for none).
    """
    terms = [[size, window or 0, 1] for size, window in grows] + [[size, 0, rate] for size, rate in entries]
    return {"fixed": fixed, "terms": terms}


def _machine(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "title": machine.title,
        "reported": machine.memory,
        "nominal": machine.nominal,
        "unified": machine.unified,
        "os_reserve": machine.os_reserve,
        "cuda_total": machine.cuda_total,
        "bandwidth": machine.bandwidth,
        "notes": list(machine.notes),
    }
