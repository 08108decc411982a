"""Names of budgets: what test ids, `-k` and records call them, the same wherever a project lies."""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Sequence
from unicodedata import category, normalize

from membudget.text.sanitize import without_tokens


def stem_of(file: str) -> str:
    """A file's name without its suffix, as an id takes it."""
    return plain(os.path.basename(file).rpartition(".")[0])


def stems_of(files: Sequence[str]) -> list[str]:
    """The files' names without suffix, each once.

    Alike ones get their suffix where they lie in one folder, and as many of their folders as tell them apart, of
    those below the folder that they share.
    """
    stems = [stem_of(file) for file in files]
    alike: dict[str, list[int]] = {}
    for place, stem in enumerate(stems):
        alike.setdefault(stem, []).append(place)
    for places in alike.values():
        if len(places) > 1:
            named = _told_apart([os.path.abspath(files[place]) for place in places])
            for place, name in zip(places, named, strict=True):
                stems[place] = name
    found: dict[str, None] = {}
    for stem in stems:
        found[unique(stem, found)] = None
    return list(found)


def _told_apart(files: list[str]) -> list[str]:
    folders = [os.path.dirname(file) for file in files]
    names = [
        stem_of(file) if folders.count(folder) == 1 else plain(os.path.basename(file))
        for file, folder in zip(files, folders, strict=True)
    ]
    try:
        shared = len(os.path.commonpath(folders))
    except ValueError:  # other drives
        shared = 0
    parts = [[plain(part) for part in folder[shared:].split(os.sep) if part] for folder in folders]
    made = names
    for depth in range(1 + max(map(len, parts))):
        made = ["/".join([*part[max(len(part) - depth, 0) :], name]) for part, name in zip(parts, names, strict=True)]
        if len(set(made)) == len(made):
            break
    return made


def plain(text: str) -> str:
    """Letters and digits of any script, and what `-k` and a shell take as it is."""
    kept = (
        letter if letter.isalnum() or letter in "._-" or category(letter)[0] == "M" else " "
        for letter in normalize("NFC", without_tokens(text))
    )
    return "-".join("".join(kept).split()).strip("-") or "budget"


def unique(name: str, taken: Container[str]) -> str:
    """`name`, with a number behind it where it is taken."""
    if name not in taken:
        return name
    return next(f"{name}-{n}" for n in itertools.count(2) if f"{name}-{n}" not in taken)
