"""What was measured of a machine is kept beside its name and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.profile.learned import of_json
from membudget.machines import measured
from tests_math.engines.vllm.logs.test_log_explain import start

pytestmark = pytest.mark.suite


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMBUDGET_MEASURED", str(tmp_path / "measured"))


def test_a_measurement_is_read_back() -> None:
    """Under every spelling of the machine's name, by kind, the oldest first."""
    assert measured.read("dgx-spark", "probe") == []
    measured.add("dgx-spark", "probe", {"bytes": 1})
    measured.add("NVIDIA DGX Spark", "probe", {"bytes": 2})
    measured.add("dgx-spark", "vllm_profile", {"weights": 3})
    assert measured.read("dgx-spark", "probe") == [{"bytes": 1}, {"bytes": 2}]
    assert measured.read("h100-80gb", "probe") == []


@pytest.mark.parametrize("line", ["{", "[]", "1"])
def test_a_line_that_is_not_ours_is_named(line: str) -> None:
    """File and line."""
    path = measured.add("dgx-spark", "probe", {"bytes": 1})
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(measured.MeasuredError, match=f"{path.name}:2"):
        measured.read("dgx-spark", "probe")


def test_a_log_teaches_its_machine(ask: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    """`membudget log FILE --learn`: weights, activations and non-torch memory of the start, as bytes."""
    log = tmp_path / "server.log"
    log.write_text("".join(start()), encoding="utf-8")
    code, (found,) = ask("log", str(log), "--learn", "--machine", "h100-80gb")
    assert code == 0
    (kept,) = measured.read("h100-80gb", "vllm_profile")
    assert kept == found["learned"]
    entry = of_json(kept)
    assert (entry.form, entry.version, entry.source) == ("bf16", "0.32.0", "server.log")
    # 14.99 GiB of weights; 1.0 of activations and graphs less 0.5 of graphs; 15.8 consumed less the weights
    assert [round(size / 2**30, 2) for size in (entry.weights, entry.activation, entry.non_torch) if size] == [
        14.99,
        0.5,
        0.81,
    ]


def test_the_next_plan_uses_what_a_start_took(ask: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    """0.81 GiB outside torch, as the log has it, in place of what is assumed of an H100; the plan says since when."""
    asked = ("plan", "Qwen/Qwen3-8B", "--machine", "h100-80gb", "--ctx", "8k")  # another model than the log's
    _, before = ask(*asked)
    log = tmp_path / "server.log"
    log.write_text("".join(start()), encoding="utf-8")
    ask("log", str(log), "--learn", "--machine", "h100-80gb")
    _, after = ask(*asked)
    parts = {part["name"]: part for part in after["pool"]["parts"]}
    assert parts["non_torch"]["bytes"] == round((15.8 - 14.99) * 2**30)
    assert "measured" in parts["non_torch"]["why"]
    assert parts["activation"] == {part["name"]: part for part in before["pool"]["parts"]}["activation"]
    assert "learned" in [note["code"] for note in after["engine_notes"]]
    assert before["pool"]["available"] != after["pool"]["available"]
    _, other = ask("plan", "Qwen/Qwen3-8B", "--machine", "h200-141gb", "--ctx", "8k")
    assert "learned" not in [note["code"] for note in other["engine_notes"]]


def test_nothing_is_learned_of_nobody(ask: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    """Without a machine there is no place for it."""
    log = tmp_path / "server.log"
    log.write_text("".join(start()), encoding="utf-8")
    assert ask("log", str(log), "--learn")[0] == 2
