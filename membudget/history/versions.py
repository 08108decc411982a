"""The order of versions as packages write them."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def version_key(text: str) -> tuple[int, Version | str]:
    """A version to sort by; other text sorts first."""
    try:
        return (1, Version(text))
    except InvalidVersion:
        return (0, text)
