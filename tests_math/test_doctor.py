"""`membudget doctor`: a Spark's real numbers, laptops, Macs and Windows put in at its edge; and this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from membudget.commands import doctor
from membudget.doctor import Source
from membudget.doctor.settings import TRANSFORMERS
from membudget.doctor.source import Held, engine
from membudget.probe.readings import Reading, Unknown
from membudget.units import GIB, MIB

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[1]
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


@pytest.fixture
def spark(tmp_path: Path, put: Callable[[Source], None]) -> Machine:
    """An idle DGX Spark with everything installed, and a guard that runs."""
    box = Machine(tmp_path)
    box.memory(SPARK["idle"]["meminfo_kib"], "HugePages_Total: 0\nHugepagesize: 2048 kB\n")
    box.write("/proc/swaps", "Filename Type Size Used Priority\n")
    box.write("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    box.write("/proc/sys/vm/overcommit_memory", "0\n")
    box.start(700, "earlyoom", 2 * MIB, "/usr/bin/earlyoom", "-M", "6291456,4194304", "-s", "100")
    box.commands = {
        "nvidia-smi": SMI,
        "nvidia-smi -L": "GPU 0: NVIDIA GB10 (UUID: GPU-7c3f)\n",
        "nvidia-smi --query-gpu=name,memory.total,mig.mode.current --format=csv,noheader,nounits": (
            "NVIDIA GB10, [N/A], [N/A]\n"
        ),
    }
    box.packages = {"torch": "2.13.0+cu130", "transformers": "5.24.0", "vllm": "0.32.0", "nvidia-ml-py": "13.590"}
    put(box)
    return box


def trap(document: Any, name: str) -> Any:
    """One finding by its name."""
    return next(item for item in document["traps"] if item["name"] == name)


def test_an_idle_spark(spark: Machine, ask: Ask) -> None:
    """121.69 GiB as Linux says, all tiers run; one danger, vLLM's default share, and it can be ignored."""
    code, document = ask("doctor")
    assert document["machine"]["memory"] == 127_600_748 * 1024
    assert document["machine"]["unified"] is True
    assert (document["machine"]["driver"], document["machine"]["cuda"]) == ("580.173.02", "13.0")
    assert document["memory"]["cuda_free"] == 115_699_875 * 1024
    assert all(tier["runs"] for tier in document["tiers"])
    assert code == 1
    assert [item["name"] for item in document["traps"] if item["state"] == "danger"] == ["utilization"]
    share = trap(document, "utilization")
    # vllm-project/recipes/pull/632: the default 0.92 does not start, 0.85 and less does
    assert "0.92 of 121.69 GiB" in share["text"]
    # 113.07 GiB less the 12 that must stay free; GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47 runs at 0.82 and 0.83
    assert "--gpu-memory-utilization 0.83" in share["fix"]
    assert document["first"].startswith("utilization: ")
    code, document = ask("doctor", "--ignore", "utilization")
    assert (code, document["endangered"], document["first"]) == (0, False, "nothing endangers a run here")


def test_page_cache(spark: Machine, ask: Ask) -> None:
    """After a large file was read the driver's free is 41.52 GiB of the 115.65 that can be used."""
    spark.memory(SPARK["page_cache"]["meminfo_kib"])
    _, document = ask("doctor")
    found = trap(document, "page_cache")
    assert found["state"] == "danger"
    assert "41.52 GiB" in found["text"]
    assert "115.65 GiB" in found["text"]
    assert "74.13 GiB" in found["text"]  # 115.65 - 41.52
    assert "drop_caches" in found["fix"]
    assert trap(document, "hugepages")["state"] == "unknown"


def test_three_services_hold_the_device(spark: Machine, ask: Ask) -> None:
    """Names and pids from the driver, engines by name; what is left bounds vLLM's share; nobody's arguments show."""
    case = SPARK["residents"]
    spark.memory(case["meminfo_kib"])
    spark.start(4242, "VLLM::EngineCor", 4 * GIB, "VLLM::EngineCore")
    spark.start(
        4300, "python3", GIB, "/usr/bin/python3", "-m", "vllm.entrypoints.openai", "--api-key", "hf_secretsecret"
    )
    spark.device = [Held(4242, "VLLM::EngineCor", case["held_mib"] * MIB)]
    code, document = ask("doctor")
    assert code == 1
    found = trap(document, "engines")
    assert found["state"] == "danger"
    assert "vLLM: VLLM::EngineCor (pid 4242) holds 82.73 GiB" in found["text"]  # 84,713 MiB
    assert "vLLM runs (pid 4300)" in found["text"]
    assert "kill 4242 4300" in found["fix"]
    assert document["first"].startswith("engines (")
    assert "secret" not in json.dumps(document)
    # 22.06 GiB less 12 of 121.63
    assert "--gpu-memory-utilization 0.08" in trap(document, "utilization")["fix"]


def test_thrashing_comes_first(spark: Machine, ask: Ask) -> None:
    """Swap in use and tasks that wait: dangers, and the most urgent is named first."""
    case = SPARK["swapping"]
    spark.memory(case["meminfo_kib"])
    spark.write("/proc/pressure/memory", case["pressure"])
    spark.write("/proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 16777212 14680060 100\n")
    spark.write("/sys/block/zram0/mm_stat", "1 1 5368709120 0 0 0 0 0 0\n")
    _, document = ask("doctor")
    assert {trap(document, name)["state"] for name in ("thrashing", "swap", "zram")} == {"danger"}
    assert "61.25%" in trap(document, "thrashing")["text"]
    assert "16.00 GiB, 14.00 GiB used" in trap(document, "swap")["text"]
    assert "5.00 GiB" in trap(document, "zram")["text"]
    assert document["first"].startswith("thrashing (")


def test_swap_is_not_switched_off_into_a_full_memory(spark: Machine, ask: Ask) -> None:
    """`swapoff` reads everything back: without room for it and the guard's 12 GiB, memory is freed first."""
    case = dict(SPARK["idle"]["meminfo_kib"])
    case |= {"SwapTotal": 16 * 2**20, "SwapFree": 4 * 2**20}
    spark.memory(case | {"MemAvailable": 30 * 2**20})
    assert trap(ask("doctor")[1], "swap")["fix"] == "sudo swapoff -a"
    spark.memory(case | {"MemAvailable": 8 * 2**20})
    fix = trap(ask("doctor")[1], "swap")["fix"]
    assert fix.startswith("first end what holds memory, until 24.00 GiB is available")
    assert fix.endswith("then sudo swapoff -a")


def test_nobody_is_told_to_kill_the_screen(spark: Machine, ask: Ask) -> None:
    """A display server always holds a little of the device: it is named, and no kill is advised."""
    spark.device = [Held(4243, "Xorg", 128 * MIB)]
    found = trap(ask("doctor")[1], "engines")
    assert found["state"] == "note"
    assert "Xorg (pid 4243) holds 0.12 GiB" in found["text"]
    assert "kill" not in found["fix"]


def test_a_desktop_and_no_guard(spark: Machine, ask: Ask) -> None:
    """GNOME and Firefox are named with what they hold; without earlyoom the host may hang, oomd or not."""
    for pid, (name, size) in enumerate([("gnome-shell", 2 * GIB), ("firefox", 9 * GIB), ("firefox", GIB)], 900):
        spark.start(pid, name, size)
    spark.start(700, "systemd-oomd", 8 * MIB)
    _, document = ask("doctor")
    found = trap(document, "desktop")
    assert found["state"] == "danger"  # 12 GiB of the 10 that are the system's
    assert "12.00 GiB" in found["text"]
    assert "firefox 10.00 GiB" in found["text"]
    assert "multi-user.target" in found["fix"]
    assert trap(document, "guard")["state"] == "note"
    assert "systemd-oomd runs" in trap(document, "guard")["text"]
    assert "earlyoom" in trap(document, "guard")["fix"]


def test_limits_and_settings(spark: Machine, ask: Ask) -> None:
    """cgroup limits, overcommit, huge pages, the allocator, offline, disk and versions: each with its numbers."""
    spark.memory(SPARK["idle"]["meminfo_kib"], "HugePages_Total: 8192\nHugepagesize: 2048 kB\n")
    spark.write("/.dockerenv", "")
    spark.write("/sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    spark.write("/proc/sys/vm/overcommit_memory", "2\n")
    spark.variables = {"HF_HUB_OFFLINE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,x:hf_abcdefghijk"}
    spark.disk = 3 * GIB
    spark.packages |= {"transformers": "4.30.0", "vllm": "0.40.0"}
    _, document = ask("doctor")
    states = {item["name"]: item["state"] for item in document["traps"]}
    assert (
        states | {"container": "note", "overcommit": "danger", "hugepages": "danger", "allocator": "danger"} == states
    )
    assert states | {"disk": "danger", "offline": "note", "transformers": "note", "vllm": "note"} == states
    assert "8.00 GiB" in trap(document, "container")["text"]
    assert "does not see CUDA memory" in trap(document, "container")["text"]
    assert "16.00 GiB" in trap(document, "hugepages")["text"]
    assert "3.00 GiB" in trap(document, "disk")["text"]
    assert "4.30.0 is older" in trap(document, "transformers")["text"]
    assert "0.40.0 is newer" in trap(document, "vllm")["text"]


def test_a_card_of_its_own(spark: Machine, ask: Ask) -> None:
    """On an RTX 4090 another process's 6 GiB bound vLLM's share; what is only a Spark's trap is clear."""
    spark.commands = {
        "nvidia-smi": SMI,
        "nvidia-smi -L": "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\n",
        "nvidia-smi --query-gpu=name,memory.total,mig.mode.current --format=csv,noheader,nounits": (
            "NVIDIA GeForce RTX 4090, 24564, [N/A]\n"
        ),
        "nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits": "18104\n",
    }
    spark.packages["torch"] = "2.13.0+cpu"
    spark.device = [Held(55, "python", 6 * GIB), Held(56, "Xorg", 12 * MIB)]
    code, document = ask("doctor")
    assert code == 1
    assert "python (pid 55) holds 6.00 GiB" in trap(document, "engines")["text"]
    assert "Xorg" not in trap(document, "engines")["text"]
    assert "--gpu-memory-utilization 0.7" in trap(document, "utilization")["fix"]  # 17.68 of 23.68 GiB
    assert {trap(document, name)["state"] for name in ("page_cache", "guard", "swap")} == {"clear"}
    cuda = next(tier for tier in document["tiers"] if tier["name"] == "cuda")
    assert not cuda["runs"]
    assert "2.13.0+cpu" in cuda["why"]
    assert "whl/cu130" in cuda["fix"]


@pytest.mark.parametrize(
    ("platform", "commands", "memory"),
    [
        ("darwin", {"sysctl -n hw.memsize": "17179869184", "sysctl -n machdep.cpu.brand_string": "Apple M1"}, 2**34),
        ("darwin", {"ps -axo pid=,rss=,comm=": "  7 2048 /Applications/x/ollama\n"}, None),
        ("win32", {}, None),
    ],
)
def test_other_systems(
    tmp_path: Path,
    put: Callable[[Source], None],
    ask: Ask,
    run: Run,
    platform: str,
    commands: dict[str, str],
    memory: int | None,
) -> None:
    """Macs and Windows: what they do not say is unknown with a reason, never 0, and no trap is invented."""
    box = Machine(tmp_path, platform)
    box.commands = commands
    box.device = Unknown("no driver")
    put(box)
    code, document = ask("doctor")
    assert code == 0
    found = document["machine"]["memory"]
    assert found == memory if memory else found["unknown"]
    assert document["memory"]["available"]["unknown"]
    assert document["memory"]["swap_total"]["unknown"]
    assert trap(document, "swap")["state"] == "unknown"
    if "ps -axo pid=,rss=,comm=" in commands:
        assert "Ollama runs (pid 7)" in trap(document, "engines")["text"]
    assert run("doctor")[0] == 0


def test_vllm_is_found(spark: Machine, ask: Ask) -> None:
    """Named by the environment, in this Python, on PATH: which one, where, and its version; else why not."""
    assert ask("doctor")[1]["software"]["vllm"] == "0.32.0"
    del spark.packages["vllm"]
    document = ask("doctor")[1]
    assert "MEMBUDGET_VLLM" in document["software"]["vllm"]["unknown"]
    (tier,) = (tier for tier in document["tiers"] if tier["name"] == "vllm")
    assert not tier["runs"]
    assert "pip install vllm " in tier["fix"]
    spark.on_path["vllm"] = "/opt/vllm/bin/vllm"
    spark.write("/opt/vllm/bin/python", "")
    spark.others["/opt/vllm/bin/python"] = "0.19.1"
    document = ask("doctor")[1]
    assert (
        document["software"] | {"vllm": "0.19.1", "vllm_where": "/opt/vllm/bin/vllm (on PATH)"} == document["software"]
    )
    assert "claims 0.90" in trap(document, "utilization")["text"]  # 0.92 only since 0.20
    spark.variables["MEMBUDGET_VLLM"] = "/srv/none"
    assert "names" in ask("doctor")[1]["software"]["vllm"]["unknown"]
    spark.write("/srv/env/bin/python", "")
    spark.variables["MEMBUDGET_VLLM"] = "/srv/env"
    spark.others["/srv/env/bin/python"] = "0.31.0"
    assert ask("doctor")[1]["software"]["vllm"] == "0.31.0"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["VLLM::EngineCore"], "vLLM"),
        (["/opt/bin/vllm", "serve", "x"], "vLLM"),
        (["/usr/bin/python3.12", "/opt/bin/vllm", "serve"], "vLLM"),
        (["python", "-m", "vllm.entrypoints.openai.api_server"], "vLLM"),
        (["python3", "-m", "sglang.launch_server"], "SGLang"),
        (["sglang::scheduler"], "SGLang"),
        (["C:\\x\\llama-server"], "llama.cpp"),
        (["/usr/local/bin/ollama", "serve"], "Ollama"),
        (["trtllm-serve", "x"], "TensorRT-LLM"),
        (["vim", "vllm"], ""),
        (["python", "-m", "pytest", "vllm"], ""),
        (["membudget", "plan", "vllm"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_engines_by_their_command_line(words: list[str], name: str) -> None:
    """The program that runs counts, not words that it is given."""
    assert engine(words) == name


def test_the_page_and_its_words(spark: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """People get the machine in GiB and GB, tiers, traps with fixes and one sentence at the end, in any width."""
    for width in ("60", "100"):
        monkeypatch.setenv("COLUMNS", width)
        code, out, err = run("doctor")
        assert (code, err) == (1, "")
        assert out.startswith("NVIDIA GB10")
        assert "121.69 GiB (130.66 GB)" in out
        assert re.search(r"^  utilization +danger ", out, re.MULTILINE)
        assert "fix: vllm serve" in out
        assert out.splitlines()[-1].startswith(("First: ", "       "))
        assert max(map(len, out.splitlines())) <= int(width)
    assert "allowed are driver, thrashing, engines" in run("doctor", "--ignore", "x")[2]


def test_the_page_shows_a_real_answer(spark: Machine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/doctor.md prints what a Spark with three services on it gets, and names every trap."""
    monkeypatch.setenv("COLUMNS", "90")
    case = SPARK["residents"]
    spark.memory(case["meminfo_kib"], "HugePages_Total: 0\nHugepagesize: 2048 kB\n")
    spark.start(4242, "VLLM::EngineCor", 4 * GIB, "VLLM::EngineCore")
    spark.device = [Held(4242, "VLLM::EngineCor", case["held_mib"] * MIB)]
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].rstrip()
    assert shown == run("doctor")[1].replace(" \u00b7 ", " | ").rstrip()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(doctor.NAMES)


def test_this_machine(ask: Ask) -> None:
    """Here and now: an answer, every trap looked at, every reading a value or a reason."""
    code, document = ask("doctor")
    assert code in (0, 1)
    assert [item["name"] for item in document["traps"]] == list(doctor.NAMES)
    assert all(item["text"] for item in document["traps"])
    for part in ("machine", "software", "memory"):
        assert (
            None
            not in {key: item for key, item in document[part].items() if key not in ("source", "vllm_where")}.values()
        )


def test_it_loads_nothing_heavy() -> None:
    """torch, transformers and vLLM are looked for and not loaded."""
    heavy = ["torch", "transformers", "vllm", "numpy", "yaml", "huggingface_hub"]
    code = (
        "import sys, io; sys.stdout = io.StringIO(); from membudget.cli import main; main(['doctor'])\n"
        f"sys.__stdout__.write(repr([m for m in {heavy!r} if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]"


def test_proven_versions_are_the_documents() -> None:
    """The versions of transformers between which a note is not made are those of docs/versions.md."""
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8").partition("## transformers")[2]
    rows = re.findall(r"^\| (\d+)\.(\d+)\.(\d+) \|", text.partition("###")[0], re.MULTILINE)
    versions = sorted(tuple(map(int, row)) for row in rows)
    assert (versions[0], versions[-1]) == TRANSFORMERS


@pytest.mark.parametrize("reading", [None, "999999999999"])
def test_memory_that_is_not_known_is_a_danger(reading: str | None, spark: Machine, ask: Ask) -> None:
    """Without MemAvailable, or with more of it than there is memory, no share is called safe."""
    kib = {**SPARK["idle"]["meminfo_kib"]}
    del kib["MemAvailable"]
    spark.memory(kib, f"MemAvailable: {reading} kB\n" if reading else "")
    code, document = ask("doctor")
    assert code == 1
    assert document["memory"]["available"]["unknown"].startswith("/proc/meminfo has no MemAvailable")
    found = trap(document, "utilization")
    assert (found["state"], "0.8" in found["text"] + found["fix"]) == ("danger", False)


@pytest.mark.parametrize("words", [(), ("-M", "6291456,4194304"), ("-m", "4")])
def test_earlyooms_default_ends_a_full_engine(words: tuple[str, ...], spark: Machine, ask: Ask) -> None:
    """A tenth of 121.69 GiB is more than is left beside an engine at 0.83; sizes of one's own are left alone."""
    spark.start(700, "earlyoom", 2 * MIB, "/usr/bin/earlyoom", "-r", "3600", *words)
    found = trap(ask("doctor")[1], "guard")
    assert found["state"] == ("clear" if words else "note")
    assert ("12.17 GiB" in found["text"]) == (not words)


class Driven(Source):
    """This machine, with a driver in its kernel or without one."""

    driver = False

    def read(self, path: str) -> str | None:
        """As here, but for the driver's file."""
        return ("NVRM version" if self.driver else None) if path.startswith("/proc/driver") else super().read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("script", "driver", "state", "told"),
    [
        ("sleep 60; echo", False, "danger", "no answer within"),
        ("echo hello", False, "danger", "its answer cannot be read"),
        (r"printf '\377\376GB10, [N/A]\n'", False, "danger", "its answer cannot be read"),
        ("echo no NVML >&2; exit 9", True, "danger", "exit code 9: no NVML"),
        ("echo no NVML >&2; exit 9", False, "note", "exit code 9: no NVML"),
        ("echo No devices were found", False, "clear", "no NVIDIA GPU"),
    ],
)
def test_a_driver_that_does_not_answer(
    script: str, driver: bool, state: str, told: str, tmp_path: Path, put: Callable[[Source], None], ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """nvidia-smi that hangs or talks nonsense is no machine without a GPU, and is waited for once."""
    monkeypatch.setattr("membudget.asking.TIMEOUT", 0.5)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    source = Driven()
    source.driver = driver
    put(source)
    start = time.monotonic()
    code, document = ask("doctor")
    assert time.monotonic() - start < 10
    found = trap(document, "driver")
    assert found["state"] == state
    assert told in found["text"]
    if state == "danger":
        assert code == 1
        assert document["first"].startswith("driver")
        assert set(document["machine"]["memory"]) == {"unknown"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "nvidia-smi gives no answer within 10 s"),
        ("\x01\x1f5 garbage\n", "list of processes cannot be read"),
        ("0\x1f, x, 5\nhello\n", "list of processes cannot be read"),
    ],
)
def test_a_list_of_processes_that_cannot_be_read(answer: str | None, told: str, spark: Machine, ask: Ask) -> None:
    """It is no empty list: who holds the memory is unknown, and no danger seen is no all-clear."""
    query = "nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv,noheader,nounits"
    if answer is None:
        spark.troubles["nvidia-smi"] = "no answer within 10 s"
    else:
        spark.commands[query] = answer
    spark.device = Source.held(spark)
    _, document = ask("doctor", "--ignore", "utilization", "--ignore", "driver")
    found = trap(document, "engines")
    assert found["state"] == "unknown"
    assert told in found["text"]
    assert document["first"].startswith("no danger is seen, and this could not be read: engines")


def test_only_what_is_there_is_to_be_stopped(spark: Machine, ask: Ask) -> None:
    """A driver's pid 1, and one that nobody sees here, are not killed: another container's or user's is said."""
    spark.device = [Held(1, "systemd", 20 * GIB), Held(99_999_999, "ghost", 30 * GIB)]
    found = trap(ask("doctor")[1], "engines")
    assert found["state"] == "danger"
    assert "kill" not in found["fix"]
    assert "the driver's pid 1, 99999999 is not seen here" in found["fix"]
    spark.start(4242, "VLLM::EngineCor", 4 * GIB, "VLLM::EngineCore")
    spark.device = [*spark.device, Held(4242, "VLLM::EngineCor", 30 * GIB)]
    assert "stop it (kill 4242, or its service)" in trap(ask("doctor")[1], "engines")["fix"]


@pytest.mark.parametrize("share", ["nan", "-5.00", "999.00"])
def test_a_pressure_that_cannot_be(share: str, spark: Machine, ask: Ask) -> None:
    """A share of the time is between 0 and 100%."""
    spark.write("/proc/pressure/memory", f"some avg10={share} avg60=0.00 avg300=0.00 total=0\n")
    assert trap(ask("doctor")[1], "thrashing")["state"] == "unknown"
