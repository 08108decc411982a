"""`available` against public starts on real GPUs: fixtures/logs/available_kv/rows.jsonl, each with its source."""

from __future__ import annotations

import statistics

import pytest

from membudget.engines.vllm.profile.defaults import steps
from membudget.engines.vllm.versions import rules
from membudget.machines import get as machine_named
from tests_math.engines.vllm.profile_rows import PARTS, Scored, complete, model_of, rows, scored, settings_of

pytestmark = pytest.mark.math


@pytest.fixture(scope="module")
def starts() -> list[Scored]:
    """Starts with different settings, those whose available memory was printed."""
    return [each for each in scored() if not each.duplicate and each.row["printed"]["available"] is not None]


def test_every_row_says_where_it_is_from() -> None:
    """A row without a source is no evidence."""
    assert all(row["source"] and row["id"] for row in rows())


def test_available_within_one_percent(starts: list[Scored]) -> None:
    """95% of the starts are within 1% of the device's memory; half within 0.1 GiB."""
    assert len(starts) >= 55
    outside = [each.row["id"] for each in starts if abs(each.share) > 0.01]
    assert len(outside) <= 0.05 * len(starts), outside
    assert statistics.median(abs(each.off["available"]) for each in starts) < 0.1


@pytest.mark.parametrize(("part", "allowed"), [("activation", 0.1), ("weights", 0.11)])
def test_part_within(starts: list[Scored], part: str, allowed: float) -> None:
    """95% of the printed figures of a part are met within this many GiB."""
    off = {each.row["id"]: each.off[part] for each in starts if part in each.off}
    outside = {name: value for name, value in off.items() if abs(value) > allowed}
    assert len(off) >= 40
    assert len(outside) <= 0.05 * len(off), outside


def test_ranges_hold_what_was_printed(starts: list[Scored]) -> None:
    """The printed figure is inside the range in 95 of 100 starts (by a row's rounding), and the range is narrow."""
    outside = [each.row["id"] for each in starts if not each.inside]
    assert len(outside) <= 0.055 * len(starts), outside
    assert statistics.median(each.width for each in starts) < 0.01


def test_parts_sum_to_what_is_left(starts: list[Scored]) -> None:
    """requested - weights - activation - non_torch - cuda_graphs = available, to the byte, on every rank."""
    for each in starts:
        for rank in each.found.ranks:
            requested, *others = rank.parts
            assert [part.name for part in rank.parts] == [
                "requested", "weights", "activation", "non_torch", "cuda_graphs",
            ]  # fmt: skip
            assert rank.bytes == requested.bytes - sum(part.bytes for part in others)
            assert rank.low <= rank.bytes <= rank.high
            assert all(part.why and part.source for part in rank.parts)


def test_defaults_are_what_the_start_took() -> None:
    """Where a user set nothing, max_num_seqs and max_num_batched_tokens come out as the log has them."""
    checked = 0
    for row in rows():
        if not complete(row) or not all(row["defaults"].get(key) for key in ("max_num_seqs", "max_num_batched_tokens")):
            continue
        machine, settings = machine_named(row["machine"]), settings_of(row, defaults=True)
        taken = steps(model_of(row), machine, settings, rules(row["vllm"]))
        given = row["settings"]
        assert (taken.sequences, taken.tokens) == (given["max_num_seqs"], given["max_num_batched_tokens"]), row["id"]
        checked += 1
    assert checked >= 40


def test_parts_are_named() -> None:
    """The figures that a row may print."""
    assert {part for row in rows() for part in PARTS if part != "graphs"} <= set(rows()[0]["printed"])
