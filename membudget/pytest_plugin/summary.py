"""What pytest shows of budgets: figures behind each test with -v, and a table at the end."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import pytest

from membudget.pytest_plugin import ci
from membudget.units import gib, short


class Summary:
    """Collects the figures that reports carry (from xdist's workers too) and prints them.

    skipped: how many tests cannot run on this machine, by the reason; not known with xdist, whose workers collect.
    """

    def __init__(self, config: pytest.Config, name: str, skipped: Mapping[str, int]) -> None:
        self.config, self.name, self.skipped = config, name, skipped
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a budget's figures; it failed if one of its tests did."""
        figures = self._figures(report)
        if figures is None:
            return
        row = self.rows.setdefault(figures["budget"], {**figures, "failed": ""})
        if report.failed and not row["failed"]:
            text = str(report.longrepr).strip()
            row["failed"] = text.splitlines()[0] if text else "failed"

    def pytest_report_teststatus(self, report: Any, config: pytest.Config) -> Any:
        """With -v: total, headroom and verdict behind PASSED or FAILED."""
        if config.get_verbosity() < 1 or hasattr(report, "wasxfail") or getattr(report, "skipped", True):
            return None
        figures = self._figures(report)
        if figures is None or "total" not in figures:
            return None
        text = f"{short(figures['total'])}, {_left(figures)}"
        if report.passed:
            return "passed", ".", (f"PASSED ({text})", {"green": True})
        return "failed", "F", (f"FAILED ({text})", {"red": True})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table, and why tests cannot run here; nothing with -q or without budgets."""
        if self.config.get_verbosity() < 0:
            return
        self._not_here(terminalreporter)
        if not self.rows:
            return
        if ci.wanted(os.environ):
            for row in self.rows.values():
                if row["failed"]:
                    place = (os.path.relpath(row["file"], self.config.rootpath), row["line"]) if row.get("file") else ()
                    terminalreporter.line(ci.annotation(f"budget {row['budget']}", row["failed"], *place))
        terminalreporter.section("memory budgets")
        rows = sorted(self.rows.values(), key=_by_number)
        width = max(len("budget"), *(len(row["budget"]) for row in rows))
        terminalreporter.line(f"{'budget':{width}}  {'total':>14}  {'headroom':>14}  verdict")
        for row in rows:
            size, left = (gib(row[name]) if name in row else "" for name in ("total", "headroom"))
            colour = {"red": True} if row["failed"] else {"green": True}
            terminalreporter.write(f"{row['budget']:{width}}  {size:>14}  {left:>14}  ")
            terminalreporter.line(_verdict(row), **colour)
        for note in dict.fromkeys(note for row in rows for note in row.get("notes", ())):
            terminalreporter.line(note, yellow=True)

    def _not_here(self, terminalreporter: Any) -> None:
        """One line a reason, unless -rs says it anyway."""
        if not self.skipped or "s" in str(self.config.getoption("reportchars", "")):
            return
        terminalreporter.section("not on this machine")
        for reason, many in sorted(self.skipped.items(), key=lambda pair: -pair[1]):
            terminalreporter.line(f"{many:>5} test{'s' if many != 1 else ' '}  {reason}")

    def _figures(self, report: Any) -> dict[str, Any] | None:
        if getattr(report, "when", None) != "call":
            return None
        for name, value in getattr(report, "user_properties", ()):
            if name == self.name:
                return dict(json.loads(value))
        return None


def _by_number(row: dict[str, Any]) -> list[tuple[int, str]]:
    """By name, 8Ki before 32Ki; xdist's workers report in any order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", row["budget"])]


def _left(figures: dict[str, Any]) -> str:
    if figures["fits"]:
        return f"fits, {short(figures['headroom'])} left"
    return f"does not fit, {short(-figures['headroom'])} over"


def _verdict(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"FAILED: {row['failed']}"
    return "fits" if row["fits"] else "does not fit, as expected"
