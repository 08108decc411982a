"""How a measurement ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a measurement ended."""

    DONE = "done"
    REFUSED = "refused"  # it was not started
    KILLED = "killed"  # available memory fell under the floor, or could not be read
    TIMEOUT = "timeout"
    CRASHED = "crashed"  # it ended without a result
