"""By how much a number may differ, as a person writes it in a budget.

    exact · within 1% · within 64 MiB · within +64 MiB (never under) · below 1 GiB

An expectation is a value with a tolerance: ``128 KiB`` (exact), ``within 1% of 16.06 GB``,
``within +64 MiB of 8 GiB``, ``below 8 MB``.  Everything is an integer, so a check is exact.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from membudget.units import BYTE_UNITS, UnitError, exact, parse_bytes, parse_count

NUMBER = r"(?:0|[1-9][0-9]{0,18}|[1-9][0-9]{0,2}(?:_[0-9]{3}){1,6})(?:\.[0-9]{1,9})?"
#: A size, a count and a percentage, as budgets and their JSON Schema read them.
SIZE = rf"{NUMBER} ?(?:{'|'.join(BYTE_UNITS)})"
COUNT = r"(?:0|[1-9][0-9]{0,18}|[1-9][0-9]{0,2}(?:_[0-9]{3}){1,6})(?: ?(?:Ki|Mi))?"
PERCENT = r"(?:0|[1-9][0-9]{0,5})(?:\.[0-9]{1,6})? ?%"
_VALUE = {"bytes": SIZE, "count": COUNT}
#: A percentage is kept in millionths of a percent.
MILLIONTHS = 10**6


@dataclass(frozen=True)
class Tolerance:
    """By how much a measured number may differ from the expected one."""

    #: ``exact`` (amount 0), ``within``, ``within+`` (never under) or ``below``.
    kind: str = "exact"
    #: In `unit`; a percentage in millionths of a percent.
    amount: int = 0
    #: ``bytes``, ``count`` or ``%``.
    unit: str = ""

    def allows(self, expected: int, measured: float) -> bool:
        """Whether `measured` is as near to `expected` as it must be.

        ``below`` is a limit of its own and looks at `measured` alone.
        """
        if self.kind == "below":
            return measured < self.amount
        off = measured - expected
        if off < 0 and self.kind == "within+":
            return False
        if self.unit == "%":
            return abs(off) * 100 * MILLIONTHS <= self.amount * abs(expected)
        return abs(off) <= self.amount

    def __str__(self) -> str:
        if self.kind == "exact":
            return "exact"
        if self.unit == "%":
            whole, part = divmod(self.amount, MILLIONTHS)
            amount = f"{whole}.{part:06}".rstrip("0").rstrip(".") + "%"
        else:
            amount = exact(self.amount) if self.unit == "bytes" else f"{self.amount:_}"
        return {"within": "within ", "within+": "within +", "below": "below "}[self.kind] + amount


EXACT = Tolerance()


@dataclass(frozen=True)
class Expectation:
    """A number that a person typed."""

    #: None for ``below``.
    value: int | None
    #: By how much it may differ.
    tolerance: Tolerance = EXACT
    #: ``bytes`` or ``count``.
    unit: str = "bytes"

    def holds(self, predicted: int) -> bool:
        """Whether `predicted` is as expected."""
        return self.tolerance.allows(self.value or 0, predicted)

    def __str__(self) -> str:
        if self.value is None:
            return str(self.tolerance)
        size = abs(self.value)
        value = ("-" if self.value < 0 else "") + (exact(size) if self.unit == "bytes" else f"{size:_}")
        return value if self.tolerance.kind == "exact" else f"{self.tolerance} of {value}"


def pattern(unit: str) -> str:
    """The regular expression of a tolerance."""
    value = _VALUE[unit]
    return rf"exact|within \+?(?:{PERCENT}|{value})|below {value}"


def expectation_pattern(unit: str, signed: bool) -> str:
    """The regular expression of an expectation written as text."""
    value = _VALUE[unit]
    typed = f"-?{value}" if signed else value
    # YAML 1.2, which editors read, takes 8_405_385_216 for text.
    digits = "[1-9][0-9]{0,2}(?:_[0-9]{3}){1,6}"
    return rf"{typed}|{digits}|within \+?(?:{PERCENT}|{value}) of {typed}|below {value}"


@functools.lru_cache(maxsize=1024)
def parse(text: str, unit: str = "bytes") -> Tolerance:
    """Read a tolerance; raises `UnitError` that says what is allowed.

    unit: ``bytes`` or ``count``, what a plain amount is counted in.
    """
    if not re.fullmatch(pattern(unit), text):
        raise UnitError(f"{text!r} is not a tolerance; allowed: {allowed(unit)}")
    if text == "exact":
        return EXACT
    kind, amount = text.split(" ", 1)
    if amount.startswith("+"):
        kind, amount = "within+", amount[1:]
    if amount.endswith("%"):
        whole, _, part = amount[:-1].strip().partition(".")
        return Tolerance(kind, int(whole) * MILLIONTHS + int(part.ljust(6, "0")), "%")
    return Tolerance(kind, _number(amount, unit, rounded=True), unit)


def parse_expectation(text: str | int, unit: str = "bytes", signed: bool = False) -> Expectation:
    """Read an expectation; raises `UnitError` that says what is allowed.

    signed: the value may be negative (headroom).
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0 and not signed:
            raise UnitError(f"{text:,} is negative: this is 0 or more")
        return Expectation(text, EXACT, unit)
    if not isinstance(text, str) or not re.fullmatch(expectation_pattern(unit, signed), text):
        _explain(text, unit)
        raise UnitError(f"{text!r} is not an expected value; allowed: {allowed_values(unit)}")
    if text.startswith("below "):
        return Expectation(None, parse(text, unit), unit)
    tolerance, _, value = text.rpartition(" of ")
    sign = -1 if value.startswith("-") else 1
    number = sign * _number(value.removeprefix("-"), unit, rounded=bool(tolerance))
    return Expectation(number, parse(tolerance, unit) if tolerance else EXACT, unit)


def allowed(unit: str) -> str:
    """The tolerances, in words."""
    size = "64 MiB" if unit == "bytes" else "2"
    return f"exact, within 1%, within {size}, within +{size} (never under), below {size}"


def allowed_values(unit: str) -> str:
    """The expectations, in words."""
    if unit == "bytes":
        return "128 KiB, 16.06 GB, 8_405_385_216, within 1% of 16.06 GB, within +64 MiB of 8 GiB, below 8 MB"
    return "8_030_261_248, within 1% of 100, within 2 of 100, below 10"


def _number(text: str, unit: str, rounded: bool) -> int:
    """A size or count; `rounded` takes a size of 60.8 GiB, which is not a whole number of bytes."""
    if unit == "count":
        return parse_count(text)
    if text.replace("_", "").isdigit():
        return int(text.replace("_", ""))
    match = re.fullmatch(r"([0-9_]+)\.([0-9]+) ?([A-Za-z]+)", text)
    if rounded and match:
        digits: int = int(match[1].replace("_", "") + match[2]) * BYTE_UNITS[match[3]]
        return digits // int("1" + "0" * len(match[2]))
    return parse_bytes(text)


def _explain(text: object, unit: str) -> None:
    """Raise what the units themselves say of a plain value: they know the near spellings."""
    if isinstance(text, str) and not text.startswith(("within", "below", "exact", "-")):
        (parse_bytes if unit == "bytes" else parse_count)(text)
