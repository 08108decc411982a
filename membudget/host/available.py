"""What this machine can run: for each test marker, what is missing, and the command that installs it.

Nothing heavy is imported and no device is touched: torch is looked for, not loaded, and nvidia-smi gives the names.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, replace
from enum import StrEnum

from membudget.data.defaults import SPARK_GPU
from membudget.host import nvidia_smi
from membudget.host.system import System

#: Markers that need something, in the order in which they are checked.
NEEDS = ("transformers", "cpu", "cuda", "spark")
_INSTALL = "pip install 'membudget[transformers]'"


@dataclass(frozen=True)
class Here:
    """What a machine has."""

    gpus: tuple[str, ...]  # names of its NVIDIA GPUs
    torch: str  # version; "" where it is not installed
    transformers: str
    trouble: str | None = None  # why the driver that is here does not answer


class Lack(StrEnum):
    """Kinds of what is missing."""

    PACKAGES = "packages"
    GPU = "gpu"
    SPARK = "spark"
    TORCH_CUDA = "torch_cuda"  # torch is installed, and is a build without CUDA
    UNKNOWN_GPU = "unknown_gpu"  # the driver does not answer


@dataclass(frozen=True)
class Missing:
    """What tests with a marker lack here.  As text: with the command that installs it."""

    code: Lack
    text: str
    fix: str = ""  # a command; "" where none helps

    def __str__(self) -> str:
        return f"{self.text}: {self.fix}" if self.fix else self.text


def missing(marker: str, here: Here | None = None, needs_torch: bool = True) -> Missing | None:
    """What tests with this marker lack here; None where they can run.

    needs_torch: False where another Python has what is needed, as a vLLM of its own.
    """
    here = here or _asked()
    if not needs_torch:
        here = replace(here, torch="of another Python", transformers="of another Python")
    packages = [name for name in ("torch", "transformers") if not getattr(here, name)]
    if marker in ("cuda", "spark"):
        needs = f"a DGX Spark (an NVIDIA GPU named {SPARK_GPU})" if marker == "spark" else "an NVIDIA GPU"
        if not here.gpus and here.trouble:
            return Missing(Lack.UNKNOWN_GPU, f"needs {needs}; whether this machine has one is unknown: {here.trouble}")
        if marker == "spark" and not any(SPARK_GPU in gpu for gpu in here.gpus):
            return Missing(Lack.SPARK, f"needs {needs}; {_has(here.gpus)}")
        if not here.gpus:
            return Missing(Lack.GPU, f"needs {needs}; {_has(here.gpus)}")
        if not packages and here.torch.endswith("+cpu"):
            return Missing(Lack.TORCH_CUDA, f"needs torch with CUDA; torch {here.torch} is a CPU build")
    if marker in NEEDS and packages:
        return Missing(Lack.PACKAGES, f"needs {' and '.join(packages)}, not installed here", _INSTALL)
    return None


@functools.cache
def gpus() -> tuple[str, ...]:
    """The names of this machine's NVIDIA GPUs, as the driver says; empty where there is no driver."""
    return _listed()[0]


@functools.cache
def _listed() -> tuple[tuple[str, ...], str | None]:
    system = System()
    return nvidia_smi.names(system), system.driver_trouble()


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
    return Here(gpus(), torch, "unknown" if _installed("transformers") else "", _listed()[1])


def _has(found: tuple[str, ...]) -> str:
    return f"this machine has {', '.join(found)}" if found else "nvidia-smi lists none"


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
