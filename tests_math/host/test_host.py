"""What a host asks of a start, whatever a budget or a machine file says of it: a DGX Spark by its own readings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from membudget.budgets.file import Sources, load
from membudget.host import detect
from membudget.host import shared as host
from membudget.host.detect import DetectError
from membudget.machines import get
from membudget.measure import run as measure
from membudget.measure import serve
from membudget.measure.plan import plan
from membudget.measure.run import Settings, limits, refused
from membudget.units import GIB

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
#: MemTotal of a DGX Spark (fixtures/doctor/spark.json).
TOTAL = 127_600_748 * 1024


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """What was found of one host is not another's."""
    host.shares_memory.cache_clear()
    yield
    host.shares_memory.cache_clear()


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is a DGX Spark."""
    monkeypatch.setattr(detect, "_found", get("dgx-spark"))
    monkeypatch.setattr(host, "total", lambda: TOTAL)
    monkeypatch.setattr(host.Sources, "pressure", lambda self: 0)


def tiny() -> measure.Plan:
    """A budget of a tiny model on the CPU."""
    tables = Sources([str(ROOT / "tests_hw" / "machines.yaml")])
    (file,) = load([ROOT / "tests_hw" / "budgets" / "llama-tiny.cpu.yaml"], tables)
    return plan(file.budgets[0], "cpu")


def test_a_cpu_budget_on_a_spark_leaves_what_a_spark_needs(spark: None) -> None:
    """The CPU's memory is the GPU's too: 20 GiB must stay free, not the one of other hosts."""
    assert limits(tiny()).floor == 20 * GIB
    assert "20.00 GiB reserve" in (refused(tiny(), Settings(available=lambda: 20 * GIB)) or "")
    assert refused(tiny(), Settings(available=lambda: 22 * GIB)) is None


def test_a_cpu_budget_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GiB where no GPU has the host's memory."""
    monkeypatch.setattr(detect, "_found", get("rtx-4090"))
    assert not host.shares_memory()
    assert limits(tiny()).floor == GIB


def test_nothing_starts_while_tasks_wait_for_memory(spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """61% of the last 10 s on a Spark: refused, however much is available; elsewhere it is no reason."""
    monkeypatch.setattr(host.Sources, "pressure", lambda self: 61_250)
    why = refused(tiny(), Settings(available=lambda: 100 * GIB))
    assert why is not None
    assert "61% of the last 10 s" in why
    monkeypatch.setattr(host.Sources, "pressure", lambda self: 9_999)
    assert refused(tiny(), Settings(available=lambda: 100 * GIB)) is None
    monkeypatch.setattr(host, "shares_memory", lambda: False)
    monkeypatch.setattr(host.Sources, "pressure", lambda self: 61_250)
    assert refused(tiny(), Settings(available=lambda: 100 * GIB)) is None


def test_a_driver_that_hangs_may_be_a_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be known is taken for the host that can hang; a system that has no such driver is not."""

    def hangs() -> None:
        raise DetectError("no answer within 10 s", code="driver_trouble", trouble="nvidia-smi fails")

    monkeypatch.setattr(host, "detect", hangs)
    assert host.shares_memory()
    host.shares_memory.cache_clear()

    def silent() -> None:
        raise DetectError("no MemTotal", code="no_memory")

    monkeypatch.setattr(host, "detect", silent)
    assert not host.shares_memory()


def test_a_machine_file_makes_a_spark_no_smaller(spark: None, tmp_path: Path) -> None:
    """vLLM takes its share of the memory that there is: 0.92 of 121.69 GiB, not of the 60 that a file says."""
    table = tmp_path / "mine.yaml"
    table.write_text(
        "small:\n  title: NVIDIA GB10\n  memory: 60 GiB\n  unified: true\n  os_reserve: 4 GiB\n  source: a wish\n",
        encoding="utf-8",
    )
    budget = tmp_path / "b.yaml"
    budget.write_text(
        "model: meta-llama/Llama-3.2-1B\nformat: bf16\nctx: 8Ki\nusers: 1\nmachine: small\n"
        "engine: {vllm: {gpu_memory_utilization: 0.92}}\n",
        encoding="utf-8",
    )
    (file,) = load([budget], Sources([str(table)]))
    assert not file.problems
    made = serve.serving(file.budgets[0], "vllm")
    assert made.claim == 60 * GIB * 92 // 100
    assert serve.limits(made).peak == int(TOTAL * 0.92)
    # an idle Spark: 113.07 GiB available, 111.95 + 20 needed
    why = serve.refused(made, lambda: 118_566_368 * 1024)
    assert why is not None
    assert "gpu_memory_utilization 0.92 of the 121.69 GiB" in why
