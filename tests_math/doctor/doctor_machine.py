"""A machine laid out for the doctor: files under a folder, commands and packages as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.commands import doctor
from membudget.doctor import Source
from membudget.doctor.source import Held
from membudget.host.readings import Reading, Unknown
from membudget.units import GIB, MIB

ROOT = Path(__file__).parents[2]
SPARK: dict[str, Any] = json.loads((ROOT / "fixtures" / "doctor" / "spark.json").read_text(encoding="utf-8"))
Ask = Callable[..., tuple[int, Any]]
Run = Callable[..., tuple[int, str, str]]

SMI = "| NVIDIA-SMI 580.173.02   Driver Version: 580.173.02   CUDA Version: 13.0 |\n"


class Machine(Source):
    """A machine laid out under a folder: its files are real, commands and packages are tables."""

    def __init__(self, root: Path, platform: str = "linux") -> None:
        super().__init__(str(root))
        self.platform = platform
        self.commands: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.on_path: dict[str, str] = {}
        self.device: list[Held] | Unknown = []
        self.disk: Reading = 900 * GIB
        self.others: dict[str, str] = {}

    def write(self, path: str, text: str) -> None:
        """A file of it."""
        target = Path(self.root + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def memory(self, kib: Mapping[str, int], more: str = "") -> None:
        """Its /proc/meminfo."""
        self.write("/proc/meminfo", "".join(f"{name}: {size} kB\n" for name, size in kib.items()) + more)

    def start(self, pid: int, name: str, rss: int, *words: str) -> None:
        """A process, `rss` in bytes."""
        self.write(f"/proc/{pid}/comm", name + "\n")
        self.write(f"/proc/{pid}/statm", f"{rss // 4096 * 2} {rss // 4096} 0 0 0 0 0\n")
        self.write(f"/proc/{pid}/cmdline", "\0".join(words or (name,)) + "\0")

    def run(self, command: Sequence[str]) -> str | None:
        return self.commands.get(" ".join(command))

    def environment(self) -> Mapping[str, str]:
        return self.variables

    def which(self, command: str) -> str | None:
        return command if command in self.on_path.values() else self.on_path.get(command)

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def version_in(self, python: str, packages: Sequence[str]) -> str | None:
        return self.others.get(python)

    def disk_free(self, path: str) -> Reading:
        return self.disk

    def held(self) -> list[Held] | Unknown:
        return self.device

    def python(self) -> tuple[str, str]:
        return "3.12.3", "/opt/venv/bin/python"

    def kernel(self) -> tuple[str, str, str]:
        return "Linux", "6.14", "aarch64"


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Callable[[Source], None]:
    """Put a machine in the doctor's way."""
    return lambda source: monkeypatch.setattr(doctor, "SOURCE", lambda: source)


def idle_spark(root: Path) -> Machine:
    """An idle DGX Spark with everything installed, and a guard that runs, laid out under `root`."""
    box = Machine(root)
    box.memory(SPARK["idle"]["meminfo_kib"], "HugePages_Total: 0\nHugepagesize: 2048 kB\n")
    box.write("/proc/swaps", "Filename Type Size Used Priority\n")
    box.write("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    box.write("/proc/sys/vm/overcommit_memory", "0\n")
    box.start(700, "earlyoom", 2 * MIB, "/usr/bin/earlyoom", "-M", "6291456,4194304", "-s", "100")
    box.commands = {
        "nvidia-smi": SMI,
        "nvidia-smi -L": "GPU 0: NVIDIA GB10 (UUID: GPU-7c3f)\n",
        "nvidia-smi --query-gpu=uuid,name,memory.total,mig.mode.current --format=csv,noheader,nounits": (
            "GPU-7c3f, NVIDIA GB10, [N/A], [N/A]\n"
        ),
    }
    box.packages = {"torch": "2.13.0+cu130", "transformers": "5.24.0", "vllm": "0.32.0", "nvidia-ml-py": "13.590"}
    return box


@pytest.fixture
def spark(tmp_path: Path, put: Callable[[Source], None]) -> Machine:
    """An idle DGX Spark, put in the doctor's way."""
    box = idle_spark(tmp_path)
    put(box)
    return box


def trap(document: Any, name: str) -> Any:
    """One finding by its name."""
    return next(item for item in document["traps"] if item["name"] == name)
