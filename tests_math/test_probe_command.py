"""`membudget probe`: what it refuses before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from membudget import cli
from membudget.commands import probe
from membudget.probe import measure
from membudget.probe.lock import Busy

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parent.parent
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
    assert "allowed is 4.000 GiB or more" in capsys.readouterr().err
    assert cli.main(["probe", *TINY, "--dry-run", "--floor", "1MiB"]) == 0


def test_a_dry_run_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Enough memory is not enough: without CUDA in torch it would not start, and the dry run says so."""
    monkeypatch.setattr(measure, "refused", lambda *_: None)
    monkeypatch.setattr(probe, "_lacks", lambda _: "needs torch with CUDA")
    cli.main(["probe", SPARK, "--dry-run", "--json"])
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {plan["refused"] for plan in plans} == {"the memory is there, but it would not start: needs torch with CUDA"}


def test_a_second_measurement_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who measures on this machine is said, with exit code 3; nothing is called an internal error."""

    def taken(*_: object) -> None:
        raise Busy("process 7 is measuring on this machine")

    monkeypatch.setattr(measure, "measure", taken)
    monkeypatch.setattr(probe, "_needs", lambda _: None)
    assert cli.main(["probe", *TINY]) == 3
    assert capsys.readouterr().err.strip() == "membudget: process 7 is measuring on this machine"
