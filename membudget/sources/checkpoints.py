"""From what a user types, or where a model was found, to its checkpoint's headers."""

from __future__ import annotations

import os
import re

from membudget.checkpoint import Checkpoint, CheckpointError, read_path
from membudget.checkpoint.reading import unfinished
from membudget.sources.hub import read_repo
from membudget.sources.locate import Located
from membudget.sources.names import is_repo_file


def read(path_or_repo: str | os.PathLike[str], *, offline: bool | None = None) -> Checkpoint:
    """Read the headers of a file, a folder, or a repository on the hub (ranged reads).

    ``org/name/file.gguf`` names one file of a repository.  A repository that is in the
    local cache is read there.  Raises `CheckpointError`.
    """
    name = os.fspath(path_or_repo)
    if os.path.exists(os.path.expanduser(name)):
        return read_path(name)
    if name.lower().endswith((".safetensors", ".gguf", ".json")) and not is_repo_file(name):
        return read_path(name)
    return read_repo(name, offline=offline)


def checkpoint_of(found: Located) -> Checkpoint | None:
    """The checkpoint at a located path: a weight file that was named, or the folder's files; None where none lie.

    Raises `CheckpointError` for files that cannot be read.
    """
    if found.kind == "safetensors" and re.search(r"-\d{5}-of-\d{5}\.safetensors$", found.path):
        # one shard of several: its model is all of them
        return read_path(os.path.dirname(found.path) or ".")
    if found.kind in ("gguf", "safetensors"):
        return read_path(found.path)
    if found.kind != "path" or not os.path.isdir(found.path):
        return None
    names = os.listdir(found.path)
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return read_path(found.path)
    left = unfinished(names)
    if left:
        raise CheckpointError(found.path, None, f"has no weights to compare{left}, or pass its config.json alone")
    return None
