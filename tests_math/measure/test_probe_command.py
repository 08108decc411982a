"""`membudget probe`: what it refuses before anything is loaded."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest

from membudget.cli import main as cli
from membudget.cli.commands import probe
from membudget.host import available
from membudget.measure import run as measure
from membudget.measure.lock import Busy
from membudget.units import GIB

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
SPARK = str(ROOT / "budgets" / "llama-3.1-8b-bf16.dgx-spark.yaml")
TINY = [str(ROOT / "tests_hw" / "budgets" / "llama-tiny.cpu.yaml"), "--machines", str(ROOT / "tests_hw/machines.yaml")]


@pytest.mark.parametrize("text", ["12", "0", "1_000", "-1GiB", ""])
def test_a_floor_without_a_unit_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--floor 12`, meant as GiB, would be 12 bytes and leave a Spark without its guard."""
    assert cli.main(["probe", SPARK, "--dry-run", f"--floor={text}"]) == 2
    assert "--floor" in capsys.readouterr().err


def test_a_floor_has_a_least_on_unified_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Under 4 GiB the guard would be too late where running out hangs the host; elsewhere any size will do."""
    assert cli.main(["probe", SPARK, "--dry-run", "--floor", "1GiB"]) == 2
    assert "allowed is 12.000 GiB or more" in capsys.readouterr().err
    assert cli.main(["probe", *TINY, "--dry-run", "--floor", "1MiB"]) in (0, 3)  # 3 without torch
    assert "1.00 MiB reserve" in capsys.readouterr().out


def test_a_dry_run_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Enough memory is not enough: without CUDA in torch it would not start, and the dry run says so."""
    code, told = _said(monkeypatch, capsys, 120 * GIB, "needs torch with CUDA")
    assert code == 3
    assert len(told) == 2  # a budget of 8Ki and one of 32Ki
    assert all("needs torch with CUDA" in text and "20.00 GiB reserve" in text for text in told)


def test_a_dry_run_has_both_numbers_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 where it would start, 3 where it would not; what it needs and what there is, either way."""
    code, told = _said(monkeypatch, capsys, 120 * GIB, None)
    assert code == 0
    needs = [int(float(re.findall(r"needs ([0-9.]+) GiB", text)[0]) * GIB) for text in told]
    assert all("120.00 GiB is available" in text for text in told)
    code, told = _said(monkeypatch, capsys, max(needs) - GIB, None)
    assert code == 3
    assert any(text.startswith("needs") and "the peak is of" in text for text in told)


def _said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: int, lacks: str | None
) -> tuple[int, set[str]]:
    monkeypatch.setattr(probe, "Settings", functools.partial(measure.Settings, available=lambda: free))
    monkeypatch.setattr(available, "missing", lambda *_: lacks)
    code = cli.main(["probe", SPARK, "--dry-run", "--json"])
    return code, {plan["now"] for plan in json.loads(capsys.readouterr().out)["plans"]}


def test_a_second_measurement_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who measures on this machine is said, with exit code 3; nothing is called an internal error."""

    def taken(*_: object) -> None:
        raise Busy("process 7 is measuring on this machine")

    monkeypatch.setattr(probe, "measure", taken)
    monkeypatch.setattr(probe, "_needs", lambda _: None)
    assert cli.main(["probe", *TINY]) == 3
    assert capsys.readouterr().err.strip() == "membudget: process 7 is measuring on this machine"
