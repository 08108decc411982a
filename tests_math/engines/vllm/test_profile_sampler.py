"""The samplers' peaks are what vLLM's own code allocates: fixtures/logs/available_kv/sampler_bytes.json."""

from __future__ import annotations

import json

import pytest

from membudget.engines.vllm.profile.sampler import peak_v1, rejection
from membudget.engines.vllm.versions import parse
from tests_math.engines.vllm.profile_rows import FOLDER

pytestmark = pytest.mark.math

COUNTED: dict[str, dict[str, dict[str, float]]] = json.loads(
    (FOLDER / "sampler_bytes.json").read_text(encoding="utf-8")
)
#: As tools/sampler_bytes.py ran them; no vocabulary is so small that a buffer or what a sort works in matters.
ROWS, VOCAB = 256, 4096


def test_many_versions_were_counted() -> None:
    """0.8.5 to 0.32.0."""
    assert {"0.8.5", "0.12.0", "0.19.1", "0.32.0"} <= set(COUNTED)
    assert len(COUNTED) >= 20


@pytest.mark.parametrize("version", list(COUNTED))
def test_the_formula_is_what_was_counted(version: str) -> None:
    """Bytes an element at the sort, or at the peak where nothing is sorted, by sampler, dtype and drafter."""
    for text, counted in COUNTED[version].items():
        name, dtype = text.split()[0], text.split()[-1]
        width = 4 if dtype == "float32" else 2
        if "rejection" in text:
            if name == "flashinfer" or counted["peak"] != COUNTED[version][text.replace(" rejection", "")]["peak"]:
                sort, peak = rejection(width, parse(version), few=name == "native" and parse(version) >= (0, 17, 0))
                assert (sort, peak) == (counted["at a sort"], counted["peak"]), text
            continue
        found = peak_v1(ROWS, VOCAB, width, name, parse(version), 1)
        plain = counted["at a sort"] or counted["peak"]
        assert found.why.startswith(f"256 x 4,096 x {plain:.0f} B"), text


def test_a_drafter_raises_the_peak() -> None:
    """From 0.12 on the rejection sampler is V1's peak; before, only where FlashInfer samples without a sort."""
    cases = (((0, 11, 0), "native", False), ((0, 11, 0), "flashinfer", True), ((0, 19, 0), "triton", True))
    for version, name, more in cases:
        plain, drafted = (peak_v1(1024, 151936, 2, name, version, 132, drafts=drafts).bytes for drafts in (False, True))
        assert (drafted > plain) is more
