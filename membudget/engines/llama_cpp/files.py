"""From a model and a format, or a file, to the headers that a server reads."""

from __future__ import annotations

import os
from dataclasses import replace

from membudget.budgets.settings import is_gguf
from membudget.checkpoint.stored_format import AsStored
from membudget.engines.llama_cpp.options import CONVERTED, STORED
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.llama_cpp.projector import Projector
from membudget.engines.llama_cpp.settings import SettingsError
from membudget.formats import Format, FormatError
from membudget.formats.gguf import Gguf, gguf
from membudget.model import ConfigError, Model, build
from membudget.sources.checkpoints import read
from membudget.sources.locate import locate


def layout_of(weights: Format) -> Gguf | None:
    """The GGUF mix of this format; None for a file whose header says its own.  Raises `FormatError`."""
    if isinstance(weights, Gguf):
        return weights
    if isinstance(weights, AsStored):
        if weights.checkpoint.kind == "gguf":
            return None
        kept = [STORED[name] for name in weights.checkpoint.by_dtype if name in STORED]
        if kept:
            return gguf(weights.name, kept[0])
    if weights.name in CONVERTED:
        return gguf(weights.name, CONVERTED[weights.name])
    raise FormatError(f"llama.cpp reads GGUF files, and {weights.name} weights are none")


def server_of(model: Model, weights: Format) -> Server:
    """The server of a model's file, made once for a model.  Raises `FormatError` for one that it does not know."""
    key = ("llama.cpp server", weights.key)
    found: Server | None = model.memo.get(key)
    if found is None:
        layout = layout_of(weights)
        if layout is None:
            assert isinstance(weights, AsStored)
            found = Server.stored(weights.checkpoint)
        else:
            try:
                found = Server.written(model, layout)
            except ConfigError as error:
                raise FormatError(
                    f"{model.name}: llama.cpp's converter writes no file of this config: {error}"
                ) from None
        model.memo[key] = found
    return found


def projector_of(name: str, model: Model, weights: Format, *, offload: bool) -> Projector:
    """``--mmproj``: a file, or ``auto`` for the model's own towers.  Raises `SettingsError`, `CheckpointError`."""
    if name.lower() == "auto":
        found = Projector.written(model, layout_of(weights) or gguf("f16", "F16"))
        if found is None:
            raise SettingsError(f"mmproj auto: the config of {model.name} has no towers; name a projector's .gguf file")
    else:
        path = os.path.expanduser(name)
        if not os.path.isfile(path):
            raise SettingsError(f"mmproj {name!r}: no such file; a projector's .gguf file, or auto, is allowed")
        found = Projector.read(path)
    return replace(found, on_host=not offload)


def draft_of(name: str, weights: Format) -> Server:
    """``-md``: a .gguf file, or a model in the same format.  Raises `SettingsError` and what reading raises."""
    if name.lower().endswith(".gguf"):
        return Server.stored(read(name))
    found = locate(name)
    if found.config is None:
        raise SettingsError(f"model_draft {name!r}: no config.json says what it is")
    layout = layout_of(weights) if isinstance(weights, Gguf) or not is_gguf(weights) else None
    return Server.written(build(found.config, name), layout or gguf("q8_0", "Q8_0"))


__all__ = ["draft_of", "layout_of", "projector_of", "server_of"]
