"""Text from outside as a terminal may get it."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every character that is not printed named as Python would: ``\\x1b``, ``\\u202e``.

    Newlines and tabs stay.  Letters of every script stay; what moves the cursor, reorders or hides text does not.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)
