"""The marker of the shipped test; the plugin itself registers no marker that others may have."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """`-m math` selects the arithmetic, also under --strict-markers."""
    config.addinivalue_line("markers", "math: arithmetic on integers, needs nothing but Python")
