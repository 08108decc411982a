"""The machine table, users' own machines, and the detection of this one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from membudget.host.detect import DetectError, detect, find_machine
from membudget.host.system import System
from membudget.machines import Machine, UnknownMachine, all_machines, get
from membudget.machines.file import FIELDS, MachineFileError, parse
from membudget.units import GIB, MIB

pytestmark = pytest.mark.math

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "membudget" / "data" / "machines.yaml"
EVERY = sorted(all_machines())


def test_every_number_has_its_source() -> None:
    """Each line of the table that holds a number says in a comment where it comes from."""
    numbers = ("memory", "nominal", "os_reserve", "gpu_limit", "cuda_total", "bandwidth")
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.strip().startswith(numbers)]
    assert len(lines) > 3 * len(EVERY)
    assert [line for line in lines if not re.search(r"#.*\w{3}", line)] == []
    assert all(machine.source and machine.title for machine in all_machines().values())


@pytest.mark.parametrize("name", EVERY)
def test_numbers_are_sane(name: str) -> None:
    """Memory is within a tenth of what is sold, what CUDA sees within memory, bandwidth that of real machines."""
    machine = get(name)
    assert machine.name == name
    # "80 GB" read as GiB is never less than the driver reports, and at most an ECC share more.
    # Jetsons keep up to 7.2% for their firmware.
    assert 0.928 * machine.nominal <= machine.memory <= machine.nominal
    assert machine.nominal % GIB == 0
    assert machine.cuda_total is None or 0.97 * machine.memory < machine.cuda_total <= machine.memory
    assert 0 <= machine.os_reserve <= machine.memory // 3 + MIB
    assert 60 * 10**9 <= machine.bandwidth <= 8_000 * 10**9
    boards = name.startswith(("dgx-spark", "jetson-", "strix-halo"))
    assert machine.unified == (machine.platform == "metal" or boards)
    assert bool(machine.os_reserve) == machine.unified
    assert (machine.capacity(), machine.capacity("nominal")) == (machine.memory, machine.nominal)


@pytest.mark.parametrize(
    ("name", "memory", "nominal", "bandwidth"),
    [
        # XuehaiPan/nvitop/pull/208: MemTotal 127600748 kB
        ("dgx-spark", 127_600_748 * 1024, 128, 273),
        # modal-labs/modal-client/pull/2797: nvidia-smi's MiB, and 85520809984 bytes for the H100
        ("h100-80gb", 85_520_809_984, 80, 3350),
        ("a100-80gb", 81_920 * MIB, 80, 2039),
        ("a100-40gb", 40_960 * MIB, 40, 1555),
        ("l40s", 46_068 * MIB, 48, 864),
        ("l4", 23_034 * MIB, 24, 300),
        ("t4", 15_360 * MIB, 16, 320),
        # mayooot/detect-gpu/issues/3: NVML's total in bytes
        ("a10", 24_146_608_128, 24, 600),
        # public logs
        ("h200-141gb", 150_754_820_096, 141, 4800),
        # vllm-project/vllm/issues/7553, noonghunna/club-3090, llama.cpp/pull/23604
        ("rtx-4090", 24_564 * MIB, 24, 1008),
        ("rtx-3090", 24_576 * MIB, 24, 936),
        ("rtx-5090", 32_607 * MIB, 32, 1792),
        ("rtx-pro-6000", 97_887 * MIB, 96, 1792),
        ("b200", 183_359 * MIB, 180, 7672),
        ("gb200", 189_471 * MIB, 186, 8000),
        # ROCm/legacy-rocm-build/issues/4750
        ("mi300x", 206_141_652_992, 192, 5300),
    ],
)
def test_published_figures(name: str, memory: int, nominal: int, bandwidth: int) -> None:
    """Bytes as the driver prints them, GiB as on the box, GB a second as specified."""
    machine = get(name)
    assert (machine.memory, machine.nominal, machine.bandwidth) == (memory, nominal * GIB, bandwidth * 10**9)


def test_spark_is_unified_and_leaves_ten_gib() -> None:
    """The DGX Spark's memory is shared, what CUDA sees is MemTotal, and 10 GiB stay with the system."""
    spark = get("dgx-spark")
    assert (spark.unified, spark.os_reserve, spark.cuda_total) == (True, 10 * GIB, spark.memory)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("apple-m1-8gb", 5461), ("apple-m2-max-32gb", 21_845), ("apple-m1-max-64gb", 49_152),
     ("apple-m2-max-96gb", 73_728), ("apple-m2-ultra-192gb", 147_456), ("apple-m3-max-128gb", 110_100)],
)  # fmt: skip
def test_apple_leaves_what_metal_does_not_recommend(name: str, limit: int) -> None:
    """Memory less the reserve is the recommendedMaxWorkingSetSize that was printed, in whole MiB."""
    machine = get(name)
    assert machine.memory - machine.os_reserve == limit * MIB


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("h100", "h100-80gb"), ("H100", "h100-80gb"), ("NVIDIA H100 80GB HBM3", "h100-80gb"), ("RTX 4090", "rtx-4090"),
     ("rtx_4090", "rtx-4090"), ("GeForce RTX 4090", "rtx-4090"), ("4090", "rtx-4090"), ("spark", "dgx-spark"),
     ("GB10", "dgx-spark"), ("NVIDIA GB10", "dgx-spark"), ("DGX Spark", "dgx-spark"), ("Tesla T4", "t4"),
     ("M3 Max 128GB", "apple-m3-max-128gb"), ("AMD Instinct MI300X", "mi300x"), ("rtx 4080", "rtx-4080"),
     ("NVIDIA GeForce RTX 4060 Laptop GPU", "rtx-4060-laptop"), ("Apple M3 Ultra 512GB", "apple-m3-ultra-512gb"),
     ("NVIDIA Thor", "jetson-agx-thor"), ("Strix Halo", "strix-halo-128gb"), ("NVIDIA RTX A6000", "rtx-a6000")],
)  # fmt: skip
def test_every_spelling_finds_it(spelt: str, name: str) -> None:
    """Case, vendor and separators do not matter."""
    assert get(spelt).name == name


@pytest.mark.parametrize("name", ["rtx 4099", "a100", "", "?", "h100-80gbx"])
def test_unknown_machine_is_a_short_error(name: str) -> None:
    """A name in no table, and one with two readings, is refused: near names alone, and the command that lists all."""
    with pytest.raises(UnknownMachine) as caught:
        get(name)
    message = str(caught.value)
    assert sum(known in message for known in EVERY) <= 6
    assert len(message) < 300
    assert f"`membudget machines` lists all {len(EVERY)}" in message
    assert "MEMBUDGET_MACHINES" in message


def test_two_readings_are_both_named() -> None:
    """An A100 has 40 or 80 GB."""
    with pytest.raises(UnknownMachine, match="Did you mean a100-40gb or a100-80gb"):
        get("a100")


def test_nearest_names_come_first() -> None:
    """What is meant by a typing error is proposed."""
    with pytest.raises(UnknownMachine, match="Did you mean dgx-spark"):
        get("dgx-sprak")


def test_decimal_and_binary_stay_apart() -> None:
    """An "80 GB" card is 80 GiB nominal and 80,000,000,000 bytes as marketed."""
    assert get("h100").nominal == 80 * 2**30
    assert get("h100").marketed == 80 * 10**9
    assert get("h200").marketed == 141 * 10**9


def test_own_files_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's entry replaces a shipped one under all its names, the command line's file the environment's."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("h100-80gb: {memory: 79 GiB}\nmine: {memory: 1 GiB, aliases: [box]}\n", encoding="utf-8")
    second.write_text("mine: {memory: 2 GiB, bandwidth: 1.5 TB/s}\n", encoding="utf-8")
    monkeypatch.setenv("MEMBUDGET_MACHINES", str(first))
    assert get("h100").memory == get("h100-80gb").memory == 79 * GIB
    assert get("box").memory == GIB
    assert get("mine", [second]) == Machine("mine", 2 * GIB, 2 * GIB, False, 1_500_000_000_000)
    assert list(all_machines([second]))[-1] == "mine"
    with pytest.raises(UnknownMachine, match="mine"):
        get("nobody's", [second])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, ["no machines here"]),
        ("- a", 1, ["no machines here"]),
        ("a: 3", 1, ["a: not a machine"]),
        ("a: {title: x}", 1, ["a.memory: missing"]),
        ("a:\n  memory: 24564", 2, ["a.memory", "no unit", "24564 MiB"]),
        ("a:\n  memory: 24.5", 2, ["no unit"]),
        ("a:\n  memory: 24G", 2, ["GiB", "GB"]),
        ("a:\n  memory: 010 GiB\n  unified: on", 3, ["a.unified", "true or false"]),
        ("a:\n  memory: 1e3", 2, ["a.memory"]),
        ("a:\n  memory: 12:30", 2, ["base 60"]),
        ("a:\n  memory: 0 GiB", 2, ["0 bytes"]),
        ("a:\n  memory: -1 GiB", 2, ["a.memory"]),
        ("a:\n  memory:", 2, ["empty"]),
        ("a:\n  memory: [1 GiB]", 2, ["a list"]),
        ("a:\n  memory: 1 GiB\n  memory: 2 GiB", 3, ["twice"]),
        ("a: {memory: 1 GiB}\na: {memory: 2 GiB}", 2, ["twice"]),
        ("a:\n  memory: 1 GiB\n  bandwith: 3 GB/s", 3, ["bandwidth", *FIELDS]),
        ("a:\n  memory: 1 GiB\n  bandwidth: 3 GB", 3, ["not a rate", "273 GB/s"]),
        ("a:\n  memory: 1 GiB\n  bandwidth: 273", 3, ["no unit"]),
        ("a:\n  memory: 1 GiB\n  bandwidth: fast/s", 3, ["a.bandwidth"]),
        ("a:\n  memory: 1 GiB\n  os_reserve: 2 GiB", 3, ["more than the machine has"]),
        ("a:\n  memory: 1 GiB\n  cuda_total: 2 GiB", 3, ["more than the machine has"]),
        ("a:\n  memory: 1 GiB\n  os_reserve: 1 MiB\n  gpu_limit: 1 MiB", 4, ["one of the two"]),
        ("a:\n  memory: 1 GiB\n  platform: tpu", 3, ["cuda, rocm, vulkan, metal, cpu"]),
        ("a:\n  memory: 1 GiB\n  aliases: b", 3, ["not a list"]),
        ("a:\n  memory: 1 GiB\n  aliases: [4090]", 3, ["in quotes"]),
        ("a:\n  memory: 1 GiB\n  aliases: [this machine]", 3, ["cannot be a name"]),
        ("this-machine: {memory: 1 GiB}", 1, ["no name for a machine"]),
        ("My Box: {memory: 1 GiB}", 1, ["no name for a machine"]),
        ("a: {memory: 1 GiB, aliases: [c]}\nb: {memory: 1 GiB, aliases: [C]}", 2, ["also names a"]),
        ("a: {memory: 1 GiB", 1, ["not YAML"]),
        ("a: &x {memory: 1 GiB}", 1, ["anchor"]),
    ],
)  # fmt: skip
def test_wrong_files_say_where(text: str, line: int, words: list[str]) -> None:
    """Whatever is wrong is refused with file:line, the field and what is allowed."""
    with pytest.raises(MachineFileError) as caught:
        parse(text.encode(), "mine.yaml")
    message = str(caught.value)
    assert f"mine.yaml:{line}: " in message
    assert [word for word in words if word not in message] == []


def test_all_problems_at_once() -> None:
    """One reading reports every wrong line."""
    with pytest.raises(MachineFileError) as caught:
        parse(b"a:\n  memory: 1\nb:\n  memory: 1 GiB\n  platform: tpu\n", "mine.yaml")
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == ["mine.yaml:2", "mine.yaml:5"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is an error with its path."""
    with pytest.raises(MachineFileError, match=r"nowhere\.yaml: cannot be read"):
        get("h100", [tmp_path / "nowhere.yaml"])


class Answers(System):
    """A machine that gives prepared answers."""

    def __init__(
        self, platform: str = "linux", *, run: dict[str, str] | None = None, files: dict[str, str] | None = None
    ):
        self.platform = platform
        self._run, self._files = run or {}, files or {}

    def run(self, command: object) -> str | None:
        """The answer to the command that ends so."""
        words = " ".join(command)  # type: ignore[call-overload]
        return next((answer for key, answer in self._run.items() if key in words), None)

    def read(self, path: str) -> str | None:
        """The prepared file."""
        return self._files.get(path)

    def folder(self, path: str) -> list[str]:
        """Names under the prepared files' paths."""
        return sorted({key[len(path) + 1 :].split("/")[0] for key in self._files if key.startswith(path + "/")})


MEMINFO = "MemTotal:       127600748 kB\nMemFree:         1000000 kB\nMemAvailable:   118566368 kB\n"


def test_detects_a_spark() -> None:
    """nvidia-smi prints [N/A] for GB10's memory: it is unified, and MemTotal counts."""
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA GB10, [N/A], [N/A]\n"}, files={"/proc/meminfo": MEMINFO}))
    spark = get("dgx-spark")
    assert replace(found, name=spark.name, title=spark.title, source="", aliases=()) == replace(
        spark, source="", aliases=()
    )


@pytest.mark.parametrize(
    ("name", "capability", "is_spark", "noted"),
    [
        ("NVIDIA GB10", "12.1", True, False),
        ("NVIDIA GB10", "[N/A]", True, False),
        ("NVIDIA GB10", "12.0", True, True),
        ("NVIDIA Graphics Device", "12.1", True, False),
        ("NVIDIA Another Board", "11.0", False, True),
    ],
)
def test_compute_capability_names_a_spark(name: str, capability: str, is_spark: bool, noted: bool) -> None:
    """12.1 is GB10's alone: a driver without its name still has it, another capability under its name is noted."""
    answers = {"name,memory.total": f"GPU-1, {name}, [N/A], [N/A]\n", "compute_cap": f"{capability}\n"}
    found = detect(Answers(run=answers, files={"/proc/meminfo": MEMINFO}))
    assert ("GB10" in found.title, bool(found.notes)) == (is_spark, noted)
    assert (found.bandwidth == 273 * 10**9) == is_spark
    assert found.unified


def test_detects_an_older_spark() -> None:
    """The same box with older software has 119.68 GiB: what Linux says counts, the rest is the table's."""
    older = "MemTotal: 125489508 kB\n"
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA GB10, [N/A], [N/A]\n"}, files={"/proc/meminfo": older}))
    assert (found.memory, found.cuda_total, found.os_reserve) == (125_489_508 * 1024, 125_489_508 * 1024, 10 * GIB)
    assert found.bandwidth == 273 * 10**9


def test_detects_a_known_card() -> None:
    """A card that the table has brings its bandwidth and its number on the box."""
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA GeForce RTX 4090, 24564, [N/A]\n"}))
    assert (found.memory, found.nominal, found.bandwidth) == (24_564 * MIB, 24 * GIB, 1008 * 10**9)
    assert (found.name, found.unified, found.platform) == ("this-machine", False, "cuda")


def test_unknown_card_has_no_bandwidth() -> None:
    """A card in no table keeps its memory; its bandwidth is unknown, and the notes say so."""
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA Imaginary 9000, 49140, [N/A]\n"}))
    assert (found.memory, found.nominal, found.bandwidth, found.cuda_total) == (49_140 * MIB, 49_140 * MIB, 0, None)
    assert any("bandwidth is unknown" in note for note in found.notes)


def test_name_alone_is_not_enough() -> None:
    """A card of the same name and another size is not the table's: nothing is taken from there."""
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA H100 80GB HBM3, 40960, Disabled\n"}))
    assert (found.memory, found.bandwidth) == (40_960 * MIB, 0)


def test_several_cards_count_as_the_smallest() -> None:
    """Of unlike cards the smallest is planned with, and the notes say that there are more."""
    answer = "GPU-1, NVIDIA H100 80GB HBM3, 81559, Disabled\nGPU-2, NVIDIA L4, 23034, [N/A]\n"
    found = detect(Answers(run={"nvidia-smi": answer}))
    assert found.memory == 23_034 * MIB
    assert found.notes[0].startswith("2 GPUs")


def test_mig_slices_are_refused() -> None:
    """With MIG on, nvidia-smi's total is not what a process sees: no guess is made."""
    with pytest.raises(DetectError, match="MIG"):
        detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA A100-SXM4-40GB, 40960, Enabled\n"}))


def test_detects_a_cpu_and_its_container() -> None:
    """Without a GPU, MemTotal counts, or the container's limit where that is less; a tenth is reserved."""
    files = {"/proc/meminfo": "MemTotal: 67108864 kB\n", "/proc/cpuinfo": "model name\t: Some CPU\n"}
    found = detect(Answers(files=files))
    assert (found.platform, found.unified, found.memory, found.bandwidth) == ("cpu", True, 64 * GIB, 0)
    assert (found.os_reserve, found.title, found.cuda_total) == (64 * GIB // 10, "Some CPU", None)
    inside = detect(Answers(files=files | {"/sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}))
    assert (inside.memory, inside.os_reserve) == (4 * GIB, GIB)
    assert detect(Answers(files=files | {"/sys/fs/cgroup/memory.max": "max\n"})).memory == 64 * GIB


def test_container_limits_do_not_bind_cuda() -> None:
    """A cgroup limit does not see CUDA's memory, so a unified GPU keeps MemTotal."""
    files = {"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n"}
    found = detect(Answers(run={"nvidia-smi": "GPU-1, NVIDIA GB10, [N/A], [N/A]\n"}, files=files))
    assert found.memory == 127_600_748 * 1024


def test_detects_an_amd_card() -> None:
    """amdgpu's own file gives the bytes; an APU without a product name is no card."""
    base = "/sys/class/drm/card1/device"
    files = {
        f"{base}/mem_info_vram_total": "206141652992\n",
        f"{base}/product_name": "AMD Instinct MI300X\n",
        "/sys/class/drm/card0/device/mem_info_vram_total": "536870912\n",
        "/sys/class/kfd/kfd": "",
        "/proc/meminfo": MEMINFO,
    }
    found = detect(Answers(files=files))
    assert (found.memory, found.platform, found.bandwidth) == (206_141_652_992, "rocm", 5300 * 10**9)
    del files[f"{base}/product_name"]
    assert detect(Answers(files=files)).platform == "cpu"


#: What a Strix Halo with 128 GB said: GTT 96 GiB by ttm.pages_limit=25165824, 4 GiB of VRAM
#: (github.com/noamsto/nix-amd-ai/issues/42); its PCI device is 1002:1586, gfx1151.
STRIX = {
    "/sys/class/drm/card1/device/mem_info_vram_total": "4294967296\n",
    "/sys/class/drm/card1/device/mem_info_gtt_total": "103079215104\n",
    "/sys/class/drm/card1/device/device": "0x1586\n",
    "/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\ngfx_target_version 0\ndevice_id 0\n",
    "/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 80\ngfx_target_version 110501\ndevice_id 5510\n",
    "/proc/cpuinfo": "model name\t: AMD RYZEN AI MAX+ 395 w/ Radeon 8060S\n",
    "/proc/meminfo": f"MemTotal: {127_936 * 1024} kB\n",
}


def test_detects_a_gpu_that_shares_the_memory() -> None:
    """GTT counts where it is larger than VRAM: HIP said 98304 MiB there."""
    found = detect(Answers(files=STRIX))
    assert (found.platform, found.unified, found.title) == ("rocm", True, "AMD Radeon 8060S")
    assert found.memory - found.os_reserve == 98_304 * MIB
    assert (found.nominal, found.bandwidth) == (128 * GIB, 256 * 10**9)


def test_detects_memory_that_firmware_gave() -> None:
    """96 GiB of VRAM, and Linux has the other 32."""
    files = STRIX | {
        "/sys/class/drm/card1/device/mem_info_vram_total": "103079215104\n",
        "/sys/class/drm/card1/device/mem_info_gtt_total": "16363954176\n",
        "/proc/meminfo": f"MemTotal: {31 * 2**20} kB\n",
    }
    found = detect(Answers(files=files))
    assert (found.memory, found.os_reserve, found.platform) == (103_079_215_104, 0, "rocm")


def test_a_card_beside_a_shared_gpu_is_the_one() -> None:
    """A Radeon without a product name is known by KFD; GTT, which every card has, does not count for it."""
    card = "/sys/class/drm/card0/device"
    files = STRIX | {
        f"{card}/mem_info_vram_total": str(24_560 * MIB), f"{card}/mem_info_gtt_total": str(64 * GIB),
        f"{card}/device": "0x744c\n", f"{card}/product_name": "\n",
        "/sys/class/kfd/kfd/topology/nodes/2/properties": "gfx_target_version 110000\ndevice_id 29772\n",
    }  # fmt: skip
    found = detect(Answers(files=files))
    assert (found.memory, found.unified, found.title) == (24_560 * MIB, False, "AMD GPU gfx1100")


def _mac(chip: str, gib: int, wired: str = "0") -> Machine:
    answers = {"hw.memsize": str(gib * GIB), "brand_string": chip, "wired_limit": wired}
    return detect(Answers("darwin", run=answers))


def test_detects_a_mac() -> None:
    """Apple's limit is the table's, the user's own where iogpu.wired_limit_mb is set, else the least share seen."""
    assert _mac("Apple M3 Max", 128).memory - _mac("Apple M3 Max", 128).os_reserve == 110_100 * MIB
    assert _mac("Apple M3 Max", 128).bandwidth == 400 * 10**9
    assert _mac("Apple M3 Max", 128, wired="114688").os_reserve == 16 * GIB
    unknown = _mac("Apple M9", 24)
    assert (unknown.memory, unknown.os_reserve, unknown.bandwidth, unknown.platform) == (24 * GIB, 8 * GIB, 0, "metal")
    assert any("assumed" in note for note in unknown.notes)
    assert _mac("Intel(R) Core(TM) i9", 32).platform == "cpu"


@pytest.mark.parametrize("system", [Answers(), Answers("darwin"), Answers("win32"),
    Answers(run={"nvidia-smi": "GPU-1, NVIDIA GB10, [N/A], [N/A]\n"})])  # fmt: skip
def test_silence_is_an_error(system: Answers) -> None:
    """Where nothing says how much memory there is, no number is made up."""
    with pytest.raises(DetectError):
        detect(system)


def test_odd_answers_are_no_gpu() -> None:
    """An error text on nvidia-smi's standard output is not read as a card."""
    answers = Answers(run={"nvidia-smi": "No devices were found\n"}, files={"/proc/meminfo": MEMINFO})
    assert detect(answers).platform == "cpu"


def test_commands_that_are_missing_or_fail_answer_nothing(tmp_path: Path) -> None:
    """The real system gives None for a missing command, a failing one and a missing file."""
    system = System()
    assert system.run([str(tmp_path / "nothing")]) is None
    assert system.run(["false"]) is None
    assert system.read(str(tmp_path / "nothing")) is None
    assert system.folder(str(tmp_path / "nothing")) == []


def test_this_machine_is_detected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`this-machine` asks the system once and keeps the answer."""
    monkeypatch.setattr("membudget.host.detect._found", None)
    monkeypatch.setattr("membudget.host.detect.System", lambda: Answers(files={"/proc/meminfo": MEMINFO}))
    assert find_machine("this-machine") is find_machine("This Machine")
