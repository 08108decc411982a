"""A real llama.cpp loads our header of every architecture, and says our caches, states and compute buffer.

An eighth of the types a run, by the day; all of them with MEMBUDGET_FULL=1.  13 settings a type, over a second each.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest

from membudget.checkpoint.gguf_header_keys import ARCHITECTURES
from membudget.engines.llama_cpp.compute import proven
from membudget.model import Model
from tests_math.engines.llama_cpp.library import needs_library
from tests_math.engines.llama_cpp.test_census import DIGIT, TYPES
from tools.llama_census import GRID, candidate, entry, published_models

pytestmark = [pytest.mark.cpu, needs_library]

SHARES = 8
TODAY = None if os.environ.get("MEMBUDGET_FULL") else datetime.date.today().toordinal() % SHARES
LOADED = [kind for kind, row in TYPES.items() if "grid" in row]
KINDS = [kind for number, kind in enumerate(LOADED) if TODAY is None or number % SHARES == TODAY]


@pytest.fixture(scope="module")
def published() -> dict[str, list[Model]]:
    """The package's configs by model_type."""
    return published_models()


def test_the_grid_has_twelve_settings() -> None:
    """Contexts, slots, unified, batches, flash attention, cache types, full windows, rows of logits."""
    assert len(GRID) >= 12


@pytest.mark.parametrize("kind", KINDS)
def test_an_architecture(kind: str, published: dict[str, list[Model]]) -> None:
    """The header loads, its answers are the recorded ones, and the arithmetic's."""
    row = entry(candidate(kind, published))
    assert "grid" in row, row["why"]
    assert row["model"] == TYPES[kind]["model"]
    for number, (cell, recorded) in enumerate(zip(row["grid"], TYPES[kind]["grid"], strict=True)):
        assert asked(cell) == asked(recorded), GRID[number]
        for name in ("cache", "state"):
            said, ours = cell.get(name, (0, 0))
            assert ours == pytest.approx(said, abs=3 * DIGIT), (name, GRID[number])
        if "compute" in cell and proven(ARCHITECTURES[kind]):
            said, ours = cell["compute"]
            assert ours == pytest.approx(said, rel=0.02), GRID[number]


def asked(cell: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's side of one setting."""
    return {name: value if isinstance(value, str) else value[0] for name, value in cell.items()}
