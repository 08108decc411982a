"""Readings: a DGX Spark's real answers, and every way in which a driver says that it does not know."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.host import sources as readings
from membudget.host.readings import FIELDS, Reading, Snapshot, Unknown, number, pair
from membudget.host.sources import Sources, snap
from membudget.units import GIB

pytestmark = pytest.mark.suite


class Spark(Sources):
    """GB10, driver 580.173.02: MemTotal of nvitop/pull/208; free and available of unslothai/unsloth/pull/10704."""

    def meminfo(self) -> dict[str, int]:
        kib = {"MemTotal": 127_600_748, "MemAvailable": 121_267_814, "MemFree": 43_536_875, "Cached": 77_000_000}
        return {name: size * 1024 for name, size in kib.items()} | {"SwapTotal": 0, "SwapFree": 0}

    def cuda_memory(self) -> tuple[Reading, Reading]:
        return number(43_536_875 * 1024), number(127_600_748 * 1024)

    def device_process(self) -> Reading:
        return number(1_278_197_760)  # vllm-project/vllm/pull/55828

    def unified(self) -> bool | None:
        return True


class SparkWithoutDriverFigures(Spark):
    """The same where NVML answers NOT_SUPPORTED and cudaMemGetInfo fails (ggml-org/llama.cpp/issues/24933)."""

    def cuda_memory(self) -> tuple[Reading, Reading]:
        return number("[N/A]"), number("Not Supported")


def test_spark_counts_page_cache_as_usable() -> None:
    """Usable is MemAvailable (115.65 GiB), not the driver's free (41.52); the difference is reclaimable."""
    reading = snap("idle", Spark())
    assert isinstance(reading.usable, int)
    assert isinstance(reading.reclaimable, int)
    assert round(reading.usable / GIB, 2) == 115.65
    assert round(reading.fields["cuda_free"] / GIB, 2) == 41.52  # type: ignore[operator]
    assert round(reading.reclaimable / GIB, 2) == 74.13
    assert round(reading.fields["mem_total"] / GIB, 2) == 121.69  # type: ignore[operator]


def test_unknown_is_not_zero() -> None:
    """[N/A] and Not Supported stay unknown, with the reason, in the record too."""
    reading = snap("idle", SparkWithoutDriverFigures())
    assert reading.value("cuda_free") is None
    assert reading.as_json()["cuda_total"] == {"unknown": "the driver says Not Supported"}
    assert isinstance(reading.reclaimable, Unknown)
    assert isinstance(reading.usable, int)


@pytest.mark.parametrize(
    "said", ["[N/A]", "N/A", "[Not Supported]", "NOT_SUPPORTED", "", "[Unknown Error]", None, True, "12 parsecs"]
)
def test_what_is_no_number_is_unknown(said: object) -> None:
    """Every way in which drivers say that they do not know."""
    assert isinstance(number(said), Unknown)


def test_numbers_with_units() -> None:
    """nvidia-smi writes mebibytes."""
    assert number("81559 MiB", 2**20) == 85_520_809_984


def test_impossible_pairs_are_unknown() -> None:
    """0 of 0, and 55,372 MiB free of 32,106 (ggml-org/llama.cpp/issues/17536), are no measurements."""
    for free, total in ((0, 0), (55_372 * 2**20, 32_106 * 2**20)):
        assert all(isinstance(item, Unknown) for item in pair(free, total))
    assert pair(0, 5) == (0, 5)


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
def test_free_never_exceeds_total(free: int, total: int) -> None:
    """Whatever a driver reports, a known free is within a known total."""
    left, whole = pair(number(free), number(total))
    if not isinstance(left, Unknown) and not isinstance(whole, Unknown):
        assert 0 <= left <= whole


def test_this_machine_answers_every_field() -> None:
    """Every field of a real look is a number of bytes or an unknown with a reason."""
    reading = snap("here")
    assert isinstance(reading, Snapshot)
    assert set(reading.fields) == set(FIELDS)
    for item in reading.fields.values():
        assert (isinstance(item, Unknown) and item.reason) or (isinstance(item, int) and item >= 0)


def _files(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    """A system that has these files and no other."""
    monkeypatch.setattr(readings, "_read", texts.get)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"/proc/self/cgroup": "0::/user.slice/a\n", "/sys/fs/cgroup/user.slice/a/memory.current": "409000000\n"},
            409_000_000,
        ),
        # in a container: the path is the host's, the group is mounted as the root
        ({"/proc/self/cgroup": "0::/docker/abc\n", "/sys/fs/cgroup/memory.current": "17\n"}, 17),
        (
            {
                "/proc/self/cgroup": "11:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/docker/abc\n",
                "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "4096\n",
            },
            4096,
        ),
        ({"/proc/self/cgroup": "5:memory:/x\n", "/sys/fs/cgroup/memory/memory.usage_in_bytes": "8192\n"}, 8192),
        (
            {"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/memory.current": "max\n"},
            "no /sys/fs/cgroup/a/memory.curr",
        ),
        ({"/proc/self/cgroup": "4:cpu:/a\n"}, "no cgroup of this process counts memory"),
        ({}, "no /proc/self/cgroup"),
    ],
)
def test_cgroups_of_both_kinds(texts: dict[str, str], expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """memory.current of version 2, memory.usage_in_bytes of version 1, in and outside a container; or the reason."""
    _files(monkeypatch, texts)
    found = Sources().cgroup()
    assert expected in found.reason if isinstance(found, Unknown) else found == expected  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0),
        ("some avg10=12.34 avg60=1.00 avg300=0.20 total=9\nfull avg10=1.00\n", 12_340),
        ("some avg10= avg60=\n", "no avg10"),
        ("some avg10=nan\n", "no avg10"),
        ("", "no avg10"),
        (None, "no avg10 in /proc/pressure/memory"),
    ],
)
def test_pressure_or_why_not(text: str | None, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """PSI's ten-second figure; a kernel without PSI, and a file that says nothing, are unknown."""
    _files(monkeypatch, {} if text is None else {"/proc/pressure/memory": text})
    found = Sources().pressure()
    assert expected in found.reason if isinstance(found, Unknown) else found == expected  # type: ignore[operator]


def _torch(**parts: Any) -> Any:
    """A torch that has a CPU and these devices."""
    no = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
    mps = parts.pop("mps", None)
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps is not None))
    return SimpleNamespace(**{"cuda": no, "mps": mps, "backends": backends, **parts})


def test_a_mac_reads_its_own_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metal's allocated, driver-allocated and recommended bytes; CUDA's fields say that there is no CUDA context.

    107.52 GiB: what Metal recommends on a Mac of 128 GB (antirez/ds4/pull/893).
    """
    metal = SimpleNamespace(
        current_allocated_memory=lambda: 3 * GIB,
        driver_allocated_memory=lambda: 4 * GIB,
        recommended_max_memory=lambda: int(107.52 * GIB),
    )
    monkeypatch.setitem(sys.modules, "torch", _torch(mps=metal))
    found = snap("mac", _Mac())
    assert found.unified is True
    names = ("mps_allocated", "mps_driver", "mps_recommended")
    assert [found.value(name) for name in names] == [3 * GIB, 4 * GIB, int(107.52 * GIB)]
    assert found.fields["torch_allocated"] == Unknown("torch has no CUDA context in this process", "no_context")
    assert found.fields["mem_available"] == Unknown("this system has no /proc/meminfo")


class _Mac(Sources):
    """No /proc and no NVIDIA driver."""

    def meminfo(self) -> dict[str, int]:
        return {}


def test_an_old_torch_on_a_mac_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that a version does not have is unknown with its name; the others are read."""
    metal = SimpleNamespace(current_allocated_memory=lambda: 7, driver_allocated_memory=lambda: 8)
    monkeypatch.setitem(sys.modules, "torch", _torch(mps=metal))
    found = Sources().torch()
    assert (found["mps_allocated"], found["mps_driver"]) == (7, 8)
    recommended = found["mps_recommended"]
    assert isinstance(recommended, Unknown)
    assert "recommended_max_memory" in recommended.reason


def test_torchs_cuda_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated, reserved and both peaks of torch; free and total of the driver; integrated: unified."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        memory_allocated=lambda: 1,
        memory_reserved=lambda: 2,
        max_memory_allocated=lambda: 3,
        max_memory_reserved=lambda: 4,
        mem_get_info=lambda: (43_536_875 * 1024, 127_600_748 * 1024),
        get_device_properties=lambda device: SimpleNamespace(is_integrated=1),
        current_device=lambda: 0,
    )
    monkeypatch.setitem(sys.modules, "torch", _torch(cuda=cuda))
    found = snap("gb10")
    names = ("torch_allocated", "torch_reserved", "torch_peak_allocated", "torch_peak_reserved")
    assert [found.value(name) for name in names] == [1, 2, 3, 4]
    assert found.unified is True
    assert round(found.fields["cuda_total"] / GIB, 2) == 121.69  # type: ignore[operator]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((0, 0), "0 bytes in total"),
        ((9, 5), "9 bytes free of 5"),
        (RuntimeError("cudaErrorNotSupported"), "NotSupported"),
    ],
)
def test_a_driver_in_trouble_is_unknown(answer: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 of 0, more free than there is, and a call that fails: unknown with the reason, through torch itself."""

    def ask() -> tuple[int, int]:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, mem_get_info=ask)
    monkeypatch.setitem(sys.modules, "torch", _torch(cuda=cuda))
    found = snap("trouble")
    for name in ("cuda_free", "cuda_total"):
        item = found.fields[name]
        assert isinstance(item, Unknown)
        assert why in item.reason


class NVMLError(Exception):
    """What pynvml's errors are made from."""


class Nvml:
    """pynvml on a Spark: no memory figure, a list of processes, a temperature."""

    NVMLError = NVMLError

    def __init__(self, processes: list[tuple[int, int | None]], temperature: Any = 61) -> None:
        self.processes = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes]
        self.temperature = temperature

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, device: int) -> str:
        return "NVIDIA GB10"

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> Any:
        return self.processes

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> Any:
        if isinstance(self.temperature, Exception):
            raise self.temperature
        return self.temperature


def test_nvml_on_a_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The per-process figure is a number, the device's memory is not supported, the temperature is in degrees."""
    nvml = Nvml([(os.getpid(), 1_278_197_760), (1, None), (2, 2**64 - 1)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(Sources, "integrated", lambda self: True)
    found = snap("spark")
    assert found.value("device_process") == 1_278_197_760
    assert found.value("gpu_temperature") == 61
    assert found.unified is True
    assert found.fields["cuda_free"] == Unknown("the driver says Not Supported", "refused")
    others = Sources().device_processes()
    assert isinstance(others, dict)
    assert isinstance(others[1], Unknown)
    assert isinstance(others[2], Unknown)


def test_nvml_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container hides this process, and the sensor is not supported: both unknown, with the reason."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([], NVMLError("Not Supported")))
    process, temperature = Sources().device_process(), Sources().temperature()
    assert isinstance(process, Unknown)
    assert "a container hides" in process.reason
    assert temperature == Unknown("the driver says Not Supported", "refused")
