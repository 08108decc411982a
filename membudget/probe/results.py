"""What the worker found, held against a `Plan`: each line judged, each suspect named.  Pure: no machine, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from membudget.probe.comparison import Row, judged
from membudget.probe.plan import WORKSPACES, Plan
from membudget.units import short

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
            made.append(row._replace(note=row.note or "it did not run"))
        elif "error" in figures:
            broken = row.allowed is not None
            made.append(row._replace(note=str(figures["error"]), holds=False if broken else None))
        elif "unknown" in figures:
            made.append(row._replace(note=str(figures["unknown"])))
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
}


def _context(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    return judged(row, figures["bytes"])


def _weights(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "buffers":
        named = ", ".join(f"{name} {short(size)}" for name, size in figures["named_buffers"].items())
        return judged(row, figures["buffers"], named)
    kept = sum(figures["kept_wide"].values())
    if kept:
        names = list(figures["kept_wide"])
        why = f"{row.why} + {short(kept)} that the model's class keeps wider: {names[0]} and {len(names) - 1} more"
        row = row._replace(predicted=row.predicted + kept, why=why)
    if row.name == "loading_peak":
        return judged(row, figures["peak"] - figures["buffers"])
    done = judged(row, figures["bytes"] - figures["buffers"])
    return done if done.holds else done._replace(note=_suspects(plan, figures))


def _suspects(plan: Plan, figures: Mapping[str, Any]) -> str:
    said = [f"{item['name']} is {item['dtype']}, not {plan.dtype}: {short(item['bytes'])}" for item in figures["wide"]]
    said += [
        f"a tensor like {item['like']} ({item['dtype']}, {short(item['bytes'])}) lies there a second time"
        for item in figures["strays"]
    ]
    if not said:
        off = figures["parameters"] - _row(plan, "weights").predicted
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
        # one number a layer that counts tokens is no cache
        note = f"{short(last['held'])} more allocated than without it"
        return judged(row, last["storages"] - last["counters"], note)
    tokens = (last["tokens"] - first["tokens"]) * last["batch"]
    held = (last["held"] - last["counters"]) - (first["held"] - first["counters"])
    slope = held // tokens if tokens else 0
    note = ", ".join(f"{point['held']:,} B at {point['tokens']:,}" for point in points)
    done = judged(row, slope, note)
    if done.holds is False and row.predicted:
        done = done._replace(note=f"{slope / row.predicted:.2f}x; {note}")
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
    return _against_trace(row, figures, found, f"trace_{row.name}")


def _against_trace(row: Row, figures: Mapping[str, Any], found: Found, name: str) -> Row:
    """The peak of a forward that fitted, against the same on fake tensors."""
    traced = found.get(name, {})
    if figures["outcome"] != "fits":
        row = row._replace(predicted=traced.get("peak"), allowed=None)
        return row._replace(note=f"out of memory: {figures.get('said', '')}")
    if "peak" not in traced:
        row = row._replace(allowed=None, note=str(traced.get("unknown") or traced.get("error") or "no trace"))
        return judged(row, figures["peak"])
    done = judged(row._replace(predicted=traced["peak"]), figures["peak"])
    if done.holds is False:
        done = done._replace(note=f"largest on fake tensors: {_largest(traced)}")
    return done


def _largest(traced: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{item['module']} {item['op']} {'x'.join(map(str, item['shape']))} {item['dtype']} {short(item['bytes'])}"
        for item in traced.get("live", ())[:4]
    )


def _break(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    name, _, field = row.name.partition(".")
    if field == "peak":
        return _against_trace(row, figures, found, f"trace_{name}")
    traced = found.get(f"trace_{name}", {})
    note = figures.get("said", "")
    if "peak" in traced:
        weights = _row(plan, "weights").predicted
        total = weights + traced.get("buffers", 0) + traced["peak"]
        note = f"fake tensors say {short(total)} in all" + (f"; {note}" if note else "")
    done = judged(row, figures["outcome"], note)
    if done.holds is False and figures["outcome"] == "fits":
        note = f"an unexpected pass: the peak was {short(figures['peak'])} over the weights; {note}"
        return done._replace(note=note)
    if done.holds and figures["left"] > (0 if plan.device == "cpu" else WORKSPACES):
        return done._replace(holds=False, note=f"{figures['left']:,} bytes stayed allocated afterwards")
    return done


def _fragmentation(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    if row.name == "steps_cache":
        return judged(row, figures["held"] - figures["counters"])
    last = figures["samples"][-1]
    if last["reserved"] is None:
        return row._replace(note="this device has no caching allocator: nothing is reserved beside what is allocated")
    spare = [sample["reserved"] - sample["total"] for sample in figures["samples"]]
    shown = ", ".join(
        f"{sample['step']:,}: {short(size)}" for sample, size in zip(figures["samples"], spare, strict=True)
    )
    return judged(row, max(spare), f"the worst of {len(spare)} looks, by step: {shown}")


def _edge(plan: Plan, row: Row, figures: Mapping[str, Any], found: Found) -> Row:
    """At or a little below the prediction; the gap by line; more than predicted is suspicious."""
    users, traced = figures["users"], found.get("trace_edge", {})
    if row.name == "max_users_closed_form":
        return judged(row, users)
    closed = _row(plan, "max_users_closed_form")
    if "users" in traced:
        row = row._replace(predicted=traced["users"])
    else:
        why = f"{traced.get('unknown') or traced.get('error') or 'no trace'}; so the closed form: {closed.why}"
        row = row._replace(predicted=closed.predicted, why=why)
    done, notes = judged(row, users), []
    if figures["capped"]:
        notes.append(f"everything that was tried fitted, up to {users:,}: the ceiling is not held")
        done = done._replace(holds=False)
    elif users > row.predicted:
        notes.append("more than predicted is suspicious: is the cache quantized, or the ceiling not held?")
    elif users < row.predicted:
        notes.append(f"{row.predicted - users:,} below the prediction: {_gap(plan, users, figures, traced)}")
    if figures["peak"] is not None:
        over, spare = figures["peak"] - figures["weights"], plan.ceiling - figures["peak"]
        notes.append(f"peak {short(over)} over the weights, {short(spare)} unused")
    tried = ", ".join(f"{number}{'' if ran else ' out of memory'}" for number, ran in figures["tried"])
    return done._replace(note="; ".join([*notes, f"tried {tried}"]))


def _gap(plan: Plan, users: int, figures: Mapping[str, Any], traced: Mapping[str, Any]) -> str:
    """Which line took what the prediction gave to more users."""
    if figures["peak"] is None:
        return "not even one ran"
    expected = traced.get("peaks", {}).get(str(users))
    if expected is None:
        return f"prefill spike, fragmentation or reserve took {short(plan.ceiling - figures['peak'])}"
    more = figures["peak"] - figures["weights"] - expected
    return f"the peak at {users:,} is {short(more)} over that of fake tensors: fragmentation or a kernel's workspace"


def _row(plan: Plan, name: str) -> Row:
    return next(row for row in plan.rows if row.name == name)


_BY_GROUP: dict[str, Callable[[Plan, Row, Mapping[str, Any], Found], Row]] = {
    "context": _context,
    "weights": _weights,
    "growth": _growth,
    "static": _static,
    "activations": _activations,
    "break": _break,
    "fragmentation": _fragmentation,
    "edge": _edge,
}
