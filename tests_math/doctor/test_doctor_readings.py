"""The doctor's readings that cannot be, are missing or hide something: unknown or a danger, never an all-clear."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from membudget.doctor import Source
from membudget.doctor.source import Held
from membudget.host.command import Answer, Failure
from membudget.units import GIB, MIB
from tests_math.doctor.doctor_machine import SPARK, Ask, Machine, trap

pytestmark = pytest.mark.suite


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
        ("echo hello", False, "danger", "answer cannot be read"),
        (r"printf '\377\376GB10, [N/A]\n'", False, "danger", "answer cannot be read"),
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
    monkeypatch.setattr("membudget.host.command.TIMEOUT", 0.5)
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
        (None, "nvidia-smi fails: no answer within 10 s"),
        ("\x01\x1f5 garbage\n", "list of processes cannot be read"),
        ("0\x1f, x, 5\nhello\n", "list of processes cannot be read"),
    ],
)
def test_a_list_of_processes_that_cannot_be_read(answer: str | None, told: str, spark: Machine, ask: Ask) -> None:
    """It is no empty list: who holds the memory is unknown, and no danger seen is no all-clear."""
    query = "nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv,noheader,nounits"
    if answer is None:
        spark.troubles["nvidia-smi"] = Answer(None, Failure.TIMEOUT, "no answer within 10 s")
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
