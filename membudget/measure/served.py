"""What a served budget is predicted to say of its memory, and what its log, /metrics and answers said.

Three times: by the plan, by the log, and by the plan with the log's own figures put in.  Pure: nothing is started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from membudget.budgets.budget import Budget
from membudget.budgets.schema import measure_defaults
from membudget.budgets.tolerance import EXACT, Tolerance
from membudget.engines.vllm.engine import VllmDetails
from membudget.engines.vllm.logs.record import EngineLog, Figure
from membudget.engines.vllm.pool.result import Pool
from membudget.errors import MembudgetError
from membudget.measure.comparison import Comparison, Row, Unit, judged
from membudget.measure.guard import Outcome
from membudget.measure.status import Status
from membudget.planning.ledger import Ledger, predict
from membudget.units import GIB, both

GROUP = "served"
#: Tokens that are decoded after each prompt.
DECODE = 4
#: The lines of a pool.
_POOL = ("num_blocks", "pool_tokens", "max_concurrency_x100")


class CannotServe(MembudgetError):
    """A budget that says too little, or asks for what vLLM has no flag for: says what to change."""


@dataclass(frozen=True)
class Serving:
    """What will be started."""

    budget: Budget
    command: tuple[str, ...]  # without a port
    model: str  # what stands for the model in `command`
    dummy: bool  # random weights
    claim: int  # bytes that it may take
    why: str  # where the claim comes from
    rows: tuple[Row, ...]  # predictions, unmeasured
    ranges: Mapping[str, tuple[int, int]]  # what a line may be, where its prediction is bounded and not exact
    version: str  # of vLLM, whose rules predicted; "" for the newest that is known
    together: int  # how many prompts of full length are asked at once; 0 for none


def served_budget(budget: Budget, version: str) -> Budget:
    """The budget as it is started: with the step that its flags name, by the rules of the version that runs.

    Sequences of a step are named too: they decide on the profile run, and a device's default may be another one.
    """
    options = {**budget.engine.options, **({"version": version} if version else {})}
    if "max_num_seqs" not in options:
        profiled = _details(predict(replace(budget, engine=replace(budget.engine, options=options)))).start.profiled
        options["max_num_seqs"] = profiled.steps.sequences
    engine = replace(budget.engine, max_num_batched_tokens=budget.engine.step_tokens, options=options)
    return replace(budget, engine=engine)


def _details(ledger: Ledger) -> VllmDetails:
    details = ledger.answer.details
    assert isinstance(details, VllmDetails)  # `flags` has refused other engines
    return details


def predictions(budget: Budget, ledger: Ledger) -> tuple[list[Row], dict[str, tuple[int, int]]]:
    """The lines before anything runs, and the ranges of those that are bounded."""
    said, defaults = budget.measure, measure_defaults()
    answer, details = ledger.answer, _details(ledger)
    if answer.starts:
        raise CannotServe(f"vLLM would refuse to start: {answer.starts[0].text}")
    start, pool = details.start, details.start.pool
    parts = {part.name: part for part in start.parts[0]}  # the head's log is that of rank 0
    fixed = "kv_cache_memory_bytes" in budget.engine.options
    weights, activation = parts["weights"], parts["activation"]
    rows = [Row("served.weights", GROUP, weights.bytes, allowed=said.get("weights", defaults["weights"]),
                why=weights.why)]  # fmt: skip
    ranges: dict[str, tuple[int, int]] = {}
    if not fixed:
        rows.append(Row("served.activation", GROUP, activation.bytes, why=activation.why))
        ranges["served.activation"] = (activation.low, activation.high)
        beside = sum(part.bytes for part in start.parts[0])
        why = f"{both(answer.limit or 0)} claimed less {both(beside)} of weights, step and overhead"
        rows.append(Row("available_kv", GROUP, start.stages[0], allowed=said.get("available_kv"), why=why))
        ranges["available_kv"] = (start.low[0], start.high[0])
    why = f"{both(pool.available)} / {pool.bytes_per_block:,} bytes a block"
    counts = {
        "num_blocks": why, "pool_tokens": why,
        "max_concurrency_x100": f"{pool.num_blocks:,} blocks / {pool.blocks_per_request:,} a request of "
        f"{pool.request_len:,} tokens",
    }  # fmt: skip
    ends = [_figures(_pool_of(budget, size)) for size in ((start.low[0], start.high[0]) if not fixed else ())]
    for name, value in _figures(pool).items():
        given = said.get(name.removesuffix("_x100"))
        allowed = given if given is not None else EXACT if fixed else None
        rows.append(Row(name, GROUP, value, unit=Unit.COUNT, allowed=allowed, why=counts[name]))
        if ends:
            ranges[name] = (ends[0][name], ends[1][name])
    if not fixed:
        why = "the pool of the bytes that the log says, block by block"
        rows.append(Row("num_blocks_logged", GROUP, None, unit=Unit.COUNT, allowed=EXACT, why=why))
        why = "what the log says is claimed, less its own weights, activation, non-torch memory and CUDA graphs"
        rows.append(Row("available_kv_logged", GROUP, None, why=why))
    return [_bounded(row, ranges) for row in rows], ranges


def _figures(pool: Pool) -> dict[str, int]:
    return dict(zip(_POOL, (pool.num_blocks, pool.tokens, round(pool.max_concurrency * 100)), strict=True))


def _pool_of(budget: Budget, size: float) -> Pool:
    """The budget's pool of so many bytes on a device."""
    options = {**budget.engine.options, "kv_cache_memory_bytes": max(int(size), 1)}
    return _details(predict(replace(budget, engine=replace(budget.engine, options=options)))).start.pool


def _bounded(row: Row, ranges: Mapping[str, tuple[int, int]], measured: int | None = None) -> Row:
    """The line with what it may differ by on the side where the measured figure is; the wider side before."""
    if row.allowed is not None or row.name not in ranges or row.predicted is None:
        return row
    low, high = ranges[row.name]
    sides = (row.predicted - low, high - row.predicted)
    side = max(sides) if measured is None else sides[measured > row.predicted]
    unit = "bytes" if row.unit is Unit.BYTES else "count"
    return replace(row, allowed=Tolerance("within", max(side, 0), unit))


def together(budget: Budget, ledger: Ledger) -> int:
    """How many of the budget's users are asked at once at full length: no more than run at once."""
    return min(budget.users, ledger.answer.users or 0) if budget.ctx > 2 * DECODE else 0


def compared(
    made: Serving, outcome: Outcome, engines: Sequence[EngineLog], tail: str = "", fell: int | None = None
) -> Comparison:
    """The predictions with what the log, /metrics and the answers say.

    fell: by how much what is usable on the device fell while all were served, bytes; None where it is unknown.
    """
    result = outcome.result or {}
    said = result.get("metrics", {})
    engine = engines[-1] if engines else None
    made = _of_version(made, engine)
    rows = [_measured(made, row, engine, said) for row in made.rows]
    asked = result.get("completion_tokens")  # an integer: the child has seen to it
    answered = Row("answered", GROUP, DECODE, unit=Unit.COUNT, allowed=EXACT, why="tokens asked for")
    rows.append(judged(answered, asked, "" if asked is not None else "no answer"))
    if made.together:
        rows += _together(made, result, fell)
    versions = {"vllm": engine.version} if engine is not None and engine.version else {}
    status, why = outcome.status, outcome.why
    if status == Status.DONE and result.get("error"):
        status, why = Status.CRASHED, str(result["error"])
    detail = "" if status is Status.DONE else "\n".join(filter(None, [outcome.stderr, tail]))
    return Comparison(
        made.budget.id, tuple(rows), status, "" if status is Status.DONE else why, detail, versions, outcome.stages,
        outcome.seconds, outcome.lowest,
    )  # fmt: skip


def _of_version(made: Serving, engine: EngineLog | None) -> Serving:
    """Predicted anew where the log names another version: its rules are those that ran."""
    if engine is None or not engine.version or engine.version == made.version:
        return made
    try:
        budget = served_budget(made.budget, engine.version)
        rows, ranges = predictions(budget, predict(budget))
    except MembudgetError:  # a version that is not known, or that would refuse: the lines stay as they were
        return made
    return replace(made, rows=tuple(rows), ranges=ranges, budget=budget, version=engine.version)


def _together(made: Serving, result: Mapping[str, object], fell: int | None) -> list[Row]:
    """All users at full length at once: each is answered, none has to wait for blocks, and the claim is kept."""
    many = made.together
    why = f"{many:,} prompts of {made.budget.ctx - DECODE:,} tokens at once, {DECODE} tokens each"
    users = Row("served.users", GROUP, many, unit=Unit.COUNT, allowed=EXACT, why=why)
    waits = Row("served.preemptions", GROUP, 0, unit=Unit.COUNT, allowed=EXACT, why="the pool holds all of them")
    memory = Row("served.memory", GROUP, made.claim, why=f"{made.why}; by what is usable on the device")
    if made.budget.machine.platform == "cuda":  # on a CPU others take and give meanwhile
        memory = replace(memory, allowed=Tolerance("below", made.claim + GIB, "bytes"))
    note = str(result.get("together_said", ""))
    return [
        judged(users, result.get("together"), note or "they were not asked"),
        judged(waits, result.get("preemptions"), "by /metrics" if "preemptions" in result else "/metrics does not say"),
        judged(memory, fell, "" if fell is not None else "what is usable could not be read"),
    ]


#: Line -> (figure of the log, label of vllm:cache_config_info).
_SAID = {
    "served.weights": ("weights", ""),
    "served.activation": ("peak_activation", ""),
    "available_kv": ("available_kv", ""),
    "num_blocks": ("num_blocks", "num_gpu_blocks"),
    "num_blocks_logged": ("num_blocks", "num_gpu_blocks"),
    "pool_tokens": ("kv_tokens", "kv_cache_size_tokens"),
    "max_concurrency_x100": ("max_concurrency", "kv_cache_max_concurrency"),
    "available_kv_logged": ("available_kv", ""),
}


def _measured(made: Serving, row: Row, engine: EngineLog | None, metrics: Mapping[str, str]) -> Row:
    figure, label = _SAID[row.name]
    times = 100 if row.name.endswith("_x100") else 1
    exact = _number(metrics.get(label, ""))
    found: Figure | None = engine.get(figure) if engine is not None else None
    ranges = dict(made.ranges)
    if row.name.endswith("_logged"):
        plugged = None if engine is None else _plugged(made, row, engine)
        if plugged is None:
            return replace(row, note="the log does not say what it is made of")
        low, high, note = plugged
        ranges[row.name] = (low, high)
        row = replace(row, predicted=(low + high) // 2, allowed=None, note=note)
    if exact is not None:
        value, note = round(exact * times), "by /metrics"
    elif found is None:
        return replace(row, note="the log does not say it")
    else:
        least, most = found.low * times, found.high * times
        low, high = ranges.get(row.name, (row.predicted, row.predicted))
        value, note = round(float(found.value) * times), f"printed as {found.printed}"
        if least <= row.predicted <= most:
            value = row.predicted
        elif least <= high and low <= most:  # what it printed may be within the range
            value = min(max(value, low), high)
    if (
        row.allowed is not None
        and row.name in ranges
        and made.budget.measure.get(row.name.removesuffix("_x100")) is None
    ):
        row = replace(row, allowed=None)
    return judged(_bounded(row, ranges, value), value, f"{note}; {row.note}" if row.note else note)


def _plugged(made: Serving, row: Row, engine: EngineLog) -> tuple[int, int, str] | None:
    """What the log's own figures make of a line: the least, the most, and from what."""
    if row.name == "num_blocks_logged":
        size = engine.get("available_kv")
        if size is None:
            return None
        least, most = (_pool_of(made.budget, end).num_blocks for end in (size.low, size.high))
        return least, most, f"of {size.printed} for the pool"
    claimed = engine.get("requested_memory")
    for names in _USED:
        used = [item for item in map(engine.get, names) if item is not None]
        if claimed is None or len(used) < len(names):
            continue
        graphs = None if "peak_with_graphs" in names else engine.get("cudagraph_estimate")
        used += [graphs] if graphs is not None else []
        low = claimed.low - sum(item.high for item in used)
        high = claimed.high - sum(item.low for item in used)
        words = " - ".join([claimed.printed, *(f"{item.printed} {item.name}" for item in used)])
        return math.floor(low), math.ceil(high), words
    return None


#: What a start took of its claim, as versions print it.
_USED = (("weights", "peak_activation", "non_torch"), ("consumed", "torch_peak"), ("consumed", "peak_with_graphs"))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:  # "None", or nothing
        return None
    return number if math.isfinite(number) else None
