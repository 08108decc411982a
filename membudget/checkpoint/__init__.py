"""Real checkpoints from their headers: every tensor, its dtype and its bytes; nothing is loaded."""

from __future__ import annotations

from membudget.checkpoint.differences import Differences
from membudget.checkpoint.differences import compare as against
from membudget.checkpoint.entries import Checkpoint, CheckpointError, DtypeTotal, Skipped, StoredFile, StoredTensor
from membudget.checkpoint.gguf_config import config_of as make_config
from membudget.checkpoint.reading import read_path
from membudget.checkpoint.roles import by_role as total_by_role
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
    "read_path",
]


def config_of(checkpoint: Checkpoint | str, source: str | None = None) -> Config:
    """The config that a GGUF file's own metadata describes; raises `membudget.model.ConfigError`."""
    return make_config(read_path(checkpoint) if isinstance(checkpoint, str) else checkpoint, source)


def by_role(checkpoint: Checkpoint, model: Model | None = None) -> dict[str, int]:
    """Bytes by role, the largest first; with a model its inventory names the roles."""
    return total_by_role(checkpoint, model)


def compare(checkpoint: Checkpoint, model: Model, form: Format | None = None) -> Differences:
    """The checkpoint against the model's inventory, tensor by tensor."""
    return against(checkpoint, model, form)
