"""What the doctor asks of the world: files, commands, the driver, installed packages.  Nothing heavy is loaded.

Every answer can be laid out by a test: files under another `root`, the rest by overriding a method.
Command lines of other processes are looked at and never shown: they hold keys and tokens.
"""

from __future__ import annotations

import os
import platform as system_platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from membudget.host import nvidia_smi, system
from membudget.host.readings import Reading, Unknown, number
from membudget.host.system import System
from membudget.units import MIB


@dataclass(frozen=True)
class Process:
    """A running process."""

    pid: int
    name: str  # as the kernel has it
    rss: int  # resident bytes; CUDA memory is not in them
    engine: str = ""  # the inference engine that its command line starts; "" where it starts none


@dataclass(frozen=True)
class Held:
    """What one process holds on the device, as the driver says."""

    pid: int
    name: str
    size: Reading


#: An engine by the program, script or module that a command line starts.
_ENGINES = (
    ("vLLM", re.compile(r"vllm(\.|$)|VLLM::")),
    ("SGLang", re.compile(r"sglang(\.|::|$)")),
    ("llama.cpp", re.compile(r"llama-(server|cli|bench)$")),
    ("Ollama", re.compile(r"ollama$|ollama_llama_server$")),
    ("TensorRT-LLM", re.compile(r"trtllm-|tensorrt_llm(\.|$)")),
    ("TGI", re.compile(r"text-generation-(launcher|server)$")),
    ("LM Studio", re.compile(r"lms$|lm-?studio$", re.IGNORECASE)),
)


class Source(System):
    """This machine's answers."""

    def __init__(self, root: str = "") -> None:
        self.root = root

    def read(self, path: str) -> str | None:
        """A file's text; None where it cannot be read."""
        return super().read(self.root + path)

    def folder(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        return super().folder(self.root + path)

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return os.path.exists(self.root + path)

    def available(self) -> Reading:
        """Bytes that can still be used without swapping."""
        lines = self.meminfo()
        if lines:
            return lines.get("MemAvailable", Unknown("/proc/meminfo has no MemAvailable that can be"))
        found = system.available() if not self.root else None
        return (
            found
            if found is not None
            else Unknown(f"{self.platform} has no /proc/meminfo that can be read; pip install psutil")
        )

    def which(self, command: str) -> str | None:
        """Where a command lies on PATH."""
        from shutil import which

        return which(command)

    def version(self, package: str) -> str | None:
        """The installed version of a distribution in this Python."""
        from importlib import metadata

        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def python(self) -> tuple[str, str]:
        """This Python's version and where it is."""
        return ".".join(map(str, sys.version_info[:3])), sys.executable

    def kernel(self) -> tuple[str, str, str]:
        """System, release, architecture."""
        return system_platform.system(), system_platform.release(), system_platform.machine()

    def disk_free(self, path: str) -> Reading:
        """Bytes free on the disk that holds `path`, or would hold it."""
        import shutil

        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        try:
            return shutil.disk_usage(path).free
        except OSError as error:
            return Unknown(f"{path}: {error.strerror or error}")

    def processes(self) -> list[Process] | Unknown:
        """Every process that can be seen, this one left out."""
        if self.platform == "darwin":
            return self._ps()
        found = [self._process(entry) for entry in self.folder("/proc") if entry.isdecimal()]
        if not found:
            return Unknown(f"{self.platform} has no /proc")
        own = os.getpid() if not self.root else 0
        return [process for process in found if process is not None and process.pid != own]

    def _process(self, pid: str) -> Process | None:
        name, size = self.read(f"/proc/{pid}/comm"), (self.read(f"/proc/{pid}/statm") or "").split()
        if name is None or len(size) < 2 or not size[1].isdecimal():
            return None
        words = (self.read(f"/proc/{pid}/cmdline") or "").split("\0")
        page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") and not self.root else 4096
        return Process(int(pid), name.strip(), int(size[1]) * page, engine(words))

    def _ps(self) -> list[Process] | Unknown:
        text = self.run(["ps", "-axo", "pid=,rss=,comm="])
        if text is None:
            return Unknown("ps does not answer")
        found = []
        for line in text.splitlines():
            pid, rss, path = [*line.split(None, 2), "", "", ""][:3]
            if pid.isdecimal() and rss.isdecimal():
                name = path.rpartition("/")[2]
                found.append(Process(int(pid), name, int(rss) * 1024, engine([name])))
        return found

    def held(self) -> list[Held] | Unknown:
        """What each process holds on the NVIDIA devices: NVML, exact also on unified memory; else nvidia-smi."""
        asked = self._nvml()
        if asked is not None:
            return asked
        try:
            listed = nvidia_smi.processes(self)
        except nvidia_smi.UnreadableAnswer as error:
            return Unknown(str(error))
        if listed is None:
            failed = self.troubles.get("nvidia-smi")
            if failed is not None:
                return Unknown(f"nvidia-smi fails: {failed.detail}")
            return Unknown("no NVIDIA driver answers (pynvml, nvidia-smi)")
        return [Held(pid, base(name), number(size, MIB)) for pid, name, size in listed]

    def _nvml(self) -> list[Held] | None:
        """NVML's answer for every device; None where it cannot be asked."""
        from membudget.host import nvml

        found = []
        try:
            with nvml.opened() as library:
                for place in range(library.nvmlDeviceGetCount()):
                    device = library.nvmlDeviceGetHandleByIndex(place)
                    for process in library.nvmlDeviceGetComputeRunningProcesses(device):
                        name = (self.read(f"/proc/{process.pid}/comm") or "another container's or user's").strip()
                        found.append(Held(process.pid, name, number(process.usedGpuMemory)))
        except nvml.NoAnswer:
            return None
        return found

    def version_in(self, python: str, packages: Sequence[str]) -> str | None:
        """The version of the first of these packages in another Python, which loads nothing for it."""
        code = (
            "import sys; from importlib import metadata\n"
            "for name in sys.argv[1:]:\n"
            "    try: print(metadata.version(name)); break\n"
            "    except metadata.PackageNotFoundError: pass"
        )
        text = self.run([python, "-I", "-c", code, *packages])
        return text.strip() or None if text else None


def engine(words: Sequence[str]) -> str:
    """The engine that a command line starts, "" for none: ``python -m vllm...``, ``/opt/bin/vllm serve``."""
    program = base(words[0]) if words else ""
    started = [program]
    if re.match(r"python[\d.]*(\.exe)?$", program):
        rest = [word for word in words[1:4] if word]
        started += [base(word) for word in rest if not word.startswith("-")][:1]
    for name, pattern in _ENGINES:
        if any(pattern.match(word) for word in started):
            return name
    return ""


def base(path: str) -> str:
    """A program's name without its folder, either system's."""
    return path.replace("\\", "/").rpartition("/")[2]
