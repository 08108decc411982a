"""A plan as text: four buckets as a waterfall towards the machine's memory, the verdict, what it rests on."""

from __future__ import annotations

import shlex

from membudget.budgets.settings import kind_of
from membudget.engines import share
from membudget.engines.base import Limit, sums_of
from membudget.model import Model
from membudget.planning.ledger import BUCKETS, Ledger
from membudget.text.terminal import Terminal, columns, plain
from membudget.units import both, short

_NAME, _SIZE = 12, 11
#: Columns from which on sizes also stand in GB.
_DECIMAL = 60


def render(ledgers: list[Ledger], notes: list[str], terminal: Terminal, why: bool = False) -> str:
    """All machines of one plan, one below the other, and the notes that hold for all."""
    lines = headline(ledgers[0], terminal)
    for ledger in ledgers:
        lines.append("")
        lines += _machine(ledger, terminal, why)
    if notes:
        lines += ["", terminal.paint("notes", "bold")]
        for note in notes:
            lines += terminal.wrap(note, "  ", "- ")
    return "\n".join(lines)


def headline(ledger: Ledger, terminal: Terminal) -> list[str]:
    """The model, its weights and cache, the users, the engine."""
    budget = ledger.budget
    count = budget.model.count
    params = f"{count.params:,} parameters"
    if count.active != count.params:
        params += f", {count.active:,} active"
    cache = f"{getattr(ledger.answer.details, 'cache', '') or budget.kv_cache_dtype} KV cache"
    run = [
        f"{_users(budget.users)} x {budget.ctx:,} tokens",
        _growth(ledger),
        _engine(ledger),
    ]
    name = terminal.paint(plain(budget.model.name), "bold")
    return [
        *terminal.headline(name, params, f"{budget.format.name} weights", cache),
        *terminal.headline(*run),
    ]


def _engine(ledger: Ledger) -> str:
    """The engine, and what of it moves bytes: its version, or its attention."""
    engine = ledger.budget.engine
    version = getattr(ledger.answer.details, "version", "")
    return f"{engine.name} {version}" if version else f"{engine.name}, {engine.attention} attention"


def _growth(ledger: Ledger) -> str:
    """Bytes a token; where windows or states make that one figure lie, a whole sequence and what more tokens add.

    llama.cpp has cells in place of tokens, 256 at a time.
    """
    budget, grows = ledger.budget, ledger.kv_per_token_at_ctx
    if ledger.kv_per_request == grows * budget.ctx:
        return f"{both(grows)} a token"
    what = "cell" if kind_of(budget.engine.name).cells else "token"
    return f"{both(ledger.kv_per_request)} a user, {both(grows)} a {what} more"


def _machine(ledger: Ledger, terminal: Terminal, why: bool) -> list[str]:
    machine, capacity = ledger.budget.machine, ledger.capacity
    kind = "unified memory" if machine.unified else "memory"
    said = "" if ledger.budget.convention == "reported" else f", {ledger.budget.convention} capacity"
    verdict = terminal.paint("fits", "good", "bold") if ledger.fits else terminal.paint("does not fit", "bad", "bold")
    each = " each" if ledger.budget.machines > 1 else ""
    parts = [terminal.paint(_machine_name(ledger), "bold"), f"{both(capacity)}{each} {kind}{said}"]
    # the line that the bars must not cross: the machine, or what the engine may claim of it
    claim, limit = ledger.answer.limit, capacity
    if claim is not None:
        limit = min(capacity, claim + ledger.budget.os_bytes)
        parts.append(f"{short(claim)} for {ledger.budget.engine.name}")
    lines = terminal.headline(*parts, verdict)
    decimal = terminal.width >= _DECIMAL
    cells = max(terminal.width - _NAME - (2 if decimal else 1) * _SIZE - 6, 2)
    scale, start = max(capacity, ledger.total), 0
    for bucket in BUCKETS:
        size = ledger.sums[bucket]
        lines.append(
            _row(bucket, size, decimal) + "  " + terminal.bar(start, start + size, limit, scale, cells, bucket)
        )
        lines[-1] = lines[-1].rstrip()
        start += size
    total, end = _row("total", ledger.total, decimal), _end(ledger, terminal)
    narrow = len(total) + 2 + columns(end) > terminal.width
    lines += [total, f"  {end}"] if narrow else [f"{total}  {end}"]
    if ledger.ranks:
        from membudget.report.ranks import table

        lines += table(ledger, terminal)
    if ledger.answer.host:
        lines += terminal.wrap(host_text(ledger), "  ")
    if why:
        for line in (*ledger.lines, *ledger.answer.host):
            place = " in RAM" if line.place else ""
            lines += terminal.wrap(f"{line.bucket}, {line.part}{place}: {line.why} = {line.bytes:,} B", "    ")
    lines += terminal.wrap(ledger.verdict, "  ")
    lines += terminal.wrap(_most(ledger), "  ")
    step = ledger.step_seconds
    if step and ledger.fits:
        users = ledger.budget.users
        all_users = f" ({users / step:,.1f} in all)" if users != 1 else ""
        lines += terminal.wrap(
            f"decode: at most {1 / step:,.1f} tokens/s a user{all_users}, an upper bound: a step reads "
            f"{short(ledger.bytes_read)} at {machine.bandwidth / 10**9:,.0f} GB/s and takes {_time(step)} or more",
            "  ",
        )
    if ledger.answer.command and ledger.fits:
        lines += ["", *command_lines(ledger.answer.command, terminal.width)]
    return lines


def host_text(ledger: Ledger) -> str:
    """What lies in RAM beside the devices, by bucket."""
    sums = sums_of(ledger.answer.host)
    parts = [f"{bucket} {short(size)}" for bucket, size in sums.items() if size]
    return f"in RAM beside it: {', '.join(parts)}, total {short(sum(sums.values()))}"


def command_lines(command: str, width: int) -> list[str]:
    """A command as it is typed; where it is too wide, on lines that a shell reads as one."""
    lines = [""]
    for word in shlex.split(command):
        typed = shlex.quote(word)
        if lines[-1] and len(lines[-1]) + len(typed) + 5 > width:
            lines.append("")
        lines[-1] += f" {typed}" if lines[-1] else f"  {typed}" if len(lines) == 1 else f"    {typed}"
    return [f"{line} \\" if place < len(lines) - 1 else line for place, line in enumerate(lines)]


def _machine_name(ledger: Ledger) -> str:
    many, name = ledger.budget.machines, plain(ledger.budget.machine.name)
    return name if many == 1 else f"{many}x {name}"


def _row(name: str, size: int, with_decimal: bool) -> str:
    binary, _, decimal = both(size).partition(" (")
    line = f"  {name:<{_NAME}}{binary:>{_SIZE}}"
    return f"{line}{decimal.rstrip(')'):>{_SIZE}}" if with_decimal else line


def _end(ledger: Ledger, terminal: Terminal) -> str:
    if ledger.fits:
        return terminal.paint(f"{short(ledger.headroom)} free", "good")
    if ledger.headroom >= 0:
        return terminal.paint(f"{short(ledger.headroom)} free, {ledger.limiting_bucket}", "bad")
    if ledger.answer.limiting is Limit.SHARE:
        return terminal.paint(
            f"{short(-(share.room_beside(ledger.budget.device, ledger.budget.engine) or 0))} of the system's claimed",
            "bad",
        )
    return terminal.paint(f"{short(-ledger.headroom)} over", "bad")


def _most(ledger: Ledger) -> str:
    budget = ledger.budget
    if ledger.answer.limiting is Limit.SHARE:
        return "the claim is the same for any number of users and any context"
    users, ctx = ledger.max_users, ledger.max_ctx
    most_users = f"at most {_users(users)} at once" if users else "not even one user"
    concurrency = ledger.answer.concurrency
    if concurrency is not None:
        most_users += f" (concurrency {concurrency:.2f}x, a worst case reserved at the start)"
    most_ctx = f"at most {ctx:,} tokens each" if ctx else "no context fits"
    own = model_context(budget.model)
    if own is not None and ctx > own:
        most_ctx += f" (the model takes {own:,})"
    return f"at {budget.ctx:,} tokens: {most_users}; for {_users(budget.users)}: {most_ctx}"


def model_context(model: Model) -> int | None:
    """The most tokens that the model's positions allow; None where its config does not say."""
    return None if model.longest.assumed else model.longest.most


def _users(number: int) -> str:
    return f"{number:,} user{'s' if number != 1 else ''}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
