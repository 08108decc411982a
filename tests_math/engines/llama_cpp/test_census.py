"""Every architecture's caches and compute buffer against llama.cpp's own (fixtures/llama_cpp/census.json)."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from membudget.checkpoint.gguf_header_keys import ARCHITECTURES
from membudget.engines.llama_cpp.compute import proven

pytestmark = pytest.mark.math

CENSUS: dict[str, Any] = json.loads(pathlib.Path("fixtures/llama_cpp/census.json").read_text())
TYPES: dict[str, dict[str, Any]] = CENSUS["types"]
ANSWERED = {kind: row["grid"] for kind, row in TYPES.items() if "grid" in row}
#: The last digit that llama.cpp prints of a buffer, in MiB; a line each for full layers and windows.
DIGIT = 2 * 0.01 * 2**20


def test_every_type_is_in_the_census() -> None:
    """A type that is new here is asked about."""
    assert set(TYPES) == set(ARCHITECTURES)


def test_every_header_loads() -> None:
    """llama.cpp takes the header of every type, and refuses single settings alone."""
    assert {kind: row["why"] for kind, row in TYPES.items() if "why" in row} == {}


@pytest.mark.parametrize("kind", ANSWERED)
def test_caches(kind: str) -> None:
    """Keys, values and states are llama.cpp's to the digit it prints; unknown ones are said to be."""
    for number, row in enumerate(ANSWERED[kind]):
        for name in ("cache", "state"):
            asked, ours = row.get(name, (0, 0))
            # a line each for up to six parts: windows, compressed cells, an indexer's, three states
            assert ours == pytest.approx(asked, abs=3 * DIGIT), (number, name)


@pytest.mark.parametrize("kind", [kind for kind in ANSWERED if proven(ARCHITECTURES[kind])])
def test_compute_buffers(kind: str) -> None:
    """Within 2% on the whole grid."""
    for number, row in enumerate(ANSWERED[kind]):
        if "compute" in row:
            asked, ours = row["compute"]
            assert ours == pytest.approx(asked, rel=0.02), number


def test_most_compute_buffers_are_exact() -> None:
    """To 0.1%: more than nine of ten settings of proven architectures."""
    pairs = [
        row["compute"]
        for kind, grid in ANSWERED.items()
        if proven(ARCHITECTURES[kind])
        for row in grid
        if "compute" in row
    ]
    exact = [1 for asked, ours in pairs if ours is not None and abs(ours / asked - 1) < 0.001]
    assert len(exact) > 0.9 * len(pairs)
