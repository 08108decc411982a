"""JSON read without the `json` module: the same values and the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import quick_json
from membudget.quick_json import loads

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "fixtures" / "models").glob("*.json"), ROOT / "machines.json"])

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def outcome(reader: object, text: str) -> object:
    """What a reader makes of a text, an error as its type and words."""
    try:
        return repr(reader(text))  # type: ignore[operator]
    except (ValueError, RecursionError) as error:
        return type(error), str(error)


def test_the_quick_way_is_in_use() -> None:
    """On CPython the scanner of `json` itself reads; nothing falls back unnoticed."""
    assert quick_json._scan is not None


def test_every_shipped_config() -> None:
    """Every shipped config and the machine table read as `json` reads them."""
    assert len(FILES) > 100
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert loads(text) == json.loads(text)


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_document(value: object, indent: int | str | None, ascii_only: bool) -> None:
    """Whatever `json` writes is read back, surrounding space or not."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert repr(loads(f" \r\n{text}\t ")) == repr(json.loads(text))


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u\n\ufeff\x00', max_size=30))
def test_any_text(text: str) -> None:
    """Anything else gives the error that `json` gives, at the same place."""
    assert outcome(loads, text) == outcome(json.loads, text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "[1,]", '{"a":1,}', "{} {}", "nul", "NaN", "-Infinity", '"\x01"', '"\\ud800"', "\ufeff{}", "01",
     "1e999", "9" * 5000, "[" * 100_000, '{"a": 1, "a": 2}', "\x0b1"],
)  # fmt: skip
def test_odd_texts(text: str) -> None:
    """Errors, constants, twice-written keys, long numbers and deep nesting are as in `json`."""
    assert outcome(loads, text) == outcome(json.loads, text)


def test_without_the_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scanner is missing, `json` reads."""
    monkeypatch.setattr(quick_json, "_scan", None)
    assert loads('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


def test_a_cut_document_in_a_fresh_process() -> None:
    """Where nothing has loaded `json` yet, a document cut anywhere is the error that `json` makes of it."""
    code = (
        "import sys\n"
        "from membudget.quick_json import loads\n"
        "text = sys.argv[1]\n"
        "for end in range(len(text)):\n"
        "    for name in [name for name in sys.modules if name.partition('.')[0] == 'json']:\n"
        "        del sys.modules[name]\n"
        "    try:\n"
        "        loads(text[:end])\n"
        "    except ValueError as error:\n"
        "        assert type(error).__name__ == 'JSONDecodeError', (end, error)\n"
        "    else:\n"
        "        raise SystemExit(f'{end} characters were read')\n"
    )
    text = '{"model_type": "lla\\u006da", "size": [1, 2.5e3, -7], "x": {"y": null, "z": true}}'
    command = [sys.executable, "-S", "-c", code, text]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
