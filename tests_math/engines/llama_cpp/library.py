"""The library that tests ask; they are skipped with the command that installs it where it is missing."""

from __future__ import annotations

import pytest

from membudget.engines.llama_cpp.oracle import INSTALL, Library, LibraryMissing, find_library


def _found() -> Library | None:
    try:
        return find_library()
    except LibraryMissing:
        return None


LIBRARY = _found()
needs_library = pytest.mark.skipif(LIBRARY is None, reason=f"no libllama to ask: {INSTALL}")
