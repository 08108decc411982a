"""No phrase of the last table of docs/words.md stands in the package or the docs.

`TO_EDIT` names the files that still have some.  It only shrinks; entries of files that are clean do no harm until then.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite
ROOT = Path(__file__).parents[1]
WORDS = ROOT / "docs" / "words.md"
#: Written by tools/ from the package's own words; edited there.
GENERATED = frozenset({"docs/cli.md", "docs/budgets.md", "docs/coverage.md", "docs/versions.md"})
TO_EDIT: frozenset[str] = frozenset(
    {
        "README.md",
        "membudget/budgets/file.py",
        "membudget/budgets/tolerance.py",
        "membudget/cli/commands/bisect.py",
        "membudget/cli/commands/common.py",
        "membudget/cli/commands/doctor.py",
        "membudget/cli/commands/explore.py",
        "membudget/cli/commands/formats.py",
        "membudget/cli/commands/oracle.py",
        "membudget/cli/commands/plan.py",
        "membudget/cli/commands/pool.py",
        "membudget/cli/commands/probe.py",
        "membudget/cli/commands/report.py",
        "membudget/cli/main.py",
        "membudget/doctor/source.py",
        "membudget/engines/base.py",
        "membudget/engines/llama_cpp/cells.py",
        "membudget/engines/llama_cpp/compute/graphs.py",
        "membudget/engines/llama_cpp/compute/header.py",
        "membudget/engines/llama_cpp/logs.py",
        "membudget/engines/llama_cpp/memory.py",
        "membudget/engines/llama_cpp/settings.py",
        "membudget/engines/vllm/profile/activation.py",
        "membudget/engines/vllm/profile/available.py",
        "membudget/history/bisect.py",
        "membudget/history/drift.py",
        "membudget/history/environments.py",
        "membudget/history/record.py",
        "membudget/history/recorder.py",
        "membudget/history/select.py",
        "membudget/history/store.py",
        "membudget/history/text.py",
        "membudget/history/versions.py",
        "membudget/host/detect.py",
        "membudget/host/readings.py",
        "membudget/measure/plan.py",
        "membudget/measure/results.py",
        "membudget/measure/serve.py",
        "membudget/planning/fleet.py",
        "membudget/planning/ledger.py",
        "membudget/planning/node_layouts.py",
        "membudget/planning/suggestions.py",
        "membudget/planning/words.py",
        "membudget/report/failure.py",
        "membudget/report/html.py",
        "membudget/report/ranks.py",
        "membudget/report/run_page.py",
        "membudget/report/story.py",
    }
)


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
    """Every file but those that are still to be edited is in the field's words."""
    wrong = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if name not in TO_EDIT | GENERATED:
            wrong += [f"{name}:{fault}" for fault in faults(path.read_text(encoding="utf-8"))]
    assert not wrong, "docs/words.md says what to write instead:\n" + "\n".join(wrong)


def test_the_glossary_has_each_word_once() -> None:
    """One name, one meaning."""
    words = re.findall(r"^\| ([^|`]+) \|", WORDS.read_text(encoding="utf-8").partition("## Phrases")[0], re.MULTILINE)
    words = [word for word in words if word not in {"word", "phrase"}]
    assert len(words) > 70
    assert len(words) == len(set(words))
