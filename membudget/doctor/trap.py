"""A trap: what was looked for, whether it is there, and what to do about it."""

from __future__ import annotations

from typing import Any, NamedTuple

#: ``danger`` endangers a run, ``note`` is worth knowing, ``clear`` is not there, ``unknown`` could not be read.
STATES = ("danger", "note", "clear", "unknown")


class Trap(NamedTuple):
    """One finding.

    text: what was read, with its numbers; for an unknown, why it is.  fix: a command or what to change; "" where
    there is nothing to do.
    """

    name: str
    state: str
    text: str
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """By name; no fix is null."""
        return {"name": self.name, "state": self.state, "text": self.text, "fix": self.fix or None}
