"""docs/lesson.md is what its commands print, and its figures are the lesson's; benchmarks/speed.py judges ratios."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[1]


def _script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_step_prints_what_the_page_shows() -> None:
    """After a change of what a command prints: `python tools/lesson_docs.py`."""
    command = [sys.executable, str(ROOT / "tools" / "lesson_docs.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, f"docs/lesson.md is stale: run python tools/lesson_docs.py\n{done.stdout}{done.stderr}"


def test_the_lessons_figures_are_ours() -> None:
    """Each from its command's JSON."""
    lesson = _script("tools/lesson_docs.py")
    for text, expected, command, path in lesson.FIGURES:
        assert expected == lesson.figure(command, path), text


def test_a_slower_command_is_a_regression_and_a_slower_machine_is_none() -> None:
    """Ratios are compared: 31% above the saved one is said, 29% is not."""
    speed = _script("benchmarks/speed.py")
    assert speed.regressions({"plan": 1.31, "count": 1.29, "new": 9.0}, {"plan": 1.0, "count": 1.0}, 0.30) == {
        "plan": pytest.approx(0.31)
    }


@pytest.mark.parametrize(("measured", "code"), [([1.5, 1.4, 1.2], 0), ([1.5, 1.4, 1.35], 1), ([1.2], 0)])
def test_a_regression_is_measured_three_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: list[float], code: int
) -> None:
    """A machine that is busy elsewhere is slow once; nothing is measured again where nothing is slow."""
    speed = _script("benchmarks/speed.py")
    found = iter(measured)
    monkeypatch.setattr(speed, "measure", lambda rounds: {"plan": next(found)})
    baseline = tmp_path / "speed.json"
    baseline.write_text('{"plan": 1.0}', encoding="utf-8")
    assert speed.main(["--baseline", str(baseline)]) == code
    assert next(found, None) is None
