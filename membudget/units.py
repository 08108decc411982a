"""Sizes and counts: the only place where a unit is read or written.

Bytes and counts are integers everywhere in membudget; this module turns text
into them and back.  Decimal (``GB``) and binary (``GiB``) units are both read,
always by their exact name, and never guessed: ``8G``, ``8 gb`` and a bare
``8.5`` are errors that say what to write instead.
"""

from __future__ import annotations

import re

from membudget.errors import MembudgetError

DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
BYTE_UNITS = {"B": 1, **DECIMAL, **BINARY}
COUNT_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20}

KIB, MIB, GIB, TIB = (BINARY[unit] for unit in ("KiB", "MiB", "GiB", "TiB"))
GB = DECIMAL["GB"]

_NUMBER = r"([0-9][0-9_,]*)(?:\.([0-9]+))?\s*([A-Za-z]*)"
_GROUPED = r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)+"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class UnitError(MembudgetError):
    """A size or count that cannot be read, or can be read in two ways."""


def parse_bytes(text: str | int) -> int:
    """Read a size in bytes: ``"8 GiB"``, ``"64 MiB"``, ``"128 GB"``, ``"4096 B"`` or an int.

    Returns an exact integer.  ``"1.5 GiB"`` is exact; a size that is not a whole
    number of bytes, has no unit, or whose unit is ambiguous raises `UnitError`.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise UnitError(f"{text:,} is negative: a size in bytes is 0 or more")
        return text
    whole, fraction, unit = _split(text, "a size", "'8 GiB', '64 MiB', '16 GB', '4096 B'")
    if not unit:
        number = str(text).strip()
        raise UnitError(f"{text!r} has no unit: write {number} B, {number} GiB or {number} GB")
    scale = BYTE_UNITS.get(unit)
    if scale is None:
        raise UnitError(f"unknown unit {unit!r} in {text!r}: {_suggest(unit)}")
    return _exact(text, whole, fraction, scale, "bytes")


def parse_count(text: str | int) -> int:
    """Read a count (tokens, users): ``8192``, ``"8_192"``, ``"8Ki"`` (8,192), ``"1Mi"``.

    ``"8k"`` and ``"8K"`` raise `UnitError`: some tools read 8,000, others 8,192.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    whole, fraction, unit = _split(text, "a count", "'8192', '8_192', '32Ki'")
    scale = COUNT_UNITS.get(unit)
    if scale is None:
        if unit in ("k", "K", "m", "M"):
            small, large = (10**3, 2**10) if unit in "kK" else (10**6, 2**20)
            number = int(whole) if not fraction else float(f"{whole}.{fraction}")
            binary = unit.upper() + "i"
            raise UnitError(
                f"{text!r} has two readings: write {number}{binary} for {int(number * large):,} "
                f"or {int(number * small):,} in full"
            )
        raise UnitError(f"unknown unit {unit!r} in {text!r}: a count takes none, Ki (x 1,024) or Mi (x 1,048,576)")
    return _exact(text, whole, fraction, scale, "units")


def parse_context(text: str | int) -> int:
    """Read a context length as people type it on a command line.

    As `parse_count`, and ``"32k"`` or ``"32K"`` mean 32,768, as in a model's name
    ("8K", "128K context"); the caller shows the number that was read.
    """
    if isinstance(text, str) and text.strip()[-1:] in tuple("kKmM"):
        number, letter = text.strip()[:-1].strip(), text.strip()[-1]
        if _digits(number.replace(".", "", 1)) and number[0] != "." != number[-1]:
            text = number + letter.upper() + "i"
    return parse_count(text)


def _split(text: str | int, what: str, examples: str) -> tuple[str, str, str]:
    if not isinstance(text, str):
        raise UnitError(f"{text!r} is not {what}: write for example {examples}")
    if len(text) > 100:  # Python refuses to read such numbers, in words about Python
        raise UnitError(f"{text[:20]!r}... has {len(text):,} characters: no number is that long")
    number = text.strip().rstrip(_LETTERS)
    if _digits(number):  # the common case; `re` takes longer to load than a plan takes
        return _no_octal(text, number), "", text.strip()[len(number) :]

    match = re.fullmatch(_NUMBER, text.strip())
    if match is None or not re.fullmatch(_GROUPED, match[1]):
        raise UnitError(f"cannot read {text!r} as {what}: write for example {examples}")
    return _no_octal(text, match[1].replace("_", "").replace(",", "")), match[2] or "", match[3]


def _no_octal(text: str, digits: str) -> str:
    if len(digits) > 1 and digits[0] == "0":
        raise UnitError(f"{text!r} is octal to some readers: write it without the leading 0")
    return digits


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _exact(text: str | int, whole: str, fraction: str, scale: int, noun: str) -> int:
    value, remainder = divmod(int(whole + fraction) * scale, int("1" + "0" * len(fraction)))
    if remainder:
        raise UnitError(f"{text!r} is not a whole number of {noun}")
    return value


def _suggest(unit: str) -> str:
    letter = unit[:1].upper()
    near = [name for name in (f"{letter}iB", f"{letter}B") if name in BYTE_UNITS]
    if letter == "K":
        near = ["KiB", "kB"]
    if near:
        return f"write {near[0]} (x {BYTE_UNITS[near[0]]:,}) or {near[-1]} (x {BYTE_UNITS[near[-1]]:,})"
    return "known are " + ", ".join(BYTE_UNITS)


def exact(size: int) -> str:
    """Print a size so that `parse_bytes` gives the same integer: ``"128 KiB"``, ``"4097 B"``."""
    for unit, scale in reversed(BINARY.items()):
        if size and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def gib(size: int, digits: int = 3) -> str:
    """Print bytes as GiB, rounded: ``"14.958 GiB"``."""
    return f"{size / GIB:,.{digits}f} GiB"


def both(size: int) -> str:
    """Print bytes in both systems: ``"14.96 GiB (16.06 GB)"``; small sizes in smaller units."""
    binary, decimal = _scale(size, BINARY), _scale(size, DECIMAL)
    return f"{binary} ({decimal})" if abs(size) >= 1000 else f"{size} B"


def short(size: int) -> str:
    """Print bytes in the binary unit that fits: ``"4.00 GiB"``, ``"116.0 KiB"``, ``"12 B"``."""
    return _scale(size, BINARY)


def _scale(size: int, units: dict[str, int]) -> str:
    for unit, scale in reversed(units.items()):
        if unit != "KB" and abs(size) >= scale:
            return f"{size / scale:,.2f} {unit}"
    return f"{size:,} B"
