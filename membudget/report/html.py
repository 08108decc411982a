"""One HTML file that needs nothing else: style, scripts and data inside, and a policy that forbids the network.

The page may run exactly the scripts and styles that were put into it, by their checksums;
data travels as JSON in a block that is never run, and text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from membudget.errors import MembudgetError
from membudget.text.sanitize import without_tokens

#: JavaScript's numbers are exact below this; a larger integer would be rounded silently.
EXACT = 2**53
#: By this a page is known as one of ours, and may be written over.
_GENERATOR = '<meta name="generator" content="membudget">'


class PageError(MembudgetError):
    """A page that cannot be written: says why."""

    exit_code = 2


def page(title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str] = (), data: object = None) -> str:
    """The whole file.

    body: HTML, its outside text already escaped with `text`.  styles, scripts: files of
    `membudget/report/static`, in order.  data: what the scripts read from the element ``data``.
    """
    style = "\n".join(static(name) for name in styles)
    script = "\n".join(static(name) for name in scripts)
    policy = f"default-src 'none'; style-src {_checksum(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src {_checksum(script)}"
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        _GENERATOR,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{text(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        body,
    ]
    if data is not None:
        parts.append(f'<script type="application/json" id="data">{_data(data)}</script>')
    if script:
        parts.append(f"<script>{script}</script>")
    return "\n".join([*parts, "</body>", "</html>", ""])


def text(value: object) -> str:
    """Text from outside, safe in an element and in a quoted attribute; control characters shown as they are named.

    Access tokens are left out.
    """
    import html

    plain = without_tokens(str(value))
    shown = "".join(letter if letter.isprintable() or letter in "\n\t" else f"\\u{ord(letter):04x}" for letter in plain)
    return html.escape(shown, quote=True)


def static(name: str) -> str:
    """A style sheet or script that ships with membudget."""
    import os

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "static", name), encoding="utf-8") as file:
        return file.read()


def write(path: str, content: str, force: bool = False) -> int:
    """Write the page whole or not at all; returns its size in bytes.

    Raises `PageError` where it cannot be written, and, unless `force`, where a file that is no page of ours would go.
    """
    import contextlib
    import os

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
            raise PageError(f"-o {path}: is there, and no page of membudget; --force writes over it")
        with open(part, "wb") as file:
            file.write(encoded)
        os.replace(part, path)
    except OSError as error:
        raise PageError(f"-o {path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    return len(encoded)


def _is_ours(path: str) -> bool:
    """Whether a file is a page that `page` made, or empty."""
    with open(path, "rb") as file:
        start = file.read(4096)
    return not start or _GENERATOR.encode() in start


def _checksum(content: str) -> str:
    import base64
    import hashlib

    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _data(data: object) -> str:
    import json

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
