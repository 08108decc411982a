"""Two processes at once: who fails, by claims and by vLLM's rule, and what a second context costs; no machine needed.

vLLM's rule: gpu_memory_utilization is a share of the total, and a start is refused when less is free
(v1/worker/utils.py request_memory).  A Spark's numbers: MemTotal of nvitop/pull/208, MemAvailable and the driver's
free of unslothai/unsloth/pull/10704, a process's device bytes of vllm-project/vllm/pull/55828.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.budgets.tolerance import parse
from membudget.host.readings import Reading, Unknown
from membudget.host.sources import Sources
from membudget.measure import contexts
from membudget.measure.comparison import Row
from membudget.measure.pairs import Claim, predict, predict_vllm
from membudget.measure.results import second_process
from membudget.units import GIB, MIB

pytestmark = pytest.mark.suite

#: MemTotal, MemAvailable and MemFree of a DGX Spark that has just read a checkpoint.
TOTAL, AVAILABLE, FREE = 127_600_748 * 1024, 121_267_814 * 1024, 43_536_875 * 1024


@pytest.mark.parametrize(
    ("first", "second", "failing"), [(20, 20, ""), (60, 60, "two"), (115, 10, "one"), (50, 59, "two"), (50, 53, "")]
)
def test_who_fails_of_two(first: int, second: int, failing: str) -> None:
    """On a Spark with 115.65 GiB available and 12 GiB kept back: what the first holds is not there for the second."""
    claims = Claim("one", first * GIB), Claim("two", second * GIB)
    said = predict(*claims, 12 * GIB, int(115.65 * GIB))
    assert said.fails == failing
    if failing == "two":
        assert f"two needs {second + 12}.00 GiB ({second}.00 GiB + 12.00 GiB reserve)" in said.why
        assert f"one holds {first}.00 GiB of 115.65 GiB" in said.why


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 20), st.integers(0, 250))
def test_order_decides_only_where_one_fits(one: int, two: int, reserve: int, available: int) -> None:
    """Both fit in either order or in none; and where each fits alone, the later one fails."""
    first, second = Claim("one", one), Claim("two", two)
    said, swapped = predict(first, second, reserve, available), predict(second, first, reserve, available)
    assert (said.fails == "") == (swapped.fails == "") == (one + two + reserve <= available)
    if max(one, two) + reserve <= available < one + two + reserve:
        assert (said.fails, swapped.fails) == ("two", "one")


def test_two_engines_by_vllms_rule() -> None:
    """0.5 and 0.46 of a Spark's total: less than all of it, and yet the second is refused; in the other order too.

    121.69 GiB in all, 115.65 available: 0.5 leaves 54.80, and 0.46 asks for 55.98; 0.45 asks for 54.76.
    """
    said = predict_vllm(("chat", 0.5), ("embed", 0.46), TOTAL, AVAILABLE, unified=True)
    assert said.fails == "embed"
    words = "(54.81/121.69 GiB) on startup is less than desired GPU memory utilization (0.46, 55.98 GiB)"
    assert words in said.why
    assert predict_vllm(("chat", 0.5), ("embed", 0.45), TOTAL, AVAILABLE, unified=True).fails == ""
    assert predict_vllm(("embed", 0.46), ("chat", 0.5), TOTAL, AVAILABLE, unified=True).fails == "chat"


def test_a_first_engine_can_fail_too() -> None:
    """vLLM's own default of 0.92 and something else already there: the first is refused, whatever the second asks."""
    said = predict_vllm(("one", 0.92), ("two", 0.1), TOTAL, AVAILABLE - 10 * GIB, unified=True)
    assert said.fails == "one"
    assert "is less than desired GPU memory utilization (0.92, 111.95 GiB)" in said.why


def test_page_cache_counts_where_the_version_reads_the_driver() -> None:
    """vLLM 0.10.2 asks the driver, which counts page cache as used: what starts alone on 0.32 does not there."""
    cached = {"unified": True, "page_cache": AVAILABLE - FREE, "capability": (12, 1)}
    one, two = ("one", 0.4), ("two", 0.4)
    assert predict_vllm(one, two, TOTAL, AVAILABLE, version="0.32.0", **cached).fails == ""  # type: ignore[arg-type]
    assert predict_vllm(one, two, TOTAL, AVAILABLE, version="0.10.2", **cached).fails == "one"  # type: ignore[arg-type]
    assert predict_vllm(one, two, TOTAL, AVAILABLE, version="0.11.2", **cached).fails == ""  # type: ignore[arg-type]


class Device(Sources):
    """A device whose driver lists processes: each has a context of its own, or shares the first one's."""

    def __init__(self, context: int, shared: int = 0, listed: bool = True, free: bool = True) -> None:
        self.context, self.shared, self.listed, self.free = context, shared, listed, free
        self.held: dict[int, int] = {}

    def touch(self, pid: int) -> None:
        self.held[pid] = self.context - (self.shared if self.held else 0)

    def unified(self) -> bool | None:
        return False

    def device_processes(self) -> dict[int, Reading] | Unknown:
        return dict(self.held) if self.listed else Unknown("the driver says Not Supported")

    def card_memory(self) -> tuple[Reading, Reading]:
        if not self.free:
            return Unknown("the driver says [N/A]"), Unknown("the driver says [N/A]")
        return 80 * GIB - sum(self.held.values()), 80 * GIB


def _measured(device: Device) -> Row:
    @contextlib.contextmanager
    def second() -> Iterator[int]:
        device.touch(-1)
        yield -1

    figures = contexts.compare(device, lambda: device.touch(os.getpid()), second)
    row = Row("context_of_two", "context", None, allowed=parse("within 10%"))
    return replace(row, note=figures["unknown"]) if "unknown" in figures else second_process(row, figures)


@pytest.mark.parametrize("listed", [True, False])
def test_a_second_process_doubles_the_context(listed: bool) -> None:
    """707 MiB twice, by the driver's list of processes, and where it has none by what is free."""
    row = _measured(Device(707 * MIB, listed=listed))
    assert (row.predicted, row.measured, row.verdict) == (2 * 707 * MIB, 2 * 707 * MIB, "ok")
    assert ("NVML" if listed else "what is free") in row.note


@pytest.mark.parametrize("listed", [True, False])
def test_a_shared_context_is_noticed(listed: bool) -> None:
    """Under a server that shares contexts (MPS) the second costs less: not 2x, and the line says so."""
    row = _measured(Device(700 * MIB, shared=500 * MIB, listed=listed))
    assert row.verdict == "under"
    assert row.note.startswith("1.29x, not 2x: shared between them")


def test_a_context_that_nobody_counts_is_unknown() -> None:
    """No list of processes and no figure of what is free: the line says why, and is no number."""
    row = _measured(Device(707 * MIB, listed=False, free=False))
    assert row.measured is None
    assert "Not Supported" in row.note
