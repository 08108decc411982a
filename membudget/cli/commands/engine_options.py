"""The engines' own options on the command line: every field of a budget's `engine: {...}`, by the same name and rules.

add_engine_options(parser)          --max-num-seqs N, --[no-]enforce-eager, ...
settings = engine_settings(args, "vllm")
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from membudget.budgets.field_words import CountOr
from membudget.budgets.fields import Boolean, Choice, Count, Field, Json, Kind, Share, Size
from membudget.budgets.reader import REFUSED, Reader
from membudget.budgets.settings import Settings, UnknownEngine, declared, kind_of, settings_of
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError
from membudget.text.yaml_strict import Node
from membudget.units import UnitError, parse_context

#: A field whose option has another name.
_NAMES = {"version": "--vllm-version"}
#: Those that the help names.
_COMMON = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size")
#: Fields that are `Settings` of their own.
_OWN = ("attention", "logits", "gpu_memory_utilization")


def engine_name(text: str) -> str:
    """The name of an engine for one of its other spellings; an unknown one stays, for the parser to refuse."""
    try:
        return kind_of(text).name
    except UnknownEngine:
        return text


def option(name: str) -> str:
    """``max_num_seqs`` -> ``--max-num-seqs``."""
    return _NAMES.get(name, "--" + name.replace("_", "-"))


def fields(engines: Sequence[str] = ()) -> dict[str, tuple[Field, list[str]]]:
    """Every option of these engines, or of all: its field, and the engines that have it."""
    found: dict[str, tuple[Field, list[str]]] = {}
    for one in declared().values():
        if engines and one.name not in engines:
            continue
        for name, field in one.fields.fields.items():
            found.setdefault(name, (field, []))[1].append(one.name)
    return found


def add_engine_options(parser: Declares, engines: Sequence[str] = ()) -> None:
    """Declare the options of these engines, or of all."""
    for name, (field, names) in fields(engines).items():
        where = "" if engines else f"{', '.join(names)}: "
        default = f"; default: {field.default}" if field.default else ""
        text = f"{where}{field.doc.rstrip('.')}{default}".replace("%", "%%")
        spelt = [short for short in field.short if short not in parser._option_string_actions]
        if isinstance(field.kind, Boolean):
            actions = [
                parser.add_argument(
                    option(name), *spelt, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text
                )
            ]
            if field.off:
                actions.append(parser.add_argument(*field.off, dest=name, action="store_const", const=False, help=text))
        else:
            actions = [parser.add_argument(*spelt, option(name), dest=name, metavar=_metavar(field.kind), help=text)]
        for action in actions:
            action.quiet = True  # type: ignore[attr-defined]  # a line for all of them is in the help
    flags = ", ".join(option(name) for name in _COMMON)
    more = f"The engine's own flags are options too, by their own names: {flags}\nand more (docs/cli.md)."
    parser.description = f"{parser.description or ''}\n\n{more}"


def engine_settings(args: Arguments, engine: str) -> Settings:
    """The settings of an engine as typed.  Raises `InputError` for a value that is refused or another engine's."""
    kind = kind_of(engine)
    given: dict[str, Any] = {}
    for name, (field, names) in fields().items():
        text = getattr(args, name, None)
        if text is None:
            continue
        if kind.name not in names:
            raise InputError(f"{option(name)} is an option of {', '.join(names)}; {kind.name} has none of that name")
        given[name] = text if isinstance(text, bool) else value(option(name), field.kind, text)
    step = given.pop(kind.step, None)
    own = {name: given.pop(name) for name in _OWN if name in given}
    return settings_of(kind.name, step, **own, options=given)


def value(name: str, kind: Kind, text: str) -> Any:
    """One value by the rules of its field.  Raises `InputError`."""
    if len(text) > 10_000:
        raise InputError(f"{name}: {len(text):,} characters; allowed: {kind.allowed}")
    reader = Reader("")
    found = kind.read(_node(name, kind, text), name, reader)
    if found is REFUSED:
        raise InputError(f"{name}: {reader.problems[0].text}")
    return found


def _node(name: str, kind: Kind, text: str) -> Node:
    """The text as a YAML scalar; a plain number of bytes, and 32k as people type it, are read too."""
    shown: str | int | float = text
    if isinstance(kind, CountOr) and text.strip().lower() in kind.words:
        shown = text.strip().lower()
    elif isinstance(kind, Count):
        try:
            shown = parse_context(text)
        except UnitError as error:
            raise InputError(f"{name}: {error}") from None
    elif isinstance(kind, Size) and text.strip().isdecimal():
        shown = f"{text.strip()} B"
    elif isinstance(kind, Share) and re.fullmatch(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?", text.strip()):
        shown = float(text)
    return Node("scalar", 0, text, shown)


def _metavar(kind: Kind) -> str:
    if isinstance(kind, Choice):
        return "NAME"
    kinds = {Count: "N", Size: "SIZE", Share: "X", Json: "JSON"}
    return kinds.get(type(kind), "VALUE")
