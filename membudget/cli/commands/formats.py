"""Known weight formats and KV cache dtypes; with a model, what it takes in each, and which fit.

A row is what `membudget plan MODEL --format NAME --engine ENGINE` says, the least compressed first; without --engine
GGUF is planned for llama.cpp, which reads it, and all else for vLLM. Rows are what is published most; --all has
the rest, too.
Exit code 0: at least one format fits, or no machine is named; 1: none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from membudget import formats
from membudget.budgets.budget import unfiled
from membudget.budgets.settings import DEFAULT_ENGINE, declared, gguf_engine, is_gguf, kind_of, settings_of
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, choose_cache, context, count, find_model, model_argument
from membudget.cli.commands.engine_options import engine_name
from membudget.cli.commands.plan import find_many, plain_context
from membudget.data.defaults import MAX_CTX, MAX_USERS
from membudget.errors import MembudgetError
from membudget.formats import kv
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.ledger import Ledger, predict
from membudget.planning.words import users_text
from membudget.text.terminal import Terminal, table
from membudget.units import gib, short

_KEYS = ("name", "bits_per_layer_weight", "dense", "source", "suffixes")


def options(parser: Declares) -> None:
    """The arguments of `membudget formats`."""
    add = parser.add_argument
    model_argument(parser, optional=True)
    add("--machine", metavar="NAME", help="which formats fit it; or several, '2x dgx-spark'; default: weights alone")
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--ctx", metavar="N", help="tokens a user, 32768 or 32k; default: 8192, or the model's own if less")
    add("--users", metavar="N", help="sequences at once, each at full context; default: 1")
    add("--kv-cache-dtype", metavar="DTYPE", help="as vLLM spells it: auto, fp8, ...; default: auto")
    add("--all", action="store_true", help="every format; default: those that are published most")
    add("--engine", type=engine_name, choices=tuple(declared()), help="default: the one that reads the format")


class Row(NamedTuple):
    """One format of a model.

    weights: bytes, of one rank where several machines are named.  ledger: its plan where a machine is named.
    declared: the config's own, which is planned without a name.  common: published most.
    """

    name: str
    weights: int
    ledger: Ledger | None
    declared: bool = False
    common: bool = True

    def as_json(self) -> dict[str, Any]:
        """Bytes as integers, stable keys."""
        found: dict[str, Any] = {"format": self.name, "weights": self.weights, "common": self.common}
        if self.ledger is not None:
            found["engine"] = self.ledger.budget.engine.name
            found |= {
                name: getattr(self.ledger, name) for name in ("total", "headroom", "fits", "max_users", "max_ctx")
            }
        return found


def run(args: Arguments) -> Result:
    """List; or weigh a model in each."""
    if args.model is not None:
        return _of_model(args)
    given = [
        name for name in ("machine", "machines", "ctx", "users", "kv_cache_dtype", "engine") if getattr(args, name)
    ]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} asks what fits, and no MODEL is named to fit")
    rows = [tuple(row) for row in formats.describe()]
    dtypes = ["auto", *(name for name in kv.names() if name != "auto")]
    document = {"formats": [dict(zip(_KEYS, row, strict=False)) for row in rows], "kv_cache_dtypes": dtypes}
    return Result(0, document, lambda: _text(rows, dtypes))


def _of_model(args: Arguments) -> Result:
    if args.machine is None:
        given = [name for name in ("machines", "ctx", "users", "kv_cache_dtype", "engine") if getattr(args, name)]
        if given:
            raise InputError(f"--{given[0].replace('_', '-')} asks what fits: name a machine with --machine")
    users = count("--users", args.users or "1", MAX_USERS)
    ctx = None if args.ctx is None else context("--ctx", args.ctx, MAX_CTX)
    boxes = [] if args.machine is None else find_many([args.machine], args.machines)
    model, found = find_model(args)
    notes: list[str] = []
    ctx = plain_context(ctx, model, notes)
    declared = formats.of_config(model.config)
    own, known = declared.name, formats.names()
    # a published quantization may share its name with a plain format and not its bytes: both are rows then
    plain = own in known and formats.get(own).key == declared.key
    named = {name: formats.get(name) for name in known}
    forms = named if plain else {f"{own} (declared)": declared, **named}
    rows, refused = [], {}
    whose = None if own in ("fp32", "bf16", "fp16") else own
    most = declared.weigh(model).total
    kind = kind_of(args.engine) if args.engine else None
    for name, form in forms.items():
        try:
            if kind is not None and kind.gguf and not is_gguf(form):
                raise formats.FormatError(f"{kind.title} reads GGUF files alone: a q8_0 or another mix")
            weights = form.weigh(model).total
            ledger = None
            for many, machine in boxes:
                engine = kind_of(args.engine).name if args.engine else _reader(form)
                cache = choose_cache(args.kv_cache_dtype or "auto", form, model, found, engine)
                asked = (model, form, cache, ctx, users, machine)
                ledger = _plan(asked, engine, many, named=args.engine is not None)
            # what is published quantized is not quantized anew into more bytes; GGUF is made of what was unpacked
            more = whose is not None and not is_gguf(form) and weights > most
            seen = form is declared or name == own or (not more and formats.common(name, whose))
            rows.append(Row(name, weights if ledger is None else ledger.weights, ledger, form is declared, seen))
        except formats.FormatError as error:
            refused[name] = str(error)
    rows.sort(key=lambda row: -row.weights)
    shown = rows if args.all else [row for row in rows if row.common] or rows
    fits = [row for row in shown if row.ledger is None or row.ledger.fits]
    document = {
        "model": model.name,
        "params": model.count.params,
        "declared": own,
        "machine": args.machine,
        "ctx": ctx if args.machine else None,
        "users": users if args.machine else None,
        "formats": [row.as_json() for row in rows],
        "refused": refused,
        "notes": [*(notes if args.machine else []), *model.notes],
    }
    return Result(0 if fits else 1, document, lambda: _table(document, shown))


def _reader(form: formats.Format) -> str:
    """The engine that a format is planned for where none is named."""
    return gguf_engine().name if is_gguf(form) else DEFAULT_ENGINE


def _plan(
    asked: tuple[Model, formats.Format, str, int, int, Machine], engine: str, many: int, *, named: bool
) -> Ledger:
    """One row's plan.  named: the engine was asked for, so what it cannot do is not the format's to be refused for."""
    machine = asked[-1]
    kind = kind_of(engine)
    if not named and machine.platform not in kind.platforms:
        reader = gguf_engine().title
        raise formats.FormatError(f"{kind.title} has no Metal; {reader} reads GGUF (--engine plans for any other)")
    if why := kind.refuses(asked[1]):
        raise formats.FormatError(why)
    try:
        budget = unfiled(*asked, settings_of(engine), many)
    except MembudgetError as error:
        if not named:
            raise formats.FormatError(str(error)) from None
        raise InputError(f"--machine: {error}") from None
    return predict(budget)


def _table(document: dict[str, Any], rows: list[Row]) -> str:
    terminal = Terminal.of()
    lines = [f"{document['model']} · {document['params']:,} parameters · declared: {document['declared']}"]
    if rows and rows[0].ledger is not None:
        budget = rows[0].ledger.budget
        lines[0] += f" · {users_text(budget.users)} x {budget.ctx:,} tokens · {budget.machine_name}"
    cells: list[Sequence[str]] = []
    for name, weights, ledger, *_ in rows:
        row = [name, gib(weights)]
        if ledger is not None:
            room = f"{short(abs(ledger.headroom))} {'free' if ledger.fits else 'over'}"
            row += [gib(ledger.total), "fits" if ledger.fits else "no", room]
            row += [f"{ledger.max_users:,}", f"{ledger.max_ctx:,}", ledger.budget.engine.name]
        cells.append(row)
    heads = ["format", "weights", "total", "", "", "users that fit", "tokens each", "engine"]
    lines += ["", *table([heads[: len(cells[0])], *cells], "<>><>>><"[: len(cells[0])])] if cells else []
    reasons: dict[str, list[str]] = {}
    for name, why in document["refused"].items():
        reasons.setdefault(why, []).append(name)
    said = [f"not {_few(names)}: {why}" for why, names in reasons.items()]
    if left := len(document["formats"]) - len(rows):
        said.append(f"{left:,} less common ones: --all")
    said += document["notes"]
    if rows and rows[0].ledger is not None:
        fits = [row for row in rows if row.ledger is not None and row.ledger.fits]
        if fits:
            least = fits[0].ledger
            assert least is not None
            told = f"{len(fits):,} of {len(rows):,} formats fit; the least compressed of them is {fits[0].name}: "
            said.append(f"{told}{users_text(least.max_users)} would fit")
            said.append(f"as a plan: {_as_plan(document, fits[0])}")
        else:
            low = rows[-1].ledger
            assert low is not None
            told = f"none of {len(rows):,} formats fits; in {rows[-1].name}, the smallest, "
            said.append(f"{told}{low.short_text}")
    for text in said:
        lines += ["", *terminal.wrap(text)]
    return "\n".join(lines)


def _as_plan(document: dict[str, Any], row: Row) -> str:
    """The command that plans one row by itself."""
    import shlex

    assert row.ledger is not None
    budget = row.ledger.budget
    words = ["membudget", "plan", document["model"], "--machine", document["machine"], "--ctx", str(budget.ctx)]
    words += ["--users", str(budget.users), *([] if row.declared else ["--format", row.name])]
    words += ["--engine", budget.engine.name]
    return shlex.join([*words, "--kv-cache-dtype", budget.kv_cache_dtype])


def _text(rows: Sequence[Sequence[str]], dtypes: Sequence[str]) -> str:
    terminal = Terminal.of()
    lines = table([("format", "bits a layer weight", "not compressed", "as laid out by"), *(row[:4] for row in rows)])
    suffixes: dict[str, list[str]] = {}
    for row in rows:
        for suffix in row[4].split("; ") if len(row) > 4 and row[4] else ():
            suffixes.setdefault(suffix, []).append(row[0])
    if suffixes:
        lines += ["", "a format's name may go on:"]
        for suffix, names in suffixes.items():
            lines += terminal.wrap(f"{suffix} ({_few(names)})", "  ")
    lines += ["", *terminal.wrap("KV cache dtypes: " + ", ".join(dtypes))]
    return "\n".join(lines)


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} and {len(names) - 3} more"
