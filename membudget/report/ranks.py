"""Several machines in a plan: one line a rank, and what the layout rests on."""

from __future__ import annotations

from typing import Any

from membudget.budgets.settings import kind_of
from membudget.planning.ledger import BUCKETS, Ledger, Rank
from membudget.planning.words import ranks_text
from membudget.text.terminal import Terminal
from membudget.units import short


def table(ledger: Ledger, terminal: Terminal) -> list[str]:
    """The layout, and a line for ranks that hold the same: what each holds, and whether it fits."""
    first, *ranks = lines(ledger)
    out = terminal.wrap(first, "  ")
    for (text, room, broken), fits in zip(ranks, (stage[0].fits for stage in _stages(ledger)), strict=True):
        out += terminal.wrap(f"{text}{terminal.paint(room, 'good' if fits else 'bad')}{broken}", "    ")
    return out


def plain_table(ledger: Ledger) -> list[str]:
    """As `table`, for a failure's message."""
    first, *ranks = lines(ledger)
    return [first, *("  " + "".join(parts) for parts in ranks)]


def lines(ledger: Ledger) -> list[Any]:
    """The layout in words, then (what ranks hold, room, what breaks) of every stage."""
    budget = ledger.budget
    sizes = f"tensor parallel {budget.tensor_parallel}, pipeline parallel {budget.pipeline_parallel}"
    if kind_of(budget.engine.name).stages:
        sizes = f"layers on {budget.machines} devices of one host"
    out: list[Any] = [f"{sizes}; the buckets above are those of {_tightest(ledger)}"]
    for ranks in _stages(ledger):
        held = ranks[0]
        sums = ", ".join(f"{bucket} {short(held.sums[bucket])}" for bucket in BUCKETS)
        room = f"{short(held.headroom)} free" if held.fits else f"{short(-held.headroom)} over"
        text = f"{ranks_text(ranks, ledger.staged)}: {sums}, total {short(held.total)}: "
        out.append((text, room, f", short of {held.limiting.value}" if held.limiting else ""))
    return out


def notes(ledger: Ledger) -> list[str]:
    """What a reader of the plan should know about the layout."""
    budget = ledger.budget
    found: list[str] = []
    if kind_of(budget.engine.name).stages:
        return found
    if not {"tensor_parallel_size", "pipeline_parallel_size"} & set(budget.engine.options):
        found.append(f"{budget.machine_name}: no parallel sizes given, so tensor parallel {budget.machines}")
    whole = sum(
        budget.format.layout(tensor, budget.model).nbytes * tensor.copies
        for tensor in budget.model.tensors
        if tensor.part == "params" and tensor.role.partition(".")[0] in ("vision", "audio")
    )
    if whole:
        found.append(f"other towers, {short(whole)}, are counted whole on the first stage's ranks: an upper bound")
    found.append(
        f"{budget.machine_name}: what NCCL takes is not counted until it is measured (overhead.non_torch of a budget)"
    )
    return found


def _stages(ledger: Ledger) -> list[list[Rank]]:
    groups: dict[int, list[Rank]] = {}
    for rank in ledger.ranks:
        groups.setdefault(rank.stage, []).append(rank)
    return list(groups.values())


def _tightest(ledger: Ledger) -> str:
    tightest = ledger.tightest_rank
    assert tightest is not None
    return ranks_text([rank for rank in ledger.ranks if rank.stage == tightest.stage], ledger.staged)
