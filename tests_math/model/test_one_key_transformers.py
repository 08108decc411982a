"""Each key of each model_type changed alone, against the classes of the installed transformers (4.57 or 5.24)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests_math.model.family_reference import TOWERS, UNBUILDABLE  # noqa: E402
from tests_math.model.one_key_explained import why  # noqa: E402
from tests_math.model.one_key_reference import NEWEST, Difference, differences  # noqa: E402

CENSUS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "census.json").read_text(encoding="utf-8")
)["types"]
TYPES = sorted(name for name, row in CENSUS.items() if row.get("random") and name not in TOWERS | UNBUILDABLE.keys())


def unexplained(found: list[Difference]) -> list[Difference]:
    """Differences without a reason."""
    return [one for one in found if not why(one, NEWEST)]


@pytest.mark.parametrize("model_type", TYPES[::20])
def test_two_keys(model_type: str) -> None:
    """A sample for every run: nine types, two changes each, always the same ones."""
    _, found = differences(model_type, CENSUS[model_type], sample=2)
    assert unexplained(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_every_key(model_type: str) -> None:
    """Every change of every key: the same number of parameters, or a reason in one_key_explained.py."""
    compared, found = differences(model_type, CENSUS[model_type])
    if not compared:
        pytest.skip("this version does not know the type, or counts its whole configs otherwise: docs/coverage.md")
    assert unexplained(found) == []
