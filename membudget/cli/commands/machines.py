"""The known machines, their memory as the driver reports it, and the source of each number.

Name one for its details; `this-machine` is the computer that runs the command.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from membudget import machines
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.host.detect import find_machine
from membudget.machines import Machine
from membudget.text.terminal import Terminal, plain, table
from membudget.units import both, gib


def options(parser: Declares) -> None:
    """The arguments of `membudget machines`."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these; default: all in the tables")
    parser.add_argument("--machines", metavar="FILE", help="a YAML file with machines of your own")


def run(args: Arguments) -> Result:
    """List."""
    files = (args.machines,) if args.machines else ()
    if args.names:
        found = {machine.name: machine for machine in (find_machine(name, files) for name in args.names)}
    else:
        found = machines.all_machines(files)
    document = {"machines": [as_json(machine) for machine in found.values()]}
    return Result(0, document, lambda: _details(found) if args.names else _list(found))


def as_json(machine: Machine) -> dict[str, Any]:
    """All fields, sizes in bytes."""
    return {**asdict(machine), "aliases": list(machine.aliases), "notes": list(machine.notes)}


def _list(found: dict[str, Machine]) -> str:
    rows = [["machine", "memory", "sold as", "bandwidth", "", ""]]
    for machine in found.values():
        rows.append(
            [
                plain(machine.name),
                gib(machine.memory, 2),
                f"{machine.marketed / 10**9:,.0f} GB",
                _rate(machine),
                "unified" if machine.unified else "",
                f"{gib(machine.os_reserve, 1)} for the OS" if machine.os_reserve else "",
            ]
        )
    lines = table(rows, "<>>>")
    lines += ["", *Terminal.of().wrap(f"This one: `membudget machines {machines.THIS_MACHINE}`.")]
    return "\n".join(lines)


def _details(found: dict[str, Machine]) -> str:
    terminal = Terminal.of()
    lines: list[str] = []
    for machine in found.values():
        lines += ["", terminal.paint(plain(machine.name), "bold") + (f": {machine.title}" if machine.title else "")]
        rows = [
            ("memory", f"{both(machine.memory)}, as the driver reports" + (", unified" if machine.unified else "")),
            ("nominal", both(machine.nominal)),
            ("cuda total", both(machine.cuda_total) if machine.cuda_total else ""),
            ("OS reserve", both(machine.os_reserve) if machine.os_reserve else ""),
            ("bandwidth", _rate(machine)),
            ("platform", machine.platform),
            ("also called", ", ".join(machine.aliases)),
            ("source", machine.source),
        ]
        for name, value in rows:
            if value:
                lines += terminal.wrap(value, "  ", f"{name:<13}")
        for note in machine.notes:
            lines += terminal.wrap(note, "  ", f"{'note':<13}")
    return "\n".join(lines[1:])


def _rate(machine: Machine) -> str:
    return f"{machine.bandwidth / 10**9:,.0f} GB/s" if machine.bandwidth else "unknown"
