"""The machines that are known: the shipped table, and users' own files over it."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Sequence

from membudget.data import data_path
from membudget.machines.machine import Machine
from membudget.machines.names import MAX_MACHINES, THIS_MACHINE, UnknownMachine, looks_counted, normalize

#: Users' own machine files, separated as PATH is.
ENVIRONMENT = "MEMBUDGET_MACHINES"


def get(name: str, files: Sequence[str | os.PathLike[str]] = ()) -> Machine:
    """The machine of that name or alias, however it is spelt ("RTX 4090", "rtx_4090").

    files: users' own machine files; the later one wins, and all win over the
    environment's (`MEMBUDGET_MACHINES`) and those over the shipped table.
    `THIS_MACHINE` is not in the table; `membudget.host.detect.find_machine` finds it.  Raises `UnknownMachine`,
    and `MachineFileError` for a file that cannot be read.
    """
    key = normalize(name)
    own = [machine for file in _own_files(files) for machine in _read(file)]
    # A later file wins, and a name wins over an alias within one.
    for machine in reversed(own):
        if normalize(machine.name) == key:
            return machine
    for machine in reversed(own):
        if key in map(normalize, machine.aliases):
            return machine
    table, aliases = _shipped()
    found = aliases.get(key)
    if found is None:
        raise UnknownMachine(_unknown(name, [machine.name for machine in own], list(table)))
    # A shipped alias leads to the user's entry where one replaces the shipped machine.
    for machine in reversed(own):
        if machine.name == found:
            return machine
    return table[found]


def all_machines(files: Sequence[str | os.PathLike[str]] = ()) -> dict[str, Machine]:
    """Every known machine by name, the shipped ones first, users' own over them."""
    table, _ = _shipped()
    machines = dict(table)
    for file in _own_files(files):
        machines.update((machine.name, machine) for machine in _read(file))
    return machines


def _own_files(files: Sequence[str | os.PathLike[str]]) -> list[str]:
    named = [part for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    return [*named, *(os.fspath(file) for file in files)]


def _read(path: str) -> list[Machine]:
    from membudget.machines.file import read  # yaml is loaded where a file is read: `import membudget` stays light

    return read(path)


@functools.cache
def _shipped() -> tuple[dict[str, Machine], dict[str, str]]:
    """The shipped table: machines by name, and names by normalized spelling."""
    machines = _read(data_path("machines.yaml"))
    names: dict[str, str] = {}
    for machine in machines:
        for spelling in (machine.name, *machine.aliases):
            names.setdefault(normalize(spelling), machine.name)
    return {machine.name: machine for machine in machines}, names


#: Names that an error proposes.
_NEAR = 5


def _unknown(name: str, own: Sequence[str], shipped: Sequence[str]) -> str:
    names = list(dict.fromkeys([*own, *shipped]))
    name = name if len(name) <= 120 else name[:117] + "..."
    near = _near(name, names)
    hint = f" Did you mean {', '.join(near[:-1])}{' or ' if near[1:] else ''}{near[-1]}?" if near else ""
    if looks_counted(name):
        hint = f" Several are written as `2x dgx-spark`: a whole number from 1 to {MAX_MACHINES:,}, x, and the name."
    yours = f", of which yours are {_few(own)}" if own else ""
    return (
        f"no machine is called {name!r}.{hint} `membudget machines` lists all {len(names):,}{yours}; this one is "
        f"{THIS_MACHINE}. Add your own with --machines FILE or {ENVIRONMENT}, see docs/machines.md"
    )


def _few(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found) if len(found) <= _NEAR else f"{', '.join(found[:_NEAR])} and {len(found) - _NEAR} more"


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Those that begin with what was written, then those spelt like it."""
    key = normalize(name)
    begin = [known for known in names if key and normalize(known).startswith(key)]
    return begin[:_NEAR] or difflib.get_close_matches(name.lower(), names, 3, 0.5)
