"""Does a model fit? Four buckets in bytes for each machine, the verdict, and what would make it fit.

Exit code 0: it fits every machine named (without --machine: at least one of those shown); 1: it does not.
"""

from __future__ import annotations

import os
from typing import Any

from membudget.budgets.budget import Budget, unfiled
from membudget.budgets.settings import (
    DEFAULT_ENGINE,
    Settings,
    declared,
    gguf_engine,
    is_gguf,
    kind_of,
    parallel_sizes,
    settings_of,
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
    share,
)
from membudget.data.defaults import (
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_CTX,
    DEFAULT_OVERHEAD,
    IDLE_SHARE,
    MAX_CTX,
    MAX_USERS,
    SPARK_GPU,
)
from membudget.errors import MembudgetError
from membudget.machines import MAX_MACHINES, Machine
from membudget.model import Model
from membudget.planning.capacity import share_that_leaves
from membudget.planning.ledger import Ledger, predict
from membudget.report.plan import model_context, render
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
    add("--capacity", choices=("reported", "nominal"), default="reported", help="as the driver reports, or as sold")
    add("--engine", metavar="NAME", default=DEFAULT_ENGINE, help=f"{', '.join(declared())}; default: {DEFAULT_ENGINE}")
    add(
        "--max-num-batched-tokens",
        metavar="N",
        help=f"tokens of one prefill step; default: {DEFAULT_BATCHED_TOKENS:,}, or the engine's own",
    )
    add("--gpu-memory-utilization", metavar="X", help="the part of the memory that the engine may claim")
    add(
        "--tensor-parallel-size",
        metavar="N",
        help="ranks that share every layer; default: all machines of one --machine, / stages",
    )
    add(
        "--pipeline-parallel-size",
        metavar="N",
        help="pipeline stages; default: machines / tensor, else 1",
    )
    add("--attention", choices=("sdpa", "eager"), default="sdpa", help="eager holds every score; default: sdpa")
    add("--logits", choices=("last", "every"), default="last", help="positions whose logits are kept; default: last")
    add("--why", action="store_true", help="show each line's formula with its numbers")


def run(args: Arguments) -> Result:
    """Predict for every machine."""
    users = count("--users", args.users, MAX_USERS)
    ctx = None if args.ctx is None else context("--ctx", args.ctx, MAX_CTX)
    engine = _engine(args)
    boxes = find_many(args.machine, args.machines)
    for many, _ in boxes:
        _check_sizes(many, engine)
    model, found = find_model(args)
    notes: list[str] = []
    form = choose_format(args.format, model, found, notes)
    cache = choose_cache(args.kv_cache_dtype, form, model, found, engine.name)
    ctx = plain_context(ctx, model, notes)
    budgets = [unfiled(model, form, cache, ctx, users, machine, engine, many, args.capacity) for many, machine in boxes]
    ledgers = [_predicted(budget, args.model) for budget in budgets]
    notes += _notes(ledgers)
    fit = [ledger.fits for ledger in ledgers]
    code = 0 if (all(fit) if args.machine else any(fit)) else 1
    return Result(code, _document(ledgers, notes, found, code), lambda: _text(ledgers, notes, args.why))


def find_many(names: list[str] | None, file: str | None) -> list[tuple[int, Machine]]:
    """As `find_machines`, with how many of each: ``2x dgx-spark``."""
    if not names:
        return [(1, machine) for machine in find_machines(None, file)]
    from membudget.machines import counted

    found = [(many, find_machines([name], file)[0]) for many, name in map(counted, names)]
    return list({(many, machine.name): (many, machine) for many, machine in found}.values())


def _check_sizes(many: int, engine: Settings) -> None:
    try:
        parallel_sizes(many, engine)
    except MembudgetError as error:
        raise InputError(f"--machine, --tensor-parallel-size, --pipeline-parallel-size: {error}") from None


def find_machines(names: list[str] | None, file: str | None) -> list[Machine]:
    """The machines that were named, else this one where it has a GPU and a few known ones."""
    from membudget.host.detect import find_machine

    files = () if file is None else (file,)
    if not names:
        names = [*_here(), *DEFAULT_MACHINES]
    return list({machine.name: machine for machine in (find_machine(name, files) for name in names)}.values())


def _here() -> list[str]:
    """This machine where it has a GPU and says what it is: nobody asked for it by name."""
    from membudget import machines
    from membudget.host.detect import DetectError, detect

    if not os.path.exists(_GPU):
        return []
    try:
        detect()
    except DetectError:
        return []
    return [machines.THIS_MACHINE]


def _engine(args: Arguments) -> Settings:
    chunk, part = args.max_num_batched_tokens, args.gpu_memory_utilization
    given = {
        "tensor_parallel_size": ("--tensor-parallel-size", args.tensor_parallel_size),
        "pipeline_parallel_size": ("--pipeline-parallel-size", args.pipeline_parallel_size),
    }
    sizes = {name: count(option, text, MAX_MACHINES) for name, (option, text) in given.items() if text is not None}
    return settings_of(
        args.engine,
        None if chunk is None else context("--max-num-batched-tokens", chunk, MAX_CTX),
        attention=args.attention,
        logits=args.logits,
        gpu_memory_utilization=None if part is None else share("--gpu-memory-utilization", part),
        options=sizes,
    )


def _predicted(budget: Budget, asked: str) -> Ledger:
    """The plan; a format that does not apply to the model's shapes says where those that do are listed."""
    from membudget.formats import FormatError

    try:
        return predict(budget)
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


def _notes(ledgers: list[Ledger]) -> list[str]:
    first = ledgers[0].budget
    notes = [f"not counted: {part}" for part in first.model.unknown]
    notes += first.model.notes
    assumed = first.model.config.assumed()
    if assumed:
        values = ", ".join(f"{key} {value:,}" if isinstance(value, int) else key for key, value in assumed.items())
        notes.insert(0, f"not in the config.json, so as the class {first.model.model_type} has it: {values}")
    kind, reader = kind_of(first.engine.name), gguf_engine()
    if not kind.gguf and is_gguf(first.format):
        notes.append(
            f"{first.format.name} is GGUF: {reader.title} reads it (--engine {reader.name} plans for that), "
            f"{first.engine.name} does not or not any more"
        )
    foreign = [one.budget.machine for one in ledgers if one.budget.machine.platform not in kind.platforms]
    if foreign and kind.claims:
        names = ", ".join(machine.name for machine in foreign)
        notes.append(f"{kind.title} has no Metal, as {names} needs: --engine {reader.name} plans for {reader.title}")
    if first.model.unproven:
        notes.insert(0, f"unproven: {first.model.model_type} read as {first.model.read_as} at your word")
    cross = [spec for spec in first.model.caches if spec.kind == "cross"]
    if cross:
        from membudget.formats import kv

        size = sum(map(kv.get(first.kv_cache_dtype).token_bytes, cross))
        notes.append(f"not counted: {size:,} B of cross-attention cache for every encoder token that a user keeps")
    for ledger in ledgers:
        if ledger.ranks:
            from membudget.report.ranks import notes as rank_notes

            notes += rank_notes(ledger)
    if first.overhead is DEFAULT_OVERHEAD:
        parts = ", ".join(f"{name} {both(size).partition(' (')[0]}" for name, size in DEFAULT_OVERHEAD.items())
        notes.append(f"overhead is assumed until it is measured: {parts}")
    for ledger in ledgers:
        notes += [f"{ledger.budget.machine.name}: {note}" for note in ledger.budget.machine.notes]
    unified = [ledger.budget for ledger in ledgers if ledger.budget.os_bytes]
    if unified:
        reserves = dict.fromkeys(f"{both(b.os_bytes).partition(' (')[0]} on {b.machine.name}" for b in unified)
        notes.append(f"left to the operating system: {', '.join(reserves)}, assumed until it is measured")
    for ledger in ledgers:
        notes += _memory_notes(ledger)
    return notes + _pool_note(ledgers[0])


def _memory_notes(ledger: Ledger) -> list[str]:
    """What the machine's memory asks of whoever starts this: vLLM's share, what is available now, a reserve."""
    budget, notes = ledger.budget, []
    machine = budget.machine
    unified = machine.unified and machine.platform == "cuda"
    if unified and not budget.os_bytes:
        notes.append(
            f"{machine.name}: its memory is the system's too, and nothing is left to it: give it an os_reserve"
        )
    share = budget.engine.gpu_memory_utilization
    if unified and kind_of(budget.engine.name).claims and share is None and ledger.fits:
        notes.append(f"{machine.name}: {_share_note(ledger)}")
    notes += available_now(machine, budget.os_bytes)
    return notes


def _pool_note(ledger: Ledger) -> list[str]:
    """Where vLLM's blocks hold other bytes than the tokens in them: windows, states, pages that are padded."""
    budget = ledger.budget
    kinds = {spec.kind for spec in budget.model.caches} | {"state" for spec in budget.model.caches if spec.states}
    if not kind_of(budget.engine.name).claims or not kinds & {"sliding", "chunked", "state"}:
        return []
    return [
        "what vLLM's blocks hold of windows and recurrent states is more than the tokens in them, so fewer users may "
        f"start than fit here: `membudget pool {budget.model.name} --machine {budget.machine.name}` has its own figures"
    ]


def _share_note(ledger: Ledger) -> str:
    """Which part of memory that the system shares vLLM must be given for this, and what that leaves."""
    budget = ledger.budget
    least = -(-(ledger.total - budget.os_bytes) * 100 // budget.capacity) / 100
    most = share_that_leaves(budget)
    text = "vLLM takes a share of the memory, 0.92 unless told otherwise; "
    if most is None or least > most:
        return text + "no share in hundredths holds this and leaves the operating system its part: fewer users do"
    text += f"--gpu-memory-utilization {least:.2f} is enough for this, above {most:.2f} it takes the operating system's"
    if SPARK_GPU in budget.machine.title and least > IDLE_SHARE:
        text += f"; an idle Spark was seen to give {IDLE_SHARE} and keep 12 GiB free, which is less than this needs"
    return text + "; `membudget doctor` on the machine says what is free there now"


def _document(ledgers: list[Ledger], notes: list[str], found: Located, code: int) -> dict[str, Any]:
    plans = [ledger.as_json() for ledger in ledgers]
    for plan in plans:
        plan.update(source=found.source, model_max_ctx=model_context(ledgers[0].budget.model), notes=notes)
    if len(plans) == 1:
        return plans[0]
    return {"model": plans[0]["model"], "fits": code == 0, "plans": plans}


def _text(ledgers: list[Ledger], notes: list[str], why: bool) -> str:
    return render(ledgers, notes, Terminal.of(), why)
