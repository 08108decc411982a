"""What this system says: files, commands, memory.  Each figure is a value, or None where it is not known."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from membudget.host import command
from membudget.host.command import Failure

MEMINFO, PRESSURE = "/proc/meminfo", "/proc/pressure/memory"
#: There where the kernel has NVIDIA's driver.
DRIVER = "/proc/driver/nvidia/version"
#: PSI, thousandths of a percent: from here on (10% of the last 10 s) nothing is started on unified memory.  A choice.
WAITING = 10_000


class System:
    """Commands and files of this machine.  Tests put their own answers in its place."""

    platform = sys.platform

    def run(self, words: Sequence[str]) -> str | None:
        """Standard output; None where the command is missing, fails or takes too long: `troubles` has the reason.

        A program that hung or flooded once is not asked again.
        """
        program, troubles = words[0], self.troubles
        if program in troubles and troubles[program].stuck:
            return None
        answer = command.ask(words)
        if answer.failure not in (None, Failure.NOT_INSTALLED):
            troubles[program] = answer
        return answer.text

    @property
    def troubles(self) -> dict[str, command.Answer]:
        """By program: it is installed, and did not answer."""
        found: dict[str, command.Answer] = self.__dict__.setdefault("_troubles", {})
        return found

    def driver_trouble(self) -> str | None:
        """Why an NVIDIA driver that is here does not answer; None where there is none, or it was not asked.

        Where nvidia-smi fails by itself and the kernel has no driver, there is no GPU to use.
        """
        answer = self.troubles.get("nvidia-smi")
        if answer is None or (answer.failure is Failure.EXIT_CODE and self.read(DRIVER) is None):
            return None
        return f"nvidia-smi fails: {answer.detail}"

    def environment(self) -> Mapping[str, str]:
        """Environment variables."""
        return os.environ

    def read(self, path: str) -> str | None:
        """A file's text; None where it cannot be read."""
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None

    def folder(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty where there is none."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo, bytes (and counts: HugePages_Total); empty where there is none."""
        return parse_meminfo(self.read(MEMINFO) or "")

    def pressure(self) -> int | None:
        """PSI some avg10 in thousandths of a percent; None where the kernel does not say, or not to a container."""
        return parse_pressure(self.read(PRESSURE) or "")

    def cgroup_limit(self) -> tuple[int, str] | None:
        """The container's memory limit in bytes where it is below MemTotal, and the file that says so.

        It counts for memory of the CPU, never for CUDA's.
        """
        total = self.meminfo().get("MemTotal", 2**60)
        for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            text = (self.read(path) or "").strip()
            if text.isdecimal() and 0 < int(text) < total:
                return int(text), path
        return None


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes (counts, as HugePages_Total, as they are).

    MemAvailable is left out where it exceeds MemTotal: an impossible figure is not relied on.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isascii() and words[0].isdigit():
            found[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    if found.get("MemAvailable", 0) > found.get("MemTotal", 0):
        del found["MemAvailable"]
    return found


def parse_pressure(text: str) -> int | None:
    """The first avg10 of /proc/pressure/memory (the ``some`` line), thousandths of a percent; None where unreadable."""
    for word in text.split():
        if word.startswith("avg10="):
            whole, _, part = word.removeprefix("avg10=").partition(".")
            if not (whole.isdecimal() and (part or "0").isdecimal()):
                return None
            share = int(whole) * 1000 + int((part + "000")[:3])
            return share if share <= 100_000 else None
    return None


def meminfo() -> dict[str, int]:
    """/proc/meminfo of this machine, bytes; empty where there is none."""
    try:
        with open(MEMINFO, encoding="ascii", errors="replace") as file:
            return parse_meminfo(file.read())
    except OSError:
        return {}


def available() -> int | None:
    """Bytes that can still be used without swapping (MemAvailable); None where it is unknown."""
    if os.path.exists(MEMINFO):
        return meminfo().get("MemAvailable")
    try:  # macOS and Windows, where psutil is installed
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)
