"""What several commands share: reading the model, numbers with their option's name in the error."""

from __future__ import annotations

import os
from collections.abc import Callable

from membudget import formats
from membudget.budgets.settings import kind_of
from membudget.checkpoint.reading import projectors_beside
from membudget.checkpoint.stored_format import AsStored
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.errors import MembudgetError, NotAvailableError
from membudget.formats import Format, kv
from membudget.host import system
from membudget.machines import THIS_MACHINE, Machine
from membudget.model import Model, build
from membudget.sources.checkpoints import checkpoint_of
from membudget.sources.locate import Located, locate
from membudget.text.sanitize import shown
from membudget.units import UnitError, both, gib, parse_bytes, parse_context, parse_count


class InputError(MembudgetError):
    """An option's value that is refused: names the option, what it was, and what is allowed."""


class NotHere(NotAvailableError):
    """Something this machine or installation lacks: says what, and how to get it."""


def model_argument(parser: Declares, optional: bool = False) -> None:
    """The positional MODEL, and how it is looked up."""
    help_text = "hub id, folder, config.json, .gguf or .safetensors"
    if optional:
        parser.add_argument("model", metavar="MODEL", nargs="?", help=help_text)
    else:
        parser.add_argument("model", metavar="MODEL", help=help_text)
    parser.add_argument("--as", dest="family", metavar="FAMILY", help="treat it as this model_type, a similar one")
    parser.add_argument("--offline", action="store_true", help="never ask the hub")


def folder(option: str, path: str | None) -> str | None:
    """A folder that is there, or None where none is given."""
    if path is not None and not os.path.isdir(path):
        raise InputError(f"{option} {short_repr(path)}: no such folder")
    return path


def context(option: str, text: str, most: int) -> int:
    """A context length: 32768, 32Ki or 32k."""
    return _within(option, text, parse_context, most, "tokens")


def count(option: str, text: str, most: int, least: int = 1) -> int:
    """A count of users or devices."""
    return _within(option, text, parse_count, most, option.lstrip("-"), least)


def size(option: str, text: str) -> int:
    """A size above 0: 60GiB, or a plain number of bytes."""
    return _within(option, text, lambda word: parse_bytes(f"{word} B" if word.isdecimal() else word), 2**63, "bytes")


def size_with_unit(option: str, text: str) -> int:
    """A size that says its unit: `12`, meant as GiB, would be 12 bytes."""
    if text.strip().replace("_", "").isdecimal():
        raise InputError(f"{option}: {short_repr(text)} is refused: it has no unit; allowed is a size, as 12GiB")
    return size(option, text)


def share(option: str, text: str) -> float:
    """A part of the whole: above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"{option}: {short_repr(text)} is refused; allowed is a number above 0 and at most 1, as 0.9")
    return value


def short_repr(text: str) -> str:
    """A value from outside, quoted and cut."""
    return shown(text)


def _within(option: str, text: str, parse: Callable[[str], int], most: int, noun: str, least: int = 1) -> int:
    if len(text) > 40:
        raise InputError(f"{option}: {short_repr(text)} is not a number of {noun}")
    try:
        value = -parse(text[1:]) if text.startswith("-") else parse(text)
    except UnitError as error:
        raise InputError(f"{option}: {error}") from None
    if not least <= value <= most:
        raise InputError(f"{option}: {value:,} is refused; allowed is a whole number from {least:,} to {most:,}")
    return value


def available_now(machine: Machine, os_bytes: int) -> list[str]:
    """Where this machine shares its memory with the system: that others hold a part of what the plan assumes."""
    if machine.name != THIS_MACHINE or not machine.unified:
        return []
    free = system.available()
    if free is None:
        return [f"{machine.name}: how much of its memory is available now is unknown"]
    if free + os_bytes >= machine.memory:
        return []
    return [
        f"{machine.name}: {both(free)} of its memory are available now, and the plan assumes all of it; "
        "`membudget doctor` says who holds the rest"
    ]


def find_model(args: Arguments) -> tuple[Model, Located]:
    """Locate and build the model of the MODEL argument."""
    found = locate(args.model, offline=True if args.offline else None)
    return build_model(args, found), found


def build_model(args: Arguments, found: Located) -> Model:
    """Build a located model, read as --as says."""
    config = found.config
    if config is None:
        raise InputError(
            f"{short_repr(args.model)}: only weights lie there, no config.json to say what they make up; "
            "put the model's config.json beside them, or pass its hub id"
        )
    return build(config, found.repo or args.model, as_type=args.family)


def choose_format(name: str | None, model: Model, found: Located, notes: list[str] | None = None) -> Format:
    """The format that was asked for; else the files' own bytes where weights lie there; else the config's own."""
    if name is None and found.kind in ("path", "gguf", "safetensors"):
        checkpoint = checkpoint_of(found)
        if checkpoint is not None:
            stored = AsStored(checkpoint, model)
            if notes is not None:
                notes += [*stored.notes(), *_left_out(found)]
            return stored
    return named_format(name, model)


def _left_out(found: Located) -> list[str]:
    """Projectors beside a GGUF model: a file of their own, which is loaded where it is named."""
    if found.kind != "gguf":
        return []
    beside = projectors_beside(found.path)
    return [
        f"{shown(name)} beside it, {gib(size)}, is not a part of this: --mmproj {shown(name)} loads it"
        for name, size in beside[:3]
    ]


def named_format(name: str | None, model: Model) -> Format:
    """The format that was asked for, else the one that the config declares: one that is known by its name."""
    return formats.of_config(model.config) if name is None else formats.get(name)


def choose_cache(
    name: str,
    form: Format,
    model: Model,
    found: Located | None = None,
    engine: str | None = None,
    dtype: str | None = None,
) -> str:
    """The KV cache dtype by its own name; ``auto`` is what the checkpoint declares, else what the model runs in.

    engine: the name of one; another engine's dtypes are refused.  dtype: what it is told to run the model in.
    """
    own = kind_of(engine).kv if engine else None
    if name.strip().lower() != "auto":
        return kv.get(name, engine=own).name
    beside = found.hf_quant_config if found else None
    return kv.auto(model.config, beside, form, own, dtype=dtype).name
