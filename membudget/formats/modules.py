"""Which modules a config leaves alone: the patterns of ignore lists, matched in bounded time.

A pattern comes from a file that nobody vetted, so a regular expression that could
take exponential time is refused and never tried.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from membudget.formats.base import FormatError

#: The longest pattern that is accepted.
MAX_PATTERN = 500
#: Steps that a regular expression may take on a name of 100 characters, estimated.
MAX_STEPS = 20_000_000
_NAME = 100

Matcher = Callable[[str], bool]


def module_of(tensor_name: str) -> str:
    """The module a tensor belongs to: the name without ``.weight``; expert 0 stands for all of them."""
    return _plain(tensor_name.removesuffix(".weight").replace(".*", ".0"))


#: A text model inside a multimodal one is called differently by the tools that made the list.
_PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""))


def _plain(name: str) -> str:
    for long, short in _PREFIXES:
        if name.startswith(long):
            return short + name[len(long) :]
    return name


def matcher(patterns: Iterable[str], source: str, *, anywhere: bool = True) -> Matcher:
    """A test of module names against a list: exact names, ``*`` wildcards and ``re:`` expressions.

    anywhere: a plain name also matches as a run of whole parts of a longer name (``lm_head``,
    ``mlp.gate``), as transformers and vLLM read modules_to_not_convert.
    """
    exact: set[str] = set()
    starts_with: list[str] = []
    tests: list[Matcher] = []
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise FormatError(f"{source}: {pattern!r} is not a module's name; allowed are strings")
        if len(pattern) > MAX_PATTERN:
            raise FormatError(f"{source}: a pattern of {len(pattern):,} characters; at most {MAX_PATTERN} are read")
        pattern = pattern.removesuffix(".weight") if not pattern.startswith("re:") else pattern
        if pattern.startswith("re:"):
            tests.append(_regex(pattern[3:], source))
        elif pattern.endswith("*") and pattern.count("*") == 1:
            starts_with.append(_plain(pattern[:-1]))
        elif "*" in pattern:
            tests.append(_glob(_plain(pattern)))
        elif pattern:
            exact.add(_plain(pattern))

    beginnings = tuple(starts_with)

    def test(name: str) -> bool:
        if beginnings and name.startswith(beginnings):
            return True
        if exact:
            parts = name.split(".")
            count = len(parts)
            starts = range(count) if anywhere else (0,)
            for start in starts:
                for end in range(start + 1, count + 1):
                    if ".".join(parts[start:end]) in exact:
                        return True
        return any(one(name) for one in tests)

    return test


def _glob(pattern: str) -> Matcher:
    """``*`` for any run of characters, as fnmatch; what is below a module that matches matches too."""
    pieces = pattern.split("*")

    def test(name: str) -> bool:
        return _glob_at(pieces, name) or _glob_at([*pieces[:-1], pieces[-1] + "."], name, open_end=True)

    return test


def _glob_at(pieces: list[str], name: str, open_end: bool = False) -> bool:
    # greedy from the left is right for wildcards of any length, and linear
    if not name.startswith(pieces[0]):
        return False
    at = len(pieces[0])
    for middle in pieces[1:-1]:
        found = name.find(middle, at)
        if found < 0:
            return False
        at = found + len(middle)
    last = pieces[-1]
    if open_end:
        return name.find(last, at) >= 0
    return len(name) - len(last) >= at and name.endswith(last)


def _regex(pattern: str, source: str) -> Matcher:
    inner = pattern
    if inner.endswith(".*"):
        inner = inner[:-2]  # match() does not need the end
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean a set one day
            steps = _steps(_parse(inner))
            compiled = re.compile(inner)
    except (re.error, RecursionError, OverflowError) as error:
        raise FormatError(f"{source}: cannot read the pattern {pattern!r}: {error}") from None
    if steps > MAX_STEPS:
        raise FormatError(
            f"{source}: the pattern {pattern!r} could take too long (a repeat in a repeat, or more than three `.*`); "
            "write it with fewer repeats"
        )
    return lambda name: compiled.match(name[: 4 * _NAME]) is not None


def _parse(pattern: str) -> Any:
    from re import _parser  # type: ignore[attr-defined]

    return _parser.parse(pattern)


def _steps(parsed: Any, inside: bool = False) -> int:
    """An upper estimate of the ways in which a name can be tried against the pattern."""
    steps = 1
    for op, arguments in parsed:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, body = arguments
            ways = _NAME if int(high) > _NAME else max(1, int(high) - int(low) + 1)
            within = _steps(body, True)
            if int(high) > 1 and within > 1:
                return MAX_STEPS + 1
            steps *= ways * within
        elif name == "SUBPATTERN":
            steps *= _steps(arguments[-1], inside)
        elif name == "BRANCH":
            steps *= sum(_steps(branch, inside) for branch in arguments[1])
        elif name in ("ASSERT", "ASSERT_NOT"):
            steps *= _steps(arguments[1], inside)
        elif name == "ATOMIC_GROUP":
            steps *= _steps(arguments, inside)
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            return MAX_STEPS + 1
        if steps > MAX_STEPS:
            return MAX_STEPS + 1
    return steps
