"""`-m math` does not import the tests of the other tiers: some load torch, and all of them take seconds to collect."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

_MARKERS = ("math", "suite", "transformers", "cpu", "cuda", "spark", "slow")
_OF_THE_FILE = re.compile(r"^pytestmark = (?:\[)?pytest\.mark\.(\w+)", re.MULTILINE)
_ANY = re.compile(rf"\bmark\.({'|'.join(_MARKERS)})\b")


@cache
def tier(path: Path) -> str | None:
    """The only marker of a file's tests; None where they have several, or none."""
    text = path.read_text(encoding="utf-8")
    own = _OF_THE_FILE.search(text)
    return own[1] if own is not None and set(_ANY.findall(text)) == {own[1]} else None


def ignored(path: Path, config: pytest.Config) -> bool | None:
    """True for a test file all of whose tests `-m` leaves out; None lets pytest decide."""
    expression = str(config.getoption("markexpr", "") or "")
    words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    if not words or not words <= {*_MARKERS} or not path.name.startswith("test_") or path.suffix != ".py":
        return None
    marker = tier(path)
    if marker is None or not re.fullmatch(r"[\w\s()]*", expression):
        return None
    # nothing but markers, and, or, not and brackets
    return None if eval(expression, {"__builtins__": {}}, {word: word == marker for word in words}) else True
