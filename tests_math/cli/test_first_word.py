"""`membudget MODEL`: a short name, several machines in one table, and what a typo gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from membudget.sources import locate

pytestmark = pytest.mark.math

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]


def test_a_models_name_alone_is_a_plan_on_one_screen(run: Run) -> None:
    """A line a machine, what serves the most users first, one line to type, and the next command."""
    code, out, _ = run("Qwen3-32B")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 24
    names = [line.split()[0] for line in lines if line.startswith(("dgx-spark ", "h100-80gb ", "rtx-4090 "))]
    assert names == ["dgx-spark", "h100-80gb", "rtx-4090"]
    assert "  vllm serve Qwen/Qwen3-32B --max-model-len 8192 --gpu-memory-utilization 0.83" in lines
    assert "membudget plan Qwen3-32B --machine dgx-spark --ctx 8192 --users 1" in " ".join(lines)


def test_the_table_is_the_plans(run: Run, ask: Ask) -> None:
    """Users of each row are what each machine's own plan says; what fits stands first."""
    asked = ["Qwen3-32B", "--users", "4", "--ctx", "8k"]
    for machine in ("l4", "h200-141gb", "2x h100-80gb"):
        asked += ["--machine", machine]
    _, out, _ = run(*asked)
    rows = {line[: len("2x h100-80gb")].strip(): line.split() for line in out.splitlines() if " of " in line}
    _, document = ask(*asked)
    found = {plan["machine"]: plan for plan in document["plans"]}
    rows = {name: cells for name, cells in rows.items() if name in found}
    assert set(rows) == set(found) == {"2x h100-80gb", "h200-141gb", "l4"}
    for name, cells in rows.items():
        assert f"{found[name]['max_users']:,}" in cells
    assert list(rows)[-1] == "l4"
    assert "does not start" in out


def test_one_machine_is_the_whole_plan(run: Run) -> None:
    """With one machine there is nothing to compare."""
    assert run("qwen3-32b", "--machine", "h100-80gb") == run("plan", "qwen3-32b", "--machine", "h100-80gb")


def test_a_short_name_of_several_models_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two organisations' models of one name are both named; a name that is no model's is no model."""
    monkeypatch.setattr(locate, "_stems", lambda folder: ["a--M-1B", "b--m-1b", "c--Other"])
    with pytest.raises(locate.ConfigError, match=r"a/M-1B, b/m-1b"):
        locate.locate("M-1B", offline=True)
    assert locate.is_known("M-1B")
    assert not locate.is_known("plna")


def test_a_typo_of_a_command_is_said(run: Run) -> None:
    """No model is called so: near commands are named."""
    code, _, err = run("plna", "Qwen/Qwen3-8B")
    assert code == 2
    assert "unknown command 'plna'" in err
    assert "near are plan" in err
