"""Readings: a DGX Spark's real answers, and every way in which a driver says that it does not know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.probe.readings import FIELDS, Reading, Snapshot, Sources, Unknown, number, pair, snap
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
