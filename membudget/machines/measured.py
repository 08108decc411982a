"""What was measured of a machine, one JSON document a line: `membudget log --learn` adds, the next plan reads.

A file for each machine's name, in the folder that MEMBUDGET_MEASURED names, else in
``$XDG_STATE_HOME/membudget/measured`` (``~/.local/state`` by default).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from membudget.errors import MembudgetError
from membudget.machines.names import normalize

#: A file that is larger is not one of ours.
_MOST = 16 * 2**20


class MeasuredError(MembudgetError):
    """A file of measurements that cannot be read or written."""


def folder() -> Path:
    """Where the files are."""
    own = os.environ.get("MEMBUDGET_MEASURED")
    if own:
        return Path(own).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "membudget" / "measured"


def file(machine: str) -> Path:
    """The file of one machine; it need not be there."""
    return folder() / f"{normalize(machine) or 'machine'}.jsonl"


def add(machine: str, kind: str, document: Mapping[str, Any]) -> Path:
    """Keep one measurement, behind those that are there; the file it is in.

    kind: who can read it, ``vllm_profile``.  Raises `MeasuredError` where the file cannot be written.
    """
    path = file(machine)
    line = json.dumps({"kind": kind, **document}, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(line)
    except OSError as error:
        raise MeasuredError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def read(machine: str, kind: str) -> list[dict[str, Any]]:
    """Every measurement of that kind, the oldest first, without its kind; empty where there is none.

    Raises `MeasuredError` for a file that cannot be read, and for a line that is not a JSON object.
    """
    path = file(machine)
    try:
        if path.stat().st_size > _MOST:
            raise MeasuredError(f"{path}: more than {_MOST:,} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise MeasuredError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise MeasuredError(f"{path}:{number}: not a JSON object; delete the line")
        if document.pop("kind", None) == kind:
            found.append(document)
    return found
