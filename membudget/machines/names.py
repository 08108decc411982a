"""Names of machines: how they are spelt, and how many of one are meant."""

from __future__ import annotations

import re

from membudget.errors import MembudgetError

#: The name that stands for whatever machine this is; `membudget.host.detect` finds it.
THIS_MACHINE = "this-machine"
#: What people write before a device's name, longest first.
_VENDORS = ("nvidiageforce", "amdinstinct", "nvidia", "geforce", "apple", "tesla", "amd")


class UnknownMachine(MembudgetError):
    """A machine that no table has: the message lists the nearest names."""


class MachineFileError(MembudgetError):
    """A machine file that cannot be read; every problem on a line: file:line, the field, what is allowed."""


#: Most machines that one budget may name.
MAX_MACHINES = 4096


def counted(name: str, most: int = MAX_MACHINES) -> tuple[int, str]:
    """``2x dgx-spark`` -> (2, ``dgx-spark``); a name without a number is one.  Raises `UnknownMachine`."""
    text = name.strip()
    digits = len(text) - len(text.lstrip("0123456789"))
    number, rest = text[:digits], text[digits:].lstrip()
    if not number or rest[:1] not in ("x", "X", "*", "×") or not rest[1:].strip():
        return 1, name
    if len(number) > len(str(most)) or not 1 <= int(number) <= most:
        raise UnknownMachine(f"{number[:20]} machines are refused; allowed is 1 to {most:,}, as `2x dgx-spark`")
    return int(number), rest[1:].strip()


def normalize(name: str) -> str:
    """A name without case, vendor and separators, so that spellings meet: ``rtx4090``."""
    key = "".join(filter(str.isalnum, name.lower()))
    for vendor in _VENDORS:
        if key.startswith(vendor) and len(key) > len(vendor):
            return key[len(vendor) :]
    return key


def looks_counted(name: str) -> bool:
    """Whether somebody meant several machines: ``2 dgx-spark``, ``1.5x h100``, ``h100 x2``, ``2x``."""
    number = r"[+-]?\d[\d.,_]*"
    before, behind = rf"^\s*({number}\s*[x×*]|{number}\s|[x×*]\s)", r"[\s,][x×*]\s*\d+\s*$"
    return re.search(f"{before}|{behind}", name, re.IGNORECASE) is not None
