"""No phrase of the last table of docs/words.md stands in the package or the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite
ROOT = Path(__file__).parents[1]
WORDS = ROOT / "docs" / "words.md"
#: Written by tools/ from the package's own words; edited there.
GENERATED = frozenset({"docs/cli.md", "docs/budgets.md", "docs/coverage.md", "docs/versions.md"})


def phrases() -> list[str]:
    """The phrases of the table, as written there."""
    table = WORDS.read_text(encoding="utf-8").partition("## Phrases to replace")[2]
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def pattern(phrase: str) -> re.Pattern[str]:
    """What finds a phrase, over line ends too; `*` is a word, and `there is no` is English."""
    words = r"\s+".join(
        r"(?!longer\b|more\b|such\b|need\b)\w+" if word == "*" else re.escape(word) for word in phrase.split()
    )
    return re.compile(rf"(?<!there )(?<!There )(?<!\w){words}")


def files() -> list[Path]:
    """Everything of the package and the docs that a person reads."""
    found = [*(ROOT / "membudget").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    return sorted(path for path in found if path != WORDS)


def faults(text: str) -> list[str]:
    """Where a phrase stands: line, the phrase, what to write is in the table."""
    found = []
    for phrase in phrases():
        for match in pattern(phrase).finditer(text):
            found.append(f"{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r} (`{phrase}`)")
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("weights breaks it", 1),
        ("there is no device", 0),
        ("'x' is no tolerance", 1),
        ("it is no longer so", 0),
        ("the name stands\n    twice", 1),
        ("x is None", 0),
        ("unreckoned", 0),
        ("what is reckoned", 1),
    ],
)
def test_a_phrase_is_found(text: str, found: int) -> None:
    """Phrases are found over line ends, and correct English is not."""
    assert len(faults(text)) == found


def test_no_private_phrases() -> None:
    """Every file that a person reads is in the field's words."""
    wrong = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if name not in GENERATED:
            wrong += [f"{name}:{fault}" for fault in faults(path.read_text(encoding="utf-8"))]
    assert not wrong, "docs/words.md says what to write instead:\n" + "\n".join(wrong)


def test_the_glossary_has_each_word_once() -> None:
    """One name, one meaning."""
    words = re.findall(r"^\| ([^|`]+) \|", WORDS.read_text(encoding="utf-8").partition("## Phrases")[0], re.MULTILINE)
    words = [word for word in words if word not in {"word", "phrase"}]
    assert len(words) > 70
    assert len(words) == len(set(words))
