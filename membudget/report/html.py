"""One HTML file that needs nothing else: style, scripts and data inside, and a policy that forbids the network.

The page may run exactly the scripts and styles that were put into it, by their checksums; data travels as JSON in a
block that is never run, and text from outside is escaped by jinja2.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from membudget.errors import MembudgetError, NotAvailableError
from membudget.text.sanitize import without_tokens

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = os.path.dirname(os.path.abspath(__file__))
#: JavaScript's numbers are exact below this; a larger integer would be rounded silently.
EXACT = 2**53
#: By this a page is known as one of ours, and may be written over.
_GENERATOR = '<meta name="generator" content="membudget">'


class PageError(MembudgetError):
    """A page that cannot be written: says why."""

    exit_code = 2


class NoTemplates(NotAvailableError):
    """jinja2 is not installed: says how to get it."""


def page(
    template: str,
    title: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str] = (),
    data: object = None,
    **values: Any,
) -> str:
    """The whole file, from a template of `membudget/report/templates`.

    styles, scripts: files of `membudget/report/static`, in order.  data: what the scripts read from the element
    ``data``.  values: what the template shows; text among them is escaped, and shown without control characters and
    access tokens.
    """
    style = "\n".join(static(name) for name in styles)
    script = "\n".join(static(name) for name in scripts)
    policy = f"default-src 'none'; style-src {_checksum(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src {_checksum(script)}"
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            generator=safe(_GENERATOR),
            policy=safe(policy),  # our own text: apostrophes stay as browsers' documentation writes them
            style=safe(style),
            script=safe(script),
            data=None if data is None else safe(_data(data)),
            **values,
        )
    )


def text(value: object) -> Any:
    """Text from outside, safe in an element and in a quoted attribute; a `markupsafe.Markup`."""
    from markupsafe import Markup, escape

    return value if isinstance(value, Markup) else escape(_shown(value))


def safe(markup: str) -> str:
    """Markup of our own (a `markupsafe.Markup`), which is not escaped."""
    from markupsafe import Markup

    found: str = Markup(markup)
    return found


def static(name: str) -> str:
    """A style sheet or script that ships with membudget."""
    with open(os.path.join(HERE, "static", name), encoding="utf-8") as file:
        return file.read()


def write(path: str, content: str, force: bool = False) -> int:
    """Write the page whole or not at all; returns its size in bytes.

    Raises `PageError` where it cannot be written, and, unless `force`, where a file that is not our page would go.
    """
    if os.path.isdir(path):
        raise PageError(f"-o {path}: is a folder; -o takes the name of a file, as {os.path.join(path, 'page.html')}")
    encoded = content.encode("utf-8", "backslashreplace")
    part = f"{path}.{os.getpid()}.part"
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe, /dev/stdout
            with open(path, "wb") as file:
                file.write(encoded)
            return len(encoded)
        if not force and os.path.isfile(path) and not _is_ours(path):
            raise PageError(f"-o {path}: exists and was not written by membudget; --force overwrites it")
        with open(part, "wb") as file:
            file.write(encoded)
        os.replace(part, path)
    except OSError as error:
        raise PageError(f"-o {path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    return len(encoded)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise NoTemplates("pages need jinja2: pip install 'membudget[report]'") from None
    return Environment(
        loader=FileSystemLoader(os.path.join(HERE, "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: _shown(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> str:
    """Without access tokens; control characters as they are named."""
    plain = without_tokens(str(value))
    return "".join(letter if letter.isprintable() or letter in "\n\t" else f"\\u{ord(letter):04x}" for letter in plain)


def _is_ours(path: str) -> bool:
    """Whether a file is a page that `page` made, or empty."""
    with open(path, "rb") as file:
        start = file.read(4096)
    return not start or _GENERATOR.encode() in start


def _checksum(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _data(data: object) -> str:
    _check(data, "data")
    written = without_tokens(json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _check(value: Any, where: str) -> None:
    """No integer that JavaScript would round."""
    if isinstance(value, int) and abs(value) >= EXACT:
        raise PageError(f"{where} is {value:,}: a page holds whole numbers below {EXACT:,}")
    if isinstance(value, dict):
        for key, item in value.items():
            _check(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            _check(item, f"{where}[{place}]")
