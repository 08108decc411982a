"""The bar of a search: what is tried, of what range; only where a person looks."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

import pytest

from membudget.measure.edge import Looking, find_edge
from membudget.measure.progress import Progress

pytestmark = pytest.mark.suite


class Screen(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """It is one."""
        return True


def search(progress: Progress, true: int, near: int) -> None:
    """A search as a worker reports it."""

    def tell(looking: Looking) -> None:
        progress.hear({"stage": "edge", "looking": asdict(looking)})

    found = find_edge(lambda number: number <= true, near, 1000, tell)
    progress.hear({"stage": "edge", "batch": found.most, "fits": True})
    progress.hear({"stage": "edge", "found": {"users": found.most}})


def test_each_try_is_shown_with_its_range() -> None:
    """Doubling shows what fits so far, halving the range that is left; at the end the line is gone."""
    screen = Screen()
    search(Progress.on(screen), 12, 8)
    lines = screen.getvalue().split("\r\x1b[2K")[1:]
    assert lines[0] == "edge: trying 8 users, 0 fit, no limit seen yet, try 1"
    # 8, 9, 11 fit, 15 does not: 11..14 are left
    assert "trying 13 users of 11..14, try 5" in lines[4]
    assert lines[4].count("█") == 24 * 11 // 14
    assert lines[-1] == ""


def test_a_pipe_gets_nothing() -> None:
    """Where standard error goes into a file or a pipe no bar is in it."""
    kept = io.StringIO()
    search(Progress.on(kept), 12, 8)
    assert kept.getvalue() == ""


@pytest.mark.parametrize(
    "stage", [{"stage": "ready"}, {"stage": "growth", "tokens": 4}, {}, {"stage": "edge", "left": 0}]
)
def test_other_stages_draw_nothing(stage: dict[str, Any]) -> None:
    """Only tries are drawn."""
    screen = Screen()
    Progress.on(screen).hear(stage)
    assert screen.getvalue() == ""


def test_ascii_where_blocks_do_not_arrive() -> None:
    """A terminal without Unicode gets a bar of ASCII."""
    text: list[str] = []
    progress = Progress(text.append, unicode=False)
    progress.hear({"stage": "trace_edge", "looking": {"number": 3, "low": 2, "high": 5}})
    assert text[-1].endswith("edge on fake tensors: ############............ trying 3 users of 2..4, try 1")
    assert text[-1].isascii()
