"""Two processes at once, for real: the first holds its claim, touched, and the predicted one fails.

On the CPU the machine is of a fixed size, less what the processes really hold by their own RSS; on a device
the readings are the device's, and the reserve leaves room for one of the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.machines import Machine
from membudget.measure.device import available_on, device_of
from membudget.measure.pairs import Claim, Kind, Shown, predict, show
from membudget.units import GIB, MIB

#: A machine of this size, of which the reserve is kept.  One claim fits, two do not.
SIZE, RESERVE, CLAIM = 2 * GIB, GIB, 640 * MIB


class Box:
    """A machine of `SIZE` with nobody else on it: what is available is what these processes' RSS leaves."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.before: dict[str, int] = {}

    def hear(self, name: str, stage: dict[str, Any]) -> None:
        """Note who a process is, and what it held when torch was loaded and nothing claimed."""
        if "pid" in stage:
            self.pids[name] = stage["pid"]
        if stage["stage"] == "claim" and stage.get("begins"):
            self.before[name] = _rss(self.pids[name])

    def available(self) -> int:
        """The size less what was really taken since."""
        return SIZE - sum(max(0, _rss(self.pids[name]) - before) for name, before in self.before.items())


def _rss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.cpu
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux: RSS of processes is read in /proc")
@pytest.mark.parametrize(
    ("kind", "order"),
    [("engine", ("chat", "embed")), ("engine", ("embed", "chat")), ("notebook", ("chat", "embed"))],
)
def test_the_predicted_one_fails(kind: str, order: tuple[str, str]) -> None:
    """While one holds 640 of 2,048 MiB the other is refused, or runs out on its way; in the other order the other."""
    pytest.importorskip("torch")
    first, second = Claim(order[0], CLAIM), Claim(order[1], CLAIM, Kind(kind))
    predicted = predict(first, second, RESERVE, SIZE)
    assert predicted.fails == order[1]
    box = Box()
    shown = show(first, second, RESERVE, available=box.available, hear=box.hear)
    assert shown.fails == predicted.fails, shown.said
    assert shown.held[order[0]] == CLAIM
    if kind == "engine":
        # its claim and the reserve, against what the first one's real memory leaves
        assert "needs 1.62 GiB (640.00 MiB predicted peak + 1.00 GiB reserve), 1.3" in shown.said
        assert order[1] not in shown.held
    else:
        assert 0 < shown.held[order[1]] <= SIZE - RESERVE - CLAIM
        assert "out of memory with" in shown.said


@pytest.mark.cpu
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux: RSS of processes is read in /proc")
def test_two_that_fit_both_hold() -> None:
    """Where the prediction says that both fit, both hold what they claimed."""
    pytest.importorskip("torch")
    first, second, box = Claim("chat", 256 * MIB), Claim("embed", 256 * MIB), Box()
    assert predict(first, second, RESERVE, SIZE).fails == ""
    shown = show(first, second, RESERVE, available=box.available, hear=box.hear)
    assert (shown.fails, shown.held) == ("", {"chat": 256 * MIB, "embed": 256 * MIB})


def _on_device(machine: Machine, kind: str) -> Shown:
    """Two claims of 4 GiB on a device whose reserve leaves 6 GiB: contexts (below 1 GiB) do not change who fails."""
    available: Callable[[], int | None] = available_on(machine)
    now = available()
    if now is None or now < 8 * GIB:
        pytest.skip(f"needs 8 GiB free on the device; {now if now is None else f'{now / GIB:.1f} GiB'} is")
    first, second, reserve = Claim("chat", 4 * GIB), Claim("embed", 4 * GIB, Kind(kind)), now - 6 * GIB
    predicted = predict(first, second, reserve, now)
    assert predicted.fails == "embed"
    shown = show(first, second, reserve, available=available, device=device_of(machine))
    assert shown.fails == predicted.fails, shown.said
    assert shown.held["chat"] == 4 * GIB
    return shown


@pytest.mark.parametrize("marker", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("cuda", "spark")])
@pytest.mark.parametrize("kind", ["engine", "notebook"])
def test_the_predicted_one_fails_on_a_device(marker: str, kind: str) -> None:
    """The same on the device's own readings: one engine holds 4 GiB, and the second of two does not get its own."""
    from membudget.host.detect import detect

    shown = _on_device(detect(), kind)
    assert ("reserve" if kind == "engine" else "out of memory") in shown.said


@pytest.mark.cuda
def test_a_second_process_has_a_context_of_its_own() -> None:
    """Two processes touch the device: their device bytes (NVML) together are twice those of one."""
    from membudget.budgets.tolerance import parse
    from membudget.measure.comparison import Row
    from membudget.measure.results import second_process
    from membudget.measure.run import run_step, small_limits

    outcome = run_step({"do": "second_context"}, {}, "bf16", small_limits(), device="cuda")
    assert outcome.status == "done", f"{outcome.why}\n{outcome.stderr}"
    assert outcome.result is not None
    figures = outcome.result["steps"]["second_context"]
    if "unknown" in figures:
        pytest.skip(figures["unknown"])
    row = second_process(Row("context_of_two", "context", None, allowed=parse("within 10%")), figures)
    assert row.holds, row.note
