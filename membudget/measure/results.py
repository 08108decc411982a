"""What the worker found, held against a `Plan`: each line judged, each suspect named.  Pure: no machine, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from membudget.budgets.tolerance import MILLIONTHS, Tolerance
from membudget.measure.comparison import Row, judged
from membudget.measure.edge import in_all, no_trace
from membudget.measure.edge_rows import edge_row
from membudget.measure.planned import Plan
from membudget.units import MIB, short

Found = Mapping[str, Mapping[str, Any]]


def rows(plan: Plan, found: Found) -> tuple[Row, ...]:
    """The plan's lines with what was measured; lines without a measurement say why.

    found: figures by step, as the worker returned or staged them; a step that did not run is absent.
    """
    made = []
    for row in plan.rows:
        key = row.name.split(".")[0] if row.group == "break" else row.group
        judge = _BY_GROUP[row.group]
        step = _STEP.get(row.name, _STEP.get(key, key))
        figures = found.get(step)
        if figures is None:
            made.append(replace(row, note=row.note or "it did not run"))
        elif "error" in figures:
            broken = row.allowed is not None
            made.append(replace(row, note=str(figures["error"]), holds=False if broken else None))
        elif "unknown" in figures:
            made.append(replace(row, note=str(figures["unknown"])))
        else:
            made.append(judge(plan, row, figures, found))
    return tuple(made)


#: Which step a line, or a group of lines, is read from.
_STEP = {
    "logits": "prefill_every",
    "prefill_last": "prefill_last",
    "prefill_every": "prefill_every",
    "prefill_last_closed_form": "trace_prefill_last",
    "prefill_every_closed_form": "trace_prefill_every",
    "fragmentation_dynamic": "steps_dynamic",
    "fragmentation_static": "steps_static",
    "fragmentation_expandable": "steps_expandable",
    "steps_cache": "steps_dynamic",
    "context_of_two": "second_context",
    "static_below_dynamic": "steps_static",
    "expandable_below_dynamic": "steps_expandable",
    "ceiling": "preflight",
}
for _kind in ("dynamic", "static", "expandable"):
    _STEP[f"spare_{_kind}"] = f"steps_{_kind}"
    _STEP[f"spare_long_{_kind}"] = f"trace_long_{_kind}"


def _preflight(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    fell = figures.get("fell")
    note = f"{figures['said']}; what is usable fell by {short(fell)}" if fell is not None else figures["said"]
    return judged(row, figures["outcome"], note)


def _sandwich(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    side = row.name.removeprefix("sandwich_")
    return judged(row, figures[side], f"of {short(figures['need'])}; {figures.get(f'{side}_said', 'it fitted')}")


def _total(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    """The budget's own users by three ledgers: the allocator's, the driver's, and what is usable on the device."""
    name = {"total_allocator": "allocator", "total_reserved": "reserved", "total_process": "process"}.get(
        row.name, "fell"
    )
    traced = found.get("trace_total", {})
    if row.name == "total_allocator":
        kept = traced["weights"] + traced["buffers"] if "peak" in traced else 0
        row = _predicted(row, traced, kept + traced["peak"] if "peak" in traced else None)
        row = _of_the_rest(row, kept + traced.get("cache", 0))
    elif row.name == "total_reserved":
        row = _reserved(_predicted(row, traced, in_all(traced)), figures.get("ceiling"))
    elif row.name in ("total_process", "total_available"):
        context = found.get("context", {}).get("bytes")
        need = in_all(traced)
        row = replace(row, predicted=need + context if need is not None and context is not None else None)
    return judged(row, figures[name], "" if figures[name] is not None else "no reading of this machine says it")


def _reserved(row: Row, ceiling: int | None) -> Row:
    """Under a ceiling the allocator gives back what it would keep: what it holds then is bounded, not predicted."""
    if ceiling is None or row.predicted is None or row.predicted <= ceiling:
        return row
    note = (
        f"without a ceiling {short(row.predicted)}, by the allocator's algorithm; this one ran under {short(ceiling)}"
    )
    return replace(row, predicted=None, allowed=Tolerance("below", ceiling + 1, "bytes"), note=note)


def _of_the_rest(row: Row, exact: int) -> Row:
    """The line with its percentage taken of what is not exact: weights and caches are, to the byte."""
    allowed = row.allowed
    if allowed is None or allowed.unit != "%" or not isinstance(row.predicted, int):
        return row
    rest = max(row.predicted - exact, 0)
    return replace(row, allowed=replace(allowed, amount=rest * allowed.amount // (100 * MILLIONTHS), unit="bytes"))


def _predicted(row: Row, traced: Mapping[str, Any], value: int | None) -> Row:
    """The line with what the trace predicts; without a trace it does not hold, for nothing was compared."""
    if value is not None:
        return replace(row, predicted=value)
    return replace(row, note=no_trace(traced))


def _context(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "context_of_two":
        return second_process(row, figures)
    return judged(row, figures["bytes"])


def second_process(row: Row, figures: Mapping[str, Any]) -> Row:
    """Two processes that touched the device, against twice the first one: contexts are not shared."""
    alone, first, second = figures["alone"], figures["first"], figures["second"]
    both = first + second
    note = f"{short(alone)} alone; beside each other {short(first)} and {short(second)}, by {figures['source']}"
    done = judged(replace(row, predicted=2 * alone), both, note)
    if done.holds is False:
        word = "shared between them" if both < 2 * alone else "more than a second context"
        done = replace(done, note=f"{both / max(alone, 1):.2f}x, not 2x: {word}; {note}")
    return done


def _weights(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "buffers":
        named = ", ".join(f"{name} {short(size)}" for name, size in figures["named_buffers"].items())
        return judged(row, figures["buffers"], named)
    kept = sum(figures["kept_wide"].values())
    if kept:
        names = list(figures["kept_wide"])
        why = f"{row.why} + {short(kept)} that the model's class keeps wider: {names[0]} and {len(names) - 1} more"
        row = replace(row, predicted=row.predicted + kept, why=why)
    if row.name == "loading_peak":
        return judged(row, figures["peak"] - figures["buffers"])
    done = judged(row, figures["bytes"] - figures["buffers"])
    return done if done.holds else replace(done, note=_suspects(plan, figures))


def _suspects(plan: Plan, figures: Mapping[str, Any]) -> str:
    said = [f"{item['name']} is {item['dtype']}, not {plan.dtype}: {short(item['bytes'])}" for item in figures["wide"]]
    said += [
        f"a tensor like {item['like']} ({item['dtype']}, {short(item['bytes'])}) lies there a second time"
        for item in figures["strays"]
    ]
    if not said:
        off = figures["parameters"] - plan.line("weights").predicted
        said = [
            f"the parameters themselves are {short(off)} more than predicted" if off > 0 else "no tensor stands out"
        ]
    return "; ".join(said)


def _growth(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    points = figures["points"]
    first, last = points[0], points[-1]
    if row.name == "freed":
        worst = max([figures["left"] - figures["weights"], *(point["left"] for point in points)])
        return judged(row, worst)
    if row.name == "kv_cache":
        # one number a layer that counts tokens is not a cache
        note = f"{short(last['held'])} more allocated than without it"
        return judged(row, last["storages"] - last["counters"], note)
    tokens = (last["tokens"] - first["tokens"]) * last["batch"]
    held = (last["held"] - last["counters"]) - (first["held"] - first["counters"])
    slope = held // tokens if tokens else 0
    note = ", ".join(f"{point['held']:,} B at {point['tokens']:,}" for point in points)
    seen = tuple(
        {"tokens": point["tokens"], "batch": point["batch"], "held": point["held"] - point["counters"]}
        for point in points
    )
    done = replace(judged(row, slope, note), samples=seen)
    if done.holds is False and row.predicted:
        done = replace(done, note=f"{slope / row.predicted:.2f}x; {note}")
    return done


def _static(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "static_growth":
        return judged(row, figures["last"] - figures["first"])
    return judged(row, figures["storages"] - figures["counters"])


def _activations(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "logits":
        return judged(row, figures["logits"])
    if row.name.endswith("_closed_form"):
        over = figures["peak"] - figures["cache"]
        share = f"{(over - row.predicted) / over:+.1%} of it" if over else ""
        return judged(row, over, f"fake tensors less the cache; {share}, largest: {_largest(figures)}")
    return _against_trace(plan, row, figures, found, f"trace_{row.name}")


def _against_trace(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found, name: str) -> Row:
    """The peak of a forward that fitted, against the same on fake tensors."""
    traced = found.get(name, {})
    if figures["outcome"] != "fits":
        row = replace(row, predicted=traced.get("peak"), allowed=None)
        return replace(row, note=f"out of memory: {figures.get('said', '')}")
    if "peak" not in traced:
        return _untraced(plan, row, figures["peak"], traced)
    done = judged(replace(row, predicted=traced["peak"]), figures["peak"])
    if done.holds is False:
        done = replace(done, note=f"largest on fake tensors: {_largest(traced)}")
    return done


def _untraced(plan: Plan, row: Row, measured: int, traced: Mapping[str, Any]) -> Row:
    """A peak that no trace predicts: a failed trace is a failure; one that cannot be made leaves the upper bound."""
    if "unknown" not in traced:
        return replace(row, measured=measured, holds=False, note=no_trace(traced))
    most = max((moment.held + moment.temporary for moment in plan.moments if moment.group == row.group), default=None)
    held = most is not None and measured <= most
    note = f"{no_trace(traced)}; the upper bound is {short(most)}" if most is not None else no_trace(traced)
    return replace(row, measured=measured, allowed=None, holds=None if held else False, note=note)


def _largest(traced: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{item['module']} {item['op']} {'x'.join(map(str, item['shape']))} {item['dtype']} {short(item['bytes'])}"
        for item in traced.get("live", ())[:4]
    )


def _break(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    name, _, field = row.name.partition(".")
    if field == "peak":
        return _against_trace(plan, row, figures, found, f"trace_{name}")
    traced = found.get(f"trace_{name}", {})
    note = figures.get("said", "")
    if "peak" in traced:
        weights = plan.line("weights").predicted
        total = weights + traced.get("buffers", 0) + traced["peak"]
        note = f"fake tensors say {short(total)} in all" + (f"; {note}" if note else "")
    done = judged(row, figures["outcome"], note)
    if done.holds is False and figures["outcome"] == "fits":
        note = f"an unexpected pass: the peak was {short(figures['peak'])} over the weights; {note}"
        return replace(done, note=note)
    need = in_all(traced)
    if need is not None and (need > plan.ceiling) != (row.predicted == "out_of_memory"):
        side = "over" if need > plan.ceiling else "under"
        note = f"the trace says {short(need)}, {side} the ceiling of {short(plan.ceiling)}: another outcome; {note}"
        return replace(done, holds=False, note=note)
    if need is None:
        return replace(done, holds=False if "unknown" not in traced else done.holds, note=no_trace(traced))
    if done.holds and figures["left"]:
        return replace(done, holds=False, note=f"{figures['left']:,} bytes stayed allocated afterwards")
    return done


def _fragmentation(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "steps_cache":
        return judged(row, figures["held"] - figures["counters"])
    if row.name.startswith("spare_long_"):
        return (
            judged(row, None) if "worst" not in figures else replace(row, predicted=figures["worst"], note="replayed")
        )
    if row.name.endswith("_below_dynamic"):
        return _below(row, figures, found)
    samples = figures["samples"]
    names = ("step", "total", "allocated", "blocks", "reserved", "inactive_split")
    seen = tuple({name: sample.get(name) for name in names} for sample in samples)
    row = replace(row, samples=seen)
    if any(sample["reserved"] is None for sample in samples):
        return replace(row, note="this device has no caching allocator: nothing is reserved beside what is allocated")
    spare = _spare(figures)
    if row.name.startswith("spare_"):
        replayed = found.get(f"trace_steps_{row.name.removeprefix('spare_')}", {})
        shown = ", ".join(f"{item['step']:,}: {short(size)}" for item, size in zip(samples, spare, strict=True))
        row = replace(row, predicted=replayed.get("worst"))
        return judged(row, max(spare), f"the worst of {len(spare)} looks, by step: {shown}")
    note = f"reserved after empty_cache, and not allocated; meanwhile up to {short(max(spare))}"
    return judged(row, figures["lost"], note)


#: By how much a static cache or expandable segments may exceed a growing cache's unused memory: two large segments.
_ORDER_SLACK = 2 * 20 * MIB


def _spare(figures: Mapping[str, Any]) -> list[int]:
    return [sample["reserved"] - sample.get("blocks", sample["total"]) for sample in figures["samples"]]


def _below(row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    """Which of two leaves more unused: as the algorithm says of so many steps, and in the note of thousands."""
    dynamic, kind = found.get("steps_dynamic", {}), row.name.removesuffix("_below_dynamic")
    if any(sample["reserved"] is None for sample in figures["samples"]) or "samples" not in dynamic:
        return replace(row, note="this device has no caching allocator, or the growing cache was not measured")

    def replayed(name: str) -> tuple[int, int] | None:
        one, other = (found.get(f"trace_{name}_{each}", {}).get("worst") for each in (kind, "dynamic"))
        return None if one is None or other is None else (one, other)

    few, many = replayed("steps"), replayed("long")
    if few is not None:  # few steps leave a growing cache little to waste
        row = replace(row, predicted=_order(*few))
    one, other = max(_spare(figures)), max(_spare(dynamic))
    note = f"{short(one)} unused, {short(other)} with a growing cache"
    if many is not None:
        note += f"; after thousands of steps {short(many[0])} and {short(many[1])}, by the algorithm"
    return judged(row, _order(one, other), note)


def _order(one: int, other: int) -> str:
    return "yes" if one <= other + _ORDER_SLACK else "no"


_BY_GROUP: dict[str, Callable[[Plan, Row, Mapping[str, Any], Found], Row]] = {
    "context": _context,
    "weights": _weights,
    "growth": _growth,
    "static": _static,
    "activations": _activations,
    "break": _break,
    "fragmentation": _fragmentation,
    "edge": edge_row,
    "preflight": _preflight,
    "sandwich": _sandwich,
    "total": _total,
}
