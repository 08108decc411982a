"""`python -m membudget`."""

from __future__ import annotations

from membudget.cli.main import entry

entry()
