"""The day with a GPU, rehearsed: one command, four parts, one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.cpu
@pytest.mark.slow
def test_the_day_is_rehearsed(tmp_path: Path) -> None:
    """On the CPU with tiny models: every part runs, is written, and every line holds."""
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "tools" / "gpu_day.py"), "--rehearse", "--out", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "MEMBUDGET_VLLM"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary["parts"]) == ["proof", "small", "large", "beside"]
    assert (summary["broken"], summary["left_out"]) == ([], [])
    for part in summary["parts"]:
        assert json.loads((tmp_path / f"{part}.json").read_text())["seconds"] > 0


@pytest.mark.cpu
def test_a_part_without_time_is_left_out(tmp_path: Path) -> None:
    """What its time would not suffice for is not begun, and said; the folder is complete all the same."""
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "tools" / "gpu_day.py"), "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--seconds", "1"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["parts"], len(summary["left_out"])) == ({}, 4)
