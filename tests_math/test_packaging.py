"""Every tracked file can be checked out anywhere, and the package says that it is typed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.suite


def test_names_that_windows_can_hold() -> None:
    """No reserved characters or names, no long path, no two names that differ in case only."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in done.stdout.split("\0") if name]
    if not names:
        pytest.skip("not a git checkout")
    bad = re.compile(r'[<>:"\\|?*]|[ .](/|$)|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)', re.IGNORECASE)
    assert [name for name in names if bad.search(name) or len(name) > 200] == []
    assert len({name.lower() for name in names}) == len(names)


def test_typed() -> None:
    """The package carries py.typed, so that a user's type checker reads its types."""
    assert (ROOT / "membudget" / "py.typed").is_file()
