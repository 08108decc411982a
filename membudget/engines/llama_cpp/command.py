"""The `llama-server` line that a plan stands for, with all that it assumed."""

from __future__ import annotations

import os
import shlex
from typing import Any

from membudget.engines.llama_cpp.asked import Asked
from membudget.engines.llama_cpp.settings import Settings
from membudget.formats import Format
from membudget.model import Model

#: Options that the line has already, or that are not llama.cpp's.
_SAID = ("ctx_size", "parallel", "kv_unified", "cache_type_k", "cache_type_v", "host_memory")
#: Those whose no is an option of its own.
_NO = ("kv_offload", "op_offload", "mmproj_offload")
#: Those whose yes is one, and whose no is the default.
_FLAGS = ("swa_full", "cpu_moe")


def serve(model: Model, weights: Format, asked: Asked, settings: Settings) -> str:
    """One line: the file, contexts, slots, cache types, and every option that was given."""
    words = ["llama-server", "-m", file_name(model, weights), "-c", str(settings.ctx_size), "-np", str(settings.slots)]
    words.append("--kv-unified" if settings.unified else "--no-kv-unified")
    for side in "kv":
        kind = getattr(settings, f"cache_type_{side}")
        if kind != "f16":
            words += [f"-ct{side}", kind]
    if settings.ubatch_size != 512:
        words += ["-ub", str(settings.ubatch_size)]
    for name, value in asked.given.items():
        if name == "model_draft" and not str(value).endswith(".gguf"):
            value = _named(str(value), weights)
        if name not in _SAID:
            words += option(name, value)
    return shlex.join(words)


def option(name: str, value: Any) -> list[str]:
    """One option as it is typed; nothing where it is the default."""
    typed = name.replace("_", "-")
    if name in _NO:
        return [] if value else [f"--no-{typed}"]
    if name in _FLAGS:
        return [f"--{typed}"] if value else []
    if name == "mmproj" and str(value).lower() == "auto":
        return ["--mmproj", "mmproj-F16.gguf"]
    return [f"--{typed}", str(value)]


def file_name(model: Model, weights: Format) -> str:
    """The file as it was named, else what the format's file would be called."""
    checkpoint = getattr(weights, "checkpoint", None)
    if checkpoint is not None and checkpoint.kind == "gguf":
        return str(checkpoint.source)
    return _named(model.name, weights)


def _named(name: str, weights: Format) -> str:
    """What a model's file in this format would be called."""
    return f"{os.path.basename(name.rstrip('/')).removesuffix('.gguf')}-{weights.name}.gguf"


__all__ = ["file_name", "option", "serve"]
