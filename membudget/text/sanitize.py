"""Text from outside as a terminal may get it."""

from __future__ import annotations

import re

#: A token of the hub, also where letters stand before it; and the words of its libraries that begin alike.
_TOKEN = r"(?:hf|api_org)_(?!(?:overrides|tokenizer|quantizer|transformers|processor)(?![A-Za-z0-9]))[A-Za-z0-9]{8,}"
#: Of an address: the scheme, then who logs in.  A path squeezes its slashes into one, or turns them round.
#: Ends at the first character that cannot be part of it.
_LOGIN = r"""(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]+:[/\\]+)[^\s/\\@"'<>?#]+@"""
#: The same without a scheme: //me:pw@host.
_BARE_LOGIN = r"""(?<![A-Za-z0-9:/\\])(//)[^\s/\\@:"'<>?#]+:[^\s/\\@"'<>?#]+@"""


def printable(text: str) -> str:
    """`text` with every character that is not printed named as Python would: ``\\x1b``, ``\\u202e``.

    Newlines and tabs stay.  Letters of every script stay; what moves the cursor, reorders or hides text does not.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def without_tokens(text: str) -> str:
    """`text` with everything that looks like an access token replaced, and who logs in at an address (``//me:pw@``)."""
    if "hf_" in text or "api_org_" in text:
        text = re.sub(_TOKEN, "<access token>", text)
    if "@" not in text:
        return text
    return re.sub(_BARE_LOGIN, r"\1<credentials>@", re.sub(_LOGIN, r"\1<credentials>@", text))


def shown(name: str) -> str:
    """`name` as it may be printed: quoted, cut, and without anything that looks like an access token."""
    text = without_tokens(name)
    return repr(text if len(text) <= 120 else text[:117] + "...")
