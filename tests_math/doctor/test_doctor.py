"""`membudget doctor`: a Spark's real numbers, laptops, Macs and Windows put in at its edge; and this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from membudget.cli.commands import doctor
from membudget.doctor import Source
from membudget.doctor.settings import TRANSFORMERS
from membudget.doctor.source import Held, engine
from membudget.host.readings import Unknown
from membudget.units import GIB, MIB
from tests_math.doctor.doctor_machine import ROOT, SMI, SPARK, Ask, Machine, Run, trap

pytestmark = pytest.mark.suite


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
    """After a large file was read the driver's free is 41.52 GiB of the 115.65 that can be used.

    vLLM asked the driver up to 0.10; since 0.20, and on a GB10 since 0.11.2, it asks MemAvailable.
    """
    spark.memory(SPARK["page_cache"]["meminfo_kib"])
    now = trap(ask("doctor")[1], "page_cache")
    assert (now["state"], "vLLM 0.32.0 asks MemAvailable" in now["text"]) == ("note", True)
    spark.packages["vllm"] = "0.12.0"
    assert trap(ask("doctor")[1], "page_cache")["state"] == "note"
    spark.packages["vllm"] = "0.10.2"
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
        "nvidia-smi --query-gpu=uuid,name,memory.total,mig.mode.current --format=csv,noheader,nounits": (
            "GPU-1, NVIDIA GeForce RTX 4090, 24564, [N/A]\n"
        ),
        "nvidia-smi --query-gpu=uuid,memory.free --format=csv,noheader,nounits": "GPU-1, 18104\n",
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
        "import sys, io; sys.stdout = io.StringIO(); from membudget.cli.main import main; main(['doctor'])\n"
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
