"""What this machine can run: for each test marker, what is missing, in words a person can act on.

Nothing heavy is imported and no device is touched: torch is looked for, not loaded, and
the driver is asked for names through nvidia-smi alone.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

from membudget.host import asking
from membudget.machines import SPARK_GPU

#: Markers that need something, in the order in which they are checked.
NEEDS = ("transformers", "cpu", "cuda", "spark")
_INSTALL = "pip install 'membudget[transformers]'"


class Here(NamedTuple):
    """What a machine has: the names of its NVIDIA GPUs, and versions of torch and transformers ("" without)."""

    gpus: tuple[str, ...]
    torch: str
    transformers: str


def missing(marker: str, here: Here | None = None, needs_torch: bool = True) -> str | None:
    """Why tests with this marker cannot run here; None where they can.

    needs_torch: False where another Python has what is needed, as a vLLM of its own.
    """
    here = here or _asked()
    if not needs_torch:
        here = here._replace(torch="of another Python", transformers="of another Python")
    packages = [name for name in ("torch", "transformers") if not getattr(here, name)]
    if marker == "spark" and not any(SPARK_GPU in gpu for gpu in here.gpus):
        return f"needs a DGX Spark (an NVIDIA GPU named {SPARK_GPU}); {_told(here.gpus)}"
    if marker in ("cuda", "spark"):
        if not here.gpus:
            return f"needs an NVIDIA GPU; {_told(here.gpus)}"
        if not packages and here.torch.endswith("+cpu"):
            return f"needs torch with CUDA; torch {here.torch} is installed, which has none"
    if marker in NEEDS and packages:
        return f"needs {' and '.join(packages)}, not installed here: {_INSTALL}"
    return None


@functools.cache
def gpus() -> tuple[str, ...]:
    """The names of this machine's NVIDIA GPUs, as the driver says; empty where there is no driver."""
    import re

    said = _listed().text or ""
    return tuple(re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", said, re.MULTILINE))


@functools.cache
def _listed() -> asking.Answer:
    return asking.ask(["nvidia-smi", "-L"])


def no_command(command: str | None) -> str | None:
    """Why a command for vLLM cannot be started; None for a file, a folder, words that begin with a command, or none."""
    import os
    import shlex
    from shutil import which

    from membudget.text.sanitize import without_tokens

    if not command:
        return None
    try:
        words = [command] if os.path.exists(command) else shlex.split(command)
    except ValueError:  # a quote that is not closed
        words = []
    if words and (os.path.isdir(words[0]) or which(words[0])):
        return None
    return (
        f"{without_tokens(command)!r}: there is no such command here; give a python that has vLLM, its environment's "
        "folder, a vllm command, or a container command in quotes"
    )


def _asked() -> Here:
    torch = (_torch_version() or "unknown") if _installed("torch") else ""
    return Here(gpus(), torch, "unknown" if _installed("transformers") else "")


def _told(found: tuple[str, ...]) -> str:
    if found:
        return f"this machine has {', '.join(found)}"
    if why := _listed().why:
        return f"whether this machine has one is not known: nvidia-smi gives {why}"
    return "this machine has no NVIDIA GPU (nvidia-smi lists none)"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _torch_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
