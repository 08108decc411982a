"""Two at once: which of two processes does not get its memory, predicted from claims and shown with real ones.

An engine asks for all of it at its start and is refused; a notebook asks for nothing, takes piece
by piece, and runs out on the way.  No torch here: the processes are guarded workers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from membudget.engines.vllm.profile.identity import free_source, requested_bytes, startup_check
from membudget.engines.vllm.versions import DEFAULT
from membudget.errors import MembudgetError
from membudget.host import shared as host
from membudget.host import system
from membudget.host.limits import default_floor
from membudget.measure import guard
from membudget.units import GIB, MIB, short

#: What a notebook takes at a time.
PIECE = 16 * MIB
#: Seconds for a claim to be in place: torch is loaded first.
PATIENCE = 180.0
WORKER = ("-u", "-m", "membudget.measure.worker")


class Kind(StrEnum):
    """How a process takes its memory."""

    ENGINE = "engine"  # all of it at its start
    NOTEBOOK = "notebook"  # piece by piece


@dataclass(frozen=True)
class Claim:
    """What one process will allocate."""

    name: str
    bytes: int
    kind: Kind = Kind.ENGINE


@dataclass(frozen=True)
class Predicted:
    """Who fails, before anything runs."""

    fails: str  # the name of the process that does not get its memory; "" for none
    why: str  # with both numbers


@dataclass(frozen=True)
class Shown:
    """What happened."""

    fails: str  # as in `Predicted`
    said: str  # the refusal, or torch's error
    held: dict[str, int]  # bytes that each had, by name


def predict(first: Claim, second: Claim, reserve: int, available: int) -> Predicted:
    """Who fails when `second` starts while `first` holds its claim.  reserve: bytes that must be left beside."""
    if first.bytes + reserve > available:
        return Predicted(first.name, _needs(first, reserve, available))
    left = available - first.bytes
    if second.bytes + reserve <= left:
        return Predicted("", f"both fit: {short(left - second.bytes - reserve)} is left beside the reserve")
    held = f", because {first.name} holds {short(first.bytes)} of {short(available)}"
    return Predicted(second.name, _needs(second, reserve, left) + held)


def predict_vllm(
    first: tuple[str, float],
    second: tuple[str, float],
    total: int,
    free: int,
    *,
    version: str = DEFAULT,
    unified: bool = False,
    page_cache: int = 0,
    capability: tuple[int, int] | None = None,
) -> Predicted:
    """Which of two vLLM engines is refused at its start: each (name, gpu_memory_utilization), of the *total*.

    The share is of the whole memory, whatever the other engine holds, so 0.5 and 0.5 do not both start once
    anything else is there.  free: bytes that are free before, page cache counted as free.  page_cache: of it;
    on unified memory older versions read the driver's free, which leaves it out (some by compute capability).
    """
    driver = unified and free_source(version, unified, capability) == "driver"
    seen = page_cache if driver else 0
    said = startup_check(total, max(free - seen, 0), first[1], version)
    if said is not None:
        return Predicted(first[0], said)
    claimed = requested_bytes(total, first[1], version)
    said = startup_check(total, max(free - seen - claimed, 0), second[1], version)
    if said is None:
        return Predicted("", f"both start: {short(free - claimed)} is free beside {first[0]}")
    return Predicted(second[0], f"{said} ({first[0]} holds {claimed / GIB:.2f} GiB)")


def show(
    first: Claim,
    second: Claim,
    reserve: int,
    *,
    available: Callable[[], int | None] = system.available,
    device: str = "cpu",
    seconds: float = 120.0,
    hear: Callable[[str, dict[str, Any]], None] | None = None,
) -> Shown:
    """Do it: `first` really holds its claim, touched, while `second` starts.

    available: what the guard believes; hear: called with the name of a process and each of its stages.
    Raises `RuntimeError` where the first one neither holds its claim nor is refused.
    """
    # a claim of the CPU is held to a machine that is made up; one of a device is real
    floor = 0 if device == "cpu" else default_floor(host.shares_memory())
    held: dict[str, int] = {}
    ready, over, ended = threading.Event(), threading.Event(), []

    def listen(name: str) -> Callable[[dict[str, Any]], None]:
        def stage(said: dict[str, Any]) -> None:
            if hear is not None:
                hear(name, said)
            if said["stage"] == "claimed":
                held[name] = int(said["bytes"])
                if name == first.name and (held[name] >= first.bytes):
                    ready.set()

        return stage

    def hold() -> None:
        limits = guard.Limits(first.bytes, reserve, floor, seconds + PATIENCE)
        request = _request(first, device, first.bytes, seconds + PATIENCE)
        report = listen(first.name)
        ended.append(guard.run(_command(), request, limits, available=available, report=report, until=over.is_set))
        ready.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        ready.wait(PATIENCE)
        if ended and ended[0].status == "refused":
            return Shown(first.name, ended[0].why, held)
        if first.name not in held:
            raise MembudgetError(
                f"{first.name} did not get hold of its claim: {ended[0].why if ended else 'no answer'}"
            )
        return _second(second, reserve, floor, available, device, seconds, listen(second.name), held)
    finally:
        over.set()
        thread.join(timeout=30.0)


def _second(
    claim: Claim,
    reserve: int,
    floor: int,
    available: Callable[[], int | None],
    device: str,
    seconds: float,
    report: Callable[[dict[str, Any]], None],
    held: dict[str, int],
) -> Shown:
    now = available()
    if claim.kind == Kind.ENGINE:
        limits = guard.Limits(claim.bytes, reserve, floor, seconds + PATIENCE)
        request = _request(claim, device, claim.bytes, 0.0)
    else:  # nobody asks a notebook: its ceiling is what is there, less the reserve
        ceiling = max((now or 0) - reserve, 1)
        limits = guard.Limits(0, 0, floor, seconds + PATIENCE)
        request = _request(claim, device, ceiling, 0.0)
    outcome = guard.run(_command(), request, limits, available=available, report=report)
    if outcome.status == "refused":
        return Shown(claim.name, outcome.why, held)
    figures = (outcome.result or {}).get("steps", {}).get("claim", {})
    if outcome.status != "done" or "error" in figures:
        return Shown(claim.name, str(figures.get("error", outcome.why)), held)
    if figures.get("outcome") == "out_of_memory":
        ran = f"out of memory with {short(held.get(claim.name, 0))} of {short(claim.bytes)}"
        return Shown(claim.name, f"{ran}, {short(now or 0)} was available: {figures['said']}", held)
    return Shown("", "both hold what they claimed", held)


def _request(claim: Claim, device: str, ceiling: int, seconds: float) -> dict[str, Any]:
    step: dict[str, Any] = {"do": "claim", "bytes": claim.bytes, "seconds": seconds}
    if claim.kind == Kind.NOTEBOOK:
        step["piece"] = PIECE
    # CUDA rounds the ceiling to a share of its total
    own = ceiling if device == "cpu" or claim.kind == Kind.NOTEBOOK else ceiling + 64 * MIB
    return {"config": {}, "dtype": "bf16", "device": device, "ceiling": own, "steps": [step]}


def _command() -> list[str]:
    return [sys.executable, *WORKER]


def _needs(claim: Claim, reserve: int, available: int) -> str:
    need = claim.bytes + reserve
    return (
        f"{claim.name} needs {short(need)} ({short(claim.bytes)} + {short(reserve)} reserve), "
        f"{short(available)} is available"
    )
