"""`json.loads` without the `json` module, whose import takes as long as reading ten configs.

The scanner is the one that `json` itself uses; whatever it does not read at once goes to
`json.loads`, whose word counts: results and errors are the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SPACE = " \t\n\r"


class _Settings:
    """What `json.JSONDecoder()` hands to its scanner."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"-Infinity": -float("inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__


def _scanner() -> Any:
    try:
        import _json

        return _json.make_scanner(_Settings)  # type: ignore[arg-type]  # it asks for the attributes only
    except (ImportError, TypeError, AttributeError):  # not CPython, or not as we know it
        return None


_scan = _scanner()


def loads(text: str) -> Any:
    """The value of a JSON document.  Raises `json.JSONDecodeError` as `json.loads` does."""
    if _scan is not None:
        try:
            value, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
        except (StopIteration, SystemError):
            # before 3.12 the scanner has no error to raise until `json.decoder` is there, and says SystemError
            pass
        else:
            if not text[end:].strip(_SPACE):
                return value
    import json

    return json.loads(text)
