"""The budget identity of vLLM's pool on published start-ups: it closes, or names the line that does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.engines.vllm.profile.identity import (
    TOLERANCE,
    Figures,
    IdentityError,
    free_source,
    identity,
    requested_bytes,
    sampler_warmup,
    startup_check,
)
from membudget.units import GIB, MIB

pytestmark = pytest.mark.math


def of(size: float) -> int:
    """GiB as a log prints them."""
    return round(size * GIB)


#: total, utilization, weights, activation, non-torch, CUDA graphs, available KV; vLLM version.  H100 rows:
#: llm-d-incubation/llm-d-planner docs/empirical-vllm-memory-results.md; the last: vllm-project/vllm issue 50722.
ROWS = [
    ("0.11.0", 79.18, 0.9, 14.99, 4.76, 0.13, None, 51.38),
    ("0.11.0", 79.18, 0.9, 13.47, 7.38, 0.13, 0.39, 50.28),
    ("0.11.0", 79.18, 0.9, 33.88, 4.84, 0.55, None, 32.0),
    ("0.11.0", 79.18, 0.9, 1.12, 5.56, 0.13, 0.10, 64.45),
    ("0.11.0", 79.18, 0.9, 30.59, 5.64, 0.54, None, 34.49),
    ("0.11.0", 79.18, 0.9, 67.72, 4.84, 0.13, None, -1.44),
    ("0.26.0", 79.33, 0.85, 16.92, 5.66, 0.13, 1.32, 43.40),
]


@pytest.mark.parametrize(("version", "total", "util", "weights", "peak", "other", "graphs", "kv"), ROWS)
def test_published_rows_close(
    version: str, total: float, util: float, weights: float, peak: float, other: float, graphs: float | None, kv: float
) -> None:
    """Seven published start-ups close to 0.02 GiB; the graph estimate counts from 0.20 on only."""
    found = identity(
        Figures(
            total=of(total),
            utilization=util,
            weights=of(weights),
            activation=of(peak),
            non_torch=of(other),
            graph_estimate=None if graphs is None else of(graphs),
            available_kv=of(kv),
        ),
        version,
    )
    assert found.closes, found.text
    assert found.suspect is None
    assert found.off is not None
    assert abs(found.off) <= TOLERANCE


def test_an_impossible_row_is_rejected() -> None:
    """gpt-oss-120b listed with 3.33 GiB at 0.9: -0.63 GiB there, exact at 0.95 (the same published table)."""
    found = identity(
        Figures(of(79.18), 0.9, weights=of(64.38), activation=of(7.38), non_torch=of(0.13), available_kv=of(3.33)),
        "0.11.0",
    )
    assert found.closes is False
    assert found.suspect == "utilization"
    assert "impossible at utilization 0.9" in found.text
    assert "exact at 0.95" in found.text


def test_a_wrong_line_is_named() -> None:
    """A graph estimate that was not subtracted, and a requested figure that is not utilization x total."""
    base = Figures(of(80), 0.9, weights=of(20), activation=of(5), non_torch=of(0.5), graph_estimate=of(1.5))
    forgotten = identity(base._replace(available_kv=of(72 - 25.5)), "0.32.0")
    assert forgotten.suspect == "cuda_graphs"
    odd = identity(base._replace(requested=of(60), available_kv=of(72 - 27)), "0.32.0")
    assert odd.suspect == "requested"
    unexplained = identity(base._replace(available_kv=of(33.3)), "0.32.0")
    assert unexplained.suspect == "available_kv"


def test_what_is_missing_is_named() -> None:
    """A log without one of the lines decides nothing."""
    found = identity(Figures(of(80), 0.9, weights=of(20), available_kv=of(40)))
    assert found.closes is None
    assert found.missing == ("non_torch", "activation")
    assert "not decided" in found.text
    assert json.dumps(found.as_json())
    assert found.lines()


def test_forward_and_empty() -> None:
    """Without a printed figure it predicts; nothing left is said so."""
    figures = Figures(of(24), 0.9, weights=of(15), activation=of(1.5), non_torch=of(0.1), graph_estimate=of(0.5))
    found = identity(figures, "0.32.0")
    assert found.predicted == pytest.approx(of(4.5), abs=2)
    less = identity(figures._replace(weights=of(30)), "0.32.0")
    assert less.predicted is not None
    assert less.predicted < 0
    assert "refuses" in less.text


def test_consumed_and_graphs_inside_the_peak() -> None:
    """0.27 and later print weights and non-torch as one figure, and the peak with the graph estimate in it."""
    figures = Figures(
        requested=of(76.8), consumed=of(15.8), activation=of(1.0), graph_estimate=of(0.5), activation_holds_graphs=True,
        available_kv=of(60.0),
    )  # fmt: skip
    assert identity(figures, "0.32.0").closes


def test_start_up_check_in_vllms_words() -> None:
    """0.88 of 22.04 GiB with 15.32 free is refused (L4, 0.30.0); 0.8.5 does not check; free > total is an error."""
    text = startup_check(of(22.04), of(15.32), 0.88, "0.30.0")
    assert text is not None
    assert text.startswith("Free memory on device cuda:0 (15.32/22.04 GiB) on startup is less than desired")
    assert startup_check(of(22.04), of(15.32), 0.88, "0.8.5") is None
    assert startup_check(of(22.04), of(20), 0.88, "0.30.0") is None
    with pytest.raises(IdentityError, match="more is free than there is"):
        startup_check(32_106 * MIB, 55_372 * MIB, 0.9)


@pytest.mark.parametrize(
    ("version", "integrated", "capability", "source"),
    [
        ("0.32.0", True, (12, 1), "available"),
        ("0.32.0", False, (9, 0), "driver"),
        ("0.19.1", True, (12, 1), "available"),
        ("0.10.2", True, (12, 1), "driver"),
        ("0.19.1", True, (9, 0), "driver"),
    ],
)
def test_where_free_memory_comes_from(version: str, integrated: bool, capability: tuple[int, int], source: str) -> None:
    """Unified memory: MemAvailable since 0.20 on every integrated device, since 0.11.2 on three, before the driver."""
    assert free_source(version, integrated, capability) == source


def test_sampler_warm_up_comes_after_the_pool() -> None:
    """256 sequences x 128,256 words x 4 bytes: the 126 MiB that killed a start whose pool fit (TheBuccaneer logs)."""
    assert round(sampler_warmup(256, 128_256) / MIB) == 125


@given(st.integers(1, 2**40), st.integers(1, 100))
def test_requested_is_never_more_than_the_device(total: int, hundredths: int) -> None:
    """utilization x total, rounded up since 0.14, down before, never above the device."""
    new, old = (requested_bytes(total, hundredths / 100, version) for version in ("0.14.0", "0.13.0"))
    assert old <= new <= total
    assert new - old <= 1


@pytest.mark.parametrize("wrong", [0, -0.1, 1.01])
def test_impossible_utilization(wrong: float) -> None:
    """A utilization of 0, below, or above 1 is an error."""
    with pytest.raises(IdentityError, match="more than 0"):
        requested_bytes(GIB, wrong)
