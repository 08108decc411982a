"""A trap: what was looked for, whether it is there, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a finding counts."""

    DANGER = "danger"  # endangers a run
    NOTE = "note"  # worth knowing
    CLEAR = "clear"  # not there
    UNKNOWN = "unknown"  # could not be read


@dataclass(frozen=True)
class Trap:
    """One finding."""

    name: str
    state: State
    text: str  # what was read, with its numbers; for an unknown, why it is
    fix: str = ""  # a command, or what to change; "" where there is nothing to do

    def as_json(self) -> dict[str, Any]:
        """By name; no fix is null."""
        return {"name": self.name, "state": self.state, "text": self.text, "fix": self.fix or None}
