"""The lines of the edge: the most users under the ceiling, and what the ceiling was full of.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from membudget.measure.comparison import Row, judged
from membudget.measure.edge import no_trace
from membudget.measure.plan import EDGE_PARTS
from membudget.measure.planned import Plan
from membudget.units import short


def edge_row(plan: Plan, row: Row, figures: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> Row:
    """At or a little below the prediction; the gap by line; more than predicted is suspicious."""
    users, traced = figures["users"], found.get("trace_edge", {})
    if row.name == "max_users_closed_form":
        return judged(row, users)
    if row.name in EDGE_PARTS:
        return _edge_part(plan, row, figures, traced)
    closed = plan.line("max_users_closed_form")
    if "users" in traced:
        row = replace(row, predicted=traced["users"])
    else:
        row = replace(row, predicted=closed.predicted, why=f"{no_trace(traced)}; so the closed form: {closed.why}")
    seen = tuple({"users": number, "fits": int(ran)} for number, ran in figures["tried"])
    done, notes = replace(judged(row, users), samples=seen), []
    if figures["capped"]:
        notes.append(f"everything that was tried fitted, up to {users:,}: the ceiling is not held")
        done = replace(done, holds=False)
    elif users > row.predicted:
        notes.append("more than predicted is suspicious: is the cache quantized, or the ceiling not held?")
        done = replace(done, holds=False if "users" in traced else done.holds)
    elif users < row.predicted:
        notes.append(f"{row.predicted - users:,} below the prediction: {_gap(plan, figures, traced)}")
        if row.predicted - users == 1 and plan.device != "cpu":
            done = replace(done, holds=True)  # one user is more than the tolerance where there are few
    if "users" not in traced and "unknown" not in traced:
        done = replace(done, holds=False)
    if figures["peak"] is not None:
        over, spare = figures["peak"] - figures["weights"], plan.ceiling - figures["peak"]
        notes.append(f"peak {short(over)} over the weights, {short(spare)} unused")
    tried = ", ".join(f"{number}{'' if ran else ' out of memory'}" for number, ran in figures["tried"])
    return replace(done, note="; ".join([*notes, f"tried {tried}"]))


def edge_parts(plan: Plan, figures: Mapping[str, Any]) -> dict[str, int | None]:
    """What the ceiling was filled with at the most users that ran, in bytes; with the weights it adds up to it."""
    peak, reserved, cache = figures["peak"], figures.get("peak_reserved"), figures.get("cache")
    if peak is None:
        return dict.fromkeys(EDGE_PARTS)
    return {
        "edge_cache": cache,
        "edge_spike": None if cache is None else peak - figures["weights"] - cache,
        "edge_fragmentation": None if reserved is None else reserved - peak,
        "edge_unused": plan.ceiling - (peak if reserved is None else reserved),
    }


def _edge_expected(plan: Plan, users: int, traced: Mapping[str, Any]) -> dict[str, int]:
    """The same parts of as many users on fake tensors, where they were traced."""
    peak, cache = (traced.get(name, {}).get(str(users)) for name in ("peaks", "caches"))
    if peak is None or cache is None:
        return {}
    total = traced["weights"] + peak
    reserved = traced.get("reserved", {}).get(str(users)) or total
    parts = {"edge_cache": cache, "edge_spike": peak - cache}
    return {**parts, "edge_fragmentation": reserved - total, "edge_unused": plan.ceiling - reserved}


def _edge_part(plan: Plan, row: Row, figures: Mapping[str, Any], traced: Mapping[str, Any]) -> Row:
    size = edge_parts(plan, figures)[row.name]
    if size is None:
        unknown = row.name == "edge_fragmentation" and figures["peak"] is not None
        return replace(row, note="this device has no caching allocator" if unknown else "not even one ran")
    expected = _edge_expected(plan, figures["users"], traced).get(row.name)
    return judged(replace(row, predicted=expected), size, f"with {figures['users']:,} users")


def _gap(plan: Plan, figures: Mapping[str, Any], traced: Mapping[str, Any]) -> str:
    """Which line took what the prediction gave to more users: the parts beside those of fake tensors, largest first."""
    if figures["peak"] is None:
        return "not even one ran"
    parts, expected = edge_parts(plan, figures), _edge_expected(plan, figures["users"], traced)
    words = {
        "edge_spike": "the prefill spike",
        "edge_fragmentation": "fragmentation",
        "edge_cache": "the cache",
        "edge_unused": "a reserve too small for one more",
    }
    more = {name: size - expected.get(name, 0) for name, size in parts.items() if size is not None}
    if not expected:  # that number of users was not traced: the sizes themselves
        more.pop("edge_cache", None)
    taken = sorted(((size, words[name]) for name, size in more.items() if size > 0), reverse=True)
    beyond = " more than on fake tensors" if expected else ""
    return ", ".join(f"{word} {short(size)}{beyond}" for size, word in taken) or "no line takes more than predicted"
