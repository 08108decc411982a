"""What this machine is, what can run on it, and the traps that endanger a run, each with its fix.

Exit code 0: no trap endangers a run; 1: one does. --ignore takes a trap that you know of out of the verdict.
"""

from __future__ import annotations

from typing import Any

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, short_repr
from membudget.doctor import Source, Trap
from membudget.doctor.machine import Look, look, plain, value
from membudget.doctor.settings import SETTINGS
from membudget.doctor.tiers import Tier, tiers
from membudget.doctor.traps import TRAPS
from membudget.text.terminal import Terminal
from membudget.units import both

#: What is looked at; tests put another machine's answers in its place.
SOURCE = Source
NAMES = tuple(trap.__name__ for trap in (*TRAPS, *SETTINGS))
_MARKS = {"danger": ("bad", "bold"), "note": ("activations",), "unknown": ("faint",)}


def options(parser: Declares) -> None:
    """The arguments of `membudget doctor`."""
    parser.add_argument("--ignore", metavar="TRAP", action="append", help=f"known, may be repeated: {', '.join(NAMES)}")


def run(args: Arguments) -> Result:
    """Look, and say what matters most."""
    ignored = args.ignore or []
    for name in ignored:
        if name not in NAMES:
            raise InputError(f"--ignore: no trap is called {short_repr(name)}; allowed are {', '.join(NAMES)}")
    found = look(SOURCE())
    traps = [check(found) for check in (*TRAPS, *SETTINGS)]
    here = tiers(found)
    dangers = [trap for trap in traps if trap.state == "danger" and trap.name not in ignored]
    hidden = [trap.name for trap in traps if trap.state == "unknown" and trap.name not in ignored]
    first = _first(dangers, here, hidden)
    document = {
        **found.as_json(),
        "tiers": [tier.as_json() for tier in here],
        "traps": [trap.as_json() for trap in traps],
        "ignored": ignored,
        "endangered": bool(dangers),
        "first": first,
    }
    return Result(1 if dangers else 0, document, lambda: _text(found, here, traps, ignored, first))


def _first(dangers: list[Trap], here: list[Tier], hidden: list[str]) -> str:
    """What matters most, in one sentence; what could not be read does not count as safe."""
    if dangers:
        more = f" ({len(dangers) - 1} more below it)" if len(dangers) > 1 else ""
        return f"{dangers[0].name}{more}: {dangers[0].fix}"
    if hidden:
        return f"no danger is seen, and this could not be read: {', '.join(hidden)}"
    closed = [tier for tier in here if tier.why and tier.fix]
    if closed:
        return f"nothing endangers a run here; `{closed[0].fix}` opens {closed[0].name}"
    return "nothing endangers a run here"


def _text(found: Look, here: list[Tier], traps: list[Trap], ignored: list[str], first: str) -> str:
    terminal = Terminal.of()
    lines = [*_machine(found, terminal), "", terminal.paint("what runs here", "bold")]
    for tier in here:
        text = tier.why if tier.why else f"{tier.proves}: {tier.command}"
        word, mark = ("no ", "faint") if tier.why else ("yes", "good")
        lines += _hanging(terminal, f"  {tier.name:<13} ", word, text, mark)
        if tier.fix:
            lines += terminal.wrap(tier.fix, " " * 20, "fix: ")
    lines += ["", terminal.paint("traps", "bold")]
    for state in ("danger", "note", "unknown"):
        for trap in traps:
            if trap.state == state:
                known = " (ignored)" if trap.name in ignored and state == "danger" else ""
                lines += _hanging(terminal, f"  {trap.name:<13} ", f"{state:<7}", trap.text + known, *_MARKS[state])
                if trap.fix:
                    lines += terminal.wrap(trap.fix, " " * 24, "fix: ")
    clear = [trap.name for trap in traps if trap.state == "clear"]
    if clear:
        lines += _hanging(terminal, f"  {'clear':<13} ", "", ", ".join(clear))
    return "\n".join([*lines, "", *terminal.wrap(first, "", "First: ")])


def _machine(found: Look, terminal: Terminal) -> list[str]:
    document = found.as_json()
    machine = found.machine
    title = machine.title or machine.name if machine else "a machine whose memory is not known"
    parts = [terminal.paint(title, "bold")]
    if machine is not None:
        kind = (
            "unified"
            if machine.unified and machine.platform != "cpu"
            else "no GPU"
            if machine.platform == "cpu"
            else "discrete"
        )
        parts += [both(machine.memory), kind]
    about, software = document["machine"], document["software"]
    lines = terminal.headline(*parts)
    if machine is None:
        lines += terminal.wrap(found.why, "  ")
    rows = [
        ("system", f"{about['system']} {about['kernel']}, {about['arch']}"),
        ("driver", _said(found.driver, lambda text: f"{text}, CUDA {_said(found.cuda)}")),
        ("Python", f"{software['python']}, {software['python_path']}"),
        ("torch", _said(found.torch)),
        ("transformers", _said(found.transformers)),
        ("vLLM", _said(plain_vllm(found), lambda text: f"{text}, {software['vllm_where']}")),
        ("available", _said(found.available, both)),
        ("driver's free", _said(found.cuda_free, both)),
    ]
    for name, text in rows:
        lines += terminal.wrap(text, "  ", f"{name:<14}")
    for note in machine.notes if machine else ():
        lines += terminal.wrap(note, "  ", f"{'note':<14}")
    return lines


def plain_vllm(found: Look) -> Any:
    """vLLM's version as a reading."""
    vllm = found.vllm
    return getattr(vllm, "version", vllm)


def _said(reading: Any, show: Any = str) -> str:
    known = value(reading)
    return f"unknown: {plain(reading)['unknown']}" if known is None else str(show(known))


def _hanging(terminal: Terminal, lead: str, word: str, text: str, *marks: str) -> list[str]:
    """`lead`, a painted word and the text behind them, whose other lines stand under its first."""
    lines = terminal.wrap(text, "", f"{lead}{word} " if word else lead)
    if word:
        lines[0] = f"{lead}{terminal.paint(word, *marks)}{lines[0][len(lead) + len(word) :]}"
    return lines
