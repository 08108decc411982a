"""Does a model fit? Four buckets in bytes for each machine, the verdict, and what would make it fit.

Exit code 0: it fits every machine named (without --machine: at least one of those shown); 1: it does not.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

from membudget import machines
from membudget.budgets.budget import Budget, unfiled
from membudget.budgets.settings import (
    DEFAULT_ENGINE,
    Settings,
    declared,
    default_engine,
    gguf_engine,
    is_gguf,
    kind_of,
    parallel_sizes,
    served_dtype,
)
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import (
    InputError,
    available_now,
    choose_cache,
    choose_format,
    context,
    count,
    find_model,
    model_argument,
    size_with_unit,
)
from membudget.cli.commands.engine_options import add_engine_options, engine_name, engine_settings
from membudget.data.defaults import (
    DEFAULT_CTX,
    DEFAULT_OVERHEAD,
    MAX_CTX,
    MAX_USERS,
)
from membudget.engines.base import LayoutError
from membudget.errors import MembudgetError
from membudget.formats import FormatError, kv
from membudget.host.detect import DetectError, detect, find_machine
from membudget.machines import Machine, counted
from membudget.model import Model
from membudget.planning.ledger import Ledger, predict
from membudget.report import compare
from membudget.report.plan import model_context, render
from membudget.report.ranks import notes as rank_notes
from membudget.sources.locate import Located
from membudget.text.terminal import Terminal
from membudget.units import both

#: Shown when no machine is named: a desktop box, a server's card, a gamer's card.
DEFAULT_MACHINES = ("dgx-spark", "h100-80gb", "rtx-4090")
#: There where NVIDIA's driver is loaded.
_GPU = "/proc/driver/nvidia/version"


def options(parser: Declares) -> None:
    """The arguments of `membudget plan`."""
    add = parser.add_argument
    model_argument(parser)
    add("--format", metavar="NAME", help="weight format (`membudget formats`); default: the one its config declares")
    add("--kv-cache-dtype", metavar="DTYPE", default="auto", help="as vLLM spells it: auto, fp8, ...; default: auto")
    add("--ctx", metavar="N", help="tokens a user, 32768 or 32k; default: 8192, or the model's own if less")
    add("--users", metavar="N", default="1", help="sequences at once, each at full context; default: 1")
    add(
        "--machine", metavar="NAME", action="append", help="or several, '2x dgx-spark'; may be repeated; default: a few"
    )
    add("--machines", metavar="FILE", help="a YAML file with machines of your own")
    add("--capacity", metavar="SIZE", default="reported", help="of the machine; reported (default), nominal, or 100GiB")
    add("--os-reserve", metavar="SIZE", help="left to the operating system; default: the machine's")
    add("--overhead", metavar="SIZE", help="CUDA context and all beside the model; default: assumed or measured")
    add(
        "--engine", type=engine_name, choices=tuple(declared()),
        help=f"default: {DEFAULT_ENGINE}; of GGUF and on a Mac {gguf_engine().name}",
    )  # fmt: skip
    add_engine_options(parser)
    add("--command", action="store_true", help="print what to type for this plan, and nothing else")
    add("--brief", action="store_true", help="a line a machine, what serves the most users first")
    add("--why", action="store_true", help="show each line's formula with its numbers")


def run(args: Arguments) -> Result:
    """Predict for every machine."""
    users = count("--users", args.users, MAX_USERS)
    ctx = None if args.ctx is None else context("--ctx", args.ctx, MAX_CTX)
    named = None if args.engine is None else kind_of(args.engine).name
    if named:
        engine_settings(args, named)  # an option of another engine is refused before anything is looked up
    convention, beside = _memory(args)
    boxes = [(many, _sized(machine, args.capacity)) for many, machine in find_many(args.machine, args.machines)]
    model, found = find_model(args)
    notes: list[str] = []
    form = choose_format(args.format, model, found, notes)
    ledgers: list[Ledger] = []
    refused: list[tuple[str, MembudgetError]] = []
    for many, machine in boxes:
        try:
            engine = engine_settings(args, named or default_engine(form, machine).name)
            many = _several(many, engine)
            cache = _cache(args.kv_cache_dtype, engine)
            cache = choose_cache(cache, form, model, found, engine.name, served_dtype(engine))
            tokens, engine = _tokens(ctx, engine, users, model, notes)
            budget = unfiled(model, form, cache, tokens, users, machine, engine, many, convention)
            budget = replace(budget, **beside)
            ledgers.append(_predicted(budget, args.model))
        except MembudgetError as error:
            if len(boxes) == 1:
                raise
            refused.append((machine.name if many == 1 else f"{many}x {machine.name}", error))
    if not ledgers:
        raise refused[0][1]
    notes += _notes(ledgers, named is None)
    notes += [f"{name}: {error}" for name, error in refused]
    fit = [ledger.fits for ledger in ledgers] + [False] * len(refused)
    code = 0 if (all(fit) if args.machine else any(fit)) else 1
    if args.command:
        return Result(code, _document(ledgers, refused, notes, found, code), lambda: _commands(ledgers))
    document = _document(ledgers, refused, notes, found, code)
    if args.brief and len(boxes) > 1:
        failed = [(name, str(error)) for name, error in refused]
        return Result(code, document, lambda: compare.render(ledgers, failed, args.model, Terminal.of()))
    return Result(code, document, lambda: _text(ledgers, notes, args.why))


_CONVENTIONS = ("reported", "nominal")


def _memory(args: Arguments) -> tuple[str, dict[str, Any]]:
    """The convention of capacity, and a budget's own sizes beside the model: as typed, in place of what is assumed."""
    beside: dict[str, Any] = {}
    if args.os_reserve is not None:
        beside["os_reserve"] = size_with_unit("--os-reserve", args.os_reserve)
    if args.overhead is not None:
        beside["overhead"] = {"cuda_context": size_with_unit("--overhead", args.overhead)}
    return args.capacity if args.capacity in _CONVENTIONS else "reported", beside


def _sized(machine: Machine, capacity: str) -> Machine:
    """The machine with so much memory, where a size is given."""
    if capacity in _CONVENTIONS:
        return machine
    try:
        memory = size_with_unit("--capacity", capacity)
    except InputError as error:
        raise InputError(f"{error}; or one of {', '.join(_CONVENTIONS)}") from None
    return replace(machine, memory=memory, cuda_total=memory, cuda_total_low=None, cuda_total_high=None)


def _cache(name: str, engine: Settings) -> str:
    """The KV cache dtype that is asked for: as given, else what the engine's own options say of keys and values."""
    given = {engine.options.get(option) for option in kind_of(engine.name).cache_options}
    only = given.pop() if len(given) == 1 else None
    return str(only) if only and name.strip().lower() == "auto" else name


def _tokens(ctx: int | None, engine: Settings, users: int, model: Model, notes: list[str]) -> tuple[int, Settings]:
    """The context of a user: as given, else by the engine's own options, else as `plain_context`; noted once."""
    own, left = None, engine.options
    if ctx is None:
        own, left = kind_of(engine.name).context(engine.options, users, model_context(model))
    said: list[str] = []
    found = plain_context(own if own is not None else ctx, model, said)
    if own is not None:
        said.insert(0, f"{own:,} tokens of context: a user's part by the engine's own options")
    notes += [note for note in said if note not in notes]
    return found, replace(engine, options=left)


def _several(many: int, engine: Settings) -> int:
    """How many machines: as named, or as many as parallel sizes ask for where one is named."""
    sizes = [engine.options.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data")]
    many = math.prod(sizes) if many == 1 else many
    try:
        parallel_sizes(many, engine)
    except MembudgetError as error:
        raise InputError(f"--machine, --tensor-, --pipeline-, --data-parallel-size: {error}") from None
    return many


def _commands(ledgers: list[Ledger]) -> str:
    """What to type, one line a machine; what does not start has none."""
    return "\n".join(ledger.answer.command for ledger in ledgers if ledger.answer.command)


def find_many(names: list[str] | None, file: str | None) -> list[tuple[int, Machine]]:
    """As `find_machines`, with how many of each: ``2x dgx-spark``."""
    if not names:
        return [(1, machine) for machine in find_machines(None, file)]
    found = [(many, find_machines([name], file)[0]) for many, name in map(counted, names)]
    return list({(many, machine.name): (many, machine) for many, machine in found}.values())


def find_machines(names: list[str] | None, file: str | None) -> list[Machine]:
    """The machines that were named, else this one where it has a GPU and a few known ones."""
    files = () if file is None else (file,)
    if not names:
        names = [*_here(), *DEFAULT_MACHINES]
    return list({machine.name: machine for machine in (find_machine(name, files) for name in names)}.values())


def _here() -> list[str]:
    """This machine where it has a GPU and says what it is: nobody asked for it by name."""
    if not os.path.exists(_GPU):
        return []
    try:
        detect()
    except DetectError:
        return []
    return [machines.THIS_MACHINE]


def _predicted(budget: Budget, asked: str) -> Ledger:
    """The plan; a format that does not apply to the model's shapes says where those that do are listed."""
    try:
        return predict(budget)
    except LayoutError:
        raise
    except FormatError as error:
        machine = f" --machine {budget.machine_name!r}" if budget.machines > 1 else ""
        raise FormatError(f"{error}; `membudget formats {asked}{machine}` has those that apply") from None


def plain_context(ctx: int | None, model: Model, notes: list[str]) -> int:
    """The context that is meant: as given, else 8,192 tokens, or the model's own if less; says which in `notes`."""
    most = model_context(model)
    if ctx is None:
        ctx = min(DEFAULT_CTX, most or DEFAULT_CTX)
        takes = f"; the model takes {most:,}" if most else ""
        notes.append(f"{ctx:,} tokens of context, because --ctx is not given{takes}")
    elif most is not None and ctx > most:
        notes.append(f"{ctx:,} tokens of context are more than the model's max_position_embeddings {most:,}")
    return ctx


def _notes(ledgers: list[Ledger], chosen: bool) -> list[str]:
    """What a reader should know.  chosen: the engine was not named."""
    first = ledgers[0].budget
    notes = [f"not counted: {part}" for part in first.model.unknown]
    notes += first.model.notes
    assumed = first.model.config.assumed()
    if assumed:
        values = ", ".join(f"{key} {value:,}" if isinstance(value, int) else key for key, value in assumed.items())
        notes.insert(0, f"not in the config.json, so as the class {first.model.model_type} has it: {values}")
    notes += _engine_notes(ledgers, chosen)
    if first.model.unproven:
        notes.insert(0, f"treated as {first.model.read_as} because of --as; {first.model.model_type} is not verified")
    cross = [spec for spec in first.model.caches if spec.kind == "cross"]
    if cross:
        size = sum(map(kv.get(first.kv_cache_dtype).token_bytes, cross))
        notes.append(f"not counted: {size:,} B of cross-attention cache for every encoder token of a user")
    for ledger in ledgers:
        if ledger.ranks:
            notes += rank_notes(ledger)
    parts = {line.part for ledger in ledgers for line in ledger.lines}
    if first.overhead is DEFAULT_OVERHEAD and parts >= set(DEFAULT_OVERHEAD):
        shown = ", ".join(f"{name} {both(size).partition(' (')[0]}" for name, size in DEFAULT_OVERHEAD.items())
        notes.append(f"overhead is assumed until it is measured: {shown}")
    for ledger in ledgers:
        notes += [f"{ledger.budget.machine.name}: {note}" for note in ledger.budget.machine.notes]
    unified = [ledger.budget for ledger in ledgers if ledger.budget.os_bytes and ledger.budget.os_reserve is None]
    if unified:
        reserves = dict.fromkeys(f"{both(b.os_bytes).partition(' (')[0]} on {b.machine.name}" for b in unified)
        notes.append(f"left to the operating system: {', '.join(reserves)}, assumed until it is measured")
    for ledger in ledgers:
        notes += _memory_notes(ledger)
    return notes


def _engine_notes(ledgers: list[Ledger], chosen: bool) -> list[str]:
    """Which engine was chosen and why, what it does not read or run on, and what its answers say."""
    notes, reader = [], gguf_engine()
    for ledger in ledgers:
        budget, kind = ledger.budget, kind_of(ledger.budget.engine.name)
        if chosen and kind.name != DEFAULT_ENGINE:
            why = f"{kind_of(DEFAULT_ENGINE).title} does not run on {budget.machine.name}, {budget.machine.platform}"
            why = f"{budget.format.name} is GGUF" if is_gguf(budget.format) else why
            notes.append(f"planned for {kind.title}: {why} (--engine names another)")
        elif not kind.gguf and is_gguf(budget.format):
            notes.append(
                f"{budget.format.name} is GGUF: {reader.title} reads it (--engine {reader.name}), "
                f"{kind.title} does not, or no longer"
            )
        notes += [note.text for note in ledger.answer.notes]
    return list(dict.fromkeys(notes))


def _memory_notes(ledger: Ledger) -> list[str]:
    """What the machine's memory asks of whoever starts this: what is available now, a reserve."""
    machine = ledger.budget.machine
    notes = []
    if machine.unified and machine.platform == "cuda" and not ledger.budget.os_bytes:
        notes.append(f"{machine.name}: CPU and GPU share its memory; give it an os_reserve")
    return notes + available_now(machine, ledger.budget.os_bytes)


def _document(
    ledgers: list[Ledger], refused: list[tuple[str, MembudgetError]], notes: list[str], found: Located, code: int
) -> dict[str, Any]:
    plans = [ledger.as_json() for ledger in ledgers]
    for plan in plans:
        plan.update(source=found.source, model_max_ctx=model_context(ledgers[0].budget.model), notes=notes)
    plans += [{"machine": name, "error": {"code": why.code, "message": str(why)}} for name, why in refused]
    if len(plans) == 1:
        return plans[0]
    return {"model": plans[0]["model"], "fits": code == 0, "plans": plans}


def _text(ledgers: list[Ledger], notes: list[str], why: bool) -> str:
    return render(ledgers, notes, Terminal.of(), why)
