"""What the installed transformers holds, asked for real; and a cache that is broken on purpose, found by diff."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load, parse
from membudget.history import Record, append, compare, make, read_folder, survey
from membudget.history.drift import drift_tolerance
from membudget.history.text import drift_lines

pytestmark = pytest.mark.transformers

ROOT = Path(__file__).parents[2]
WINDOWED = (
    "model: mistralai/Mistral-7B-v0.1\nformat: bf16\nkv_cache_dtype: bf16\nctx: 16Ki\nusers: 1\nmachine: h100-80gb\n"
)
Line = dict[str, int]


@pytest.fixture(scope="module")
def windowed() -> Budget:
    """Mistral 7B: 32 layers with a window of 4,096 tokens, at four times that."""
    budgets, problems = parse(WINDOWED.encode(), "mistral", "mistral", ".", Sources())
    assert not problems
    return budgets[0]


def ask(budget: Budget) -> Line:
    """The survey's lines, in this process."""
    from membudget.measure.survey import ask as asked

    config = dict(budget.model.config.raw)
    return asked({"id": budget.id, "config": config, "dtype": "bf16", "ctx": budget.ctx, "users": budget.users})


def record(budget: Budget, lines: Line, version: str, day: int) -> Record:
    """These lines as a run of a version."""
    answer = survey.Answer({"transformers": version}, {budget.id: lines}, {})
    made = make("survey transformers", survey.entries(answer, [budget], "transformers"), versions=answer.versions)
    return made._replace(id=f"202611{day:02}-{version}", time=f"2026-11-{day:02}T00:00:00.000000Z")


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Break transformers: its sliding layers keep twice their window."""

    def patch() -> None:
        from transformers.cache_utils import DynamicSlidingWindowLayer as Layer

        made = Layer.__init__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            self.sliding_window *= 2

        monkeypatch.setattr(Layer, "__init__", init)

    return patch


def test_a_cache_that_keeps_twice_its_window_is_named(
    windowed: Budget, twice: Callable[[], None], tmp_path: Path
) -> None:
    """Three versions, of which the last is broken on purpose: diff names kv_cache, the bytes and the version."""
    good = ask(windowed)
    assert good["kv_cache"] == 4096 * 32 * 2 * 8 * 128 * 2
    twice()
    bad = ask(windowed)
    for day, (version, lines) in enumerate({"9.1.0": good, "9.2.0": good, "9.3.0": bad, "9.4.0": bad}.items(), 1):
        append(record(windowed, lines, version, day), str(tmp_path))
    runs = read_folder(str(tmp_path)).records
    drift = compare(runs[0], runs[-1], runs)
    measured = [move for move in drift.beyond if move.side == "measured" and move.line == "kv_cache"]
    (move,) = measured
    assert (move.before, move.after) == (536_870_912, 2 * 536_870_912)
    assert move.since is not None
    assert [str(item) for item in move.since.versions] == ["version transformers: 9.2.0 -> 9.3.0"]
    assert not move.explained
    assert runs[0].green
    assert not runs[-1].green
    text = "\n".join(drift_lines(drift))
    assert "kv_cache of mistral measured: 512.00 MiB -> 1.00 GiB, +0.50 GiB (+100%, 2x more)" in text


def test_the_installed_version_is_as_predicted() -> None:
    """In a process of its own: parameters, weights and cache of full-size models, dense, and MLA with experts."""
    names = ("llama-3.2-1b-eager.rtx-4090", "deepseek-v2-lite-bf16.h100-80")
    budgets = [item for file in load([str(ROOT / "budgets")], Sources()) for item in file.budgets if item.id in names]
    assert len(budgets) == len(names)
    answer = survey.ask(sys.executable, "transformers", budgets)
    assert answer.errors == {}
    entries = survey.entries(answer, budgets, "transformers")
    assert {name: entry.why for name, entry in entries.items()} == dict.fromkeys(names, "")
    assert all(entry.lines["kv_cache"].measured for entry in entries.values())


def test_experts_that_cannot_be_traced_are_stepped_over(windowed: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routing that looks at data, as in older versions: the cache is still measured, the peak is left out."""
    import torch
    from transformers.models.mixtral import modeling_mixtral as mixtral

    def routed(self: Any, hidden: Any, *more: Any) -> Any:
        assert int(torch.argmax(hidden)) >= 0
        return hidden

    monkeypatch.setattr(mixtral.MixtralExperts, "forward", routed)
    text = WINDOWED.replace("mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1")
    budgets, _ = parse(text.encode(), "mixtral", "mixtral", ".", Sources())
    found = ask(budgets[0])
    assert "prefill_peak" not in found
    assert found["kv_cache"] == 16384 * 32 * 2 * 8 * 128 * 2


def test_what_is_not_built_is_an_error_of_its_own(
    windowed: Budget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model_type that this version does not have: named, and the other budget is answered all the same."""
    from membudget.measure import survey as child

    subjects = [
        {"id": "broken", "config": {"model_type": "never_was"}, "dtype": "bf16", "ctx": 64, "users": 1},
        {"id": "whole", "config": dict(windowed.model.config.raw), "dtype": "bf16", "ctx": 64, "users": 1},
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"subjects": subjects})))
    assert child.main() == 0
    answer = survey.read_answers(capsys.readouterr().out, {"broken": windowed, "whole": windowed})
    assert "never_was" in answer.errors["broken"]
    assert answer.lines["whole"]["kv_cache"] == 64 * 32 * 2 * 8 * 128 * 2


def test_weights_may_be_a_little_more() -> None:
    """Routers kept in fp32 are allowed; between two runs that holds to both sides."""
    assert drift_tolerance(survey.ALLOWED["weights"]).allows(2**30, 2**30 - 2**26)
