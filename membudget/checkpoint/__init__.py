"""Real checkpoints from their headers: every tensor, its dtype and its bytes; nothing is loaded."""

from __future__ import annotations

import os

from membudget.checkpoint.differences import Differences
from membudget.checkpoint.entries import Checkpoint, CheckpointError, DtypeTotal, Skipped, StoredFile, StoredTensor
from membudget.checkpoint.reading import read_path
from membudget.formats import Format
from membudget.model import Config, Model

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DtypeTotal",
    "Skipped",
    "StoredFile",
    "StoredTensor",
    "by_role",
    "compare",
    "config_of",
    "read",
    "read_path",
]


def read(path_or_repo: str | os.PathLike[str], *, offline: bool | None = None) -> Checkpoint:
    """Read the headers of a file, a folder, or a repository on the hub (ranged reads).

    ``org/name/file.gguf`` names one file of a repository.  A repository that is in the
    local cache is read there.  Raises `CheckpointError`.
    """
    name = os.fspath(path_or_repo)
    if os.path.exists(os.path.expanduser(name)):
        return read_path(name)
    from membudget.sources.locate import is_repo_file

    if name.lower().endswith((".safetensors", ".gguf", ".json")) and not is_repo_file(name):
        return read_path(name)
    from membudget.sources.hub import read_repo

    return read_repo(name, offline=offline)


def config_of(checkpoint: Checkpoint | str, source: str | None = None) -> Config:
    """The config that a GGUF file's own metadata describes; raises `membudget.model.ConfigError`."""
    from membudget.checkpoint.gguf_config import config_of as make

    return make(read_path(checkpoint) if isinstance(checkpoint, str) else checkpoint, source)


def by_role(checkpoint: Checkpoint, model: Model | None = None) -> dict[str, int]:
    """Bytes by role, the largest first; with a model its inventory names the roles."""
    from membudget.checkpoint.roles import by_role as total

    return total(checkpoint, model)


def compare(checkpoint: Checkpoint, model: Model, form: Format | None = None) -> Differences:
    """The checkpoint against the model's inventory, tensor by tensor."""
    from membudget.checkpoint.differences import compare as against

    return against(checkpoint, model, form)
