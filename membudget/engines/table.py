"""The engines by name: one for each folder here that has an `options` and an `engine` module."""

from __future__ import annotations

import functools
import importlib

from membudget.budgets.settings import kind_of
from membudget.engines.base import Engine


def get(name: str) -> Engine:
    """The engine of that name or alias.  Raises `membudget.budgets.settings.UnknownEngine`."""
    return _loaded(kind_of(name).name)


@functools.cache
def _loaded(name: str) -> Engine:
    found: Engine = importlib.import_module(f"membudget.engines.{name}.engine").ENGINE
    return found
