"""What is still reserved when tensors are gone, what empty_cache gives back, and the double copy of a growing cache."""

from __future__ import annotations

from typing import Any

import pytest

from membudget.measure.experiment import PIECE, PIECE_CPU, ROW, differences, expected
from membudget.measure.run import run_step, small_limits
from membudget.units import GIB, MIB


def _run(device: str, piece: int) -> list[dict[str, Any]]:
    limits = small_limits()
    if device == "cpu":
        from membudget.measure import guard

        limits = guard.Limits(peak=GIB, reserve=GIB // 2, floor=GIB // 2, seconds=120.0)
    outcome = run_step({"do": "experiment", "piece": piece}, {}, "bf16", limits, device=device)
    assert outcome.status == "done", f"{outcome.why}\n{outcome.stderr}"
    assert outcome.result is not None
    figures = outcome.result["steps"]["experiment"]
    assert "error" not in figures, figures
    return figures["stages"]  # type: ignore[no-any-return]


@pytest.mark.cuda
def test_the_allocator_on_cuda() -> None:
    """Every stage is the algorithm's, to the byte, and the driver sees what is kept and what is given back."""
    assert differences(_run("cuda", PIECE), expected(PIECE), PIECE) == []


@pytest.mark.cpu
def test_without_a_caching_allocator() -> None:
    """On the CPU nothing is reserved: what tensors ask for, and the double copy, are the algorithm's all the same."""
    pytest.importorskip("torch")
    seen = _run("cpu", PIECE_CPU)
    assert all(stage["reserved"] is None for stage in seen)
    assert differences(seen, expected(PIECE_CPU), PIECE_CPU) == []
    grown = seen[-1]
    assert grown["requested"] == PIECE_CPU + 2 * ROW
    assert grown["peak"] == 2 * PIECE_CPU + 2 * ROW  # the old and the new at once


@pytest.mark.cpu
def test_metal_keeps_what_is_deleted() -> None:
    """The same on Apple's GPU, whose allocator keeps memory too."""
    torch = pytest.importorskip("torch")
    if not torch.backends.mps.is_available():
        pytest.skip("needs Metal")
    stages = {stage["stage"]: stage for stage in _run("mps", PIECE)}
    assert stages["four"]["requested"] == 4 * PIECE
    assert stages["deleted"]["requested"] == 0
    assert stages["deleted"]["reserved"] >= 4 * PIECE
    assert stages["emptied"]["reserved"] < PIECE


@pytest.mark.math
def test_the_stages_by_the_algorithm() -> None:
    """1 GiB stays reserved when nothing is allocated, and is back after empty_cache."""
    stages = {stage["stage"]: stage for stage in expected(PIECE)}
    assert [stages[name]["requested"] for name in ("empty", "four", "deleted", "emptied")] == [0, GIB, 0, 0]
    assert [stages[name]["reserved"] for name in ("empty", "four", "deleted", "emptied")] == [0, GIB, GIB, 0]
    # 256 MiB, a small segment of 2 MiB for the row, and the grown one rounded to 2 MiB beside the old one
    assert stages["grown"]["reserved"] == 256 * MIB + 2 * MIB + 258 * MIB


@pytest.mark.math
def test_a_device_that_differs_is_named() -> None:
    """An allocator that gives back at once, and a driver that does not see it, are named by stage."""
    seen = [{**stage, "usable": 100 * GIB} for stage in expected(PIECE)]
    for stage, left in zip(seen, (100, 99, 99, 100, 99), strict=True):
        stage["usable"] = left * GIB
    assert differences(seen, expected(PIECE), PIECE) == []
    seen[2]["reserved"] = 0
    assert differences(seen, expected(PIECE), PIECE) == ["deleted: reserved 0 B, by the algorithm 1.00 GiB"]
    seen[2] = {**expected(PIECE)[2], "usable": 100 * GIB}
    assert any("the driver has it back already" in text for text in differences(seen, expected(PIECE), PIECE))
