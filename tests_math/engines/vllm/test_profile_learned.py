"""What a log teaches about its machine, and the plan that uses it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from membudget.data import data_path
from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.record import EngineLog
from membudget.engines.vllm.profile import Learned, ProfileError, ProfileSettings, available, learn
from membudget.engines.vllm.profile.learned import of_json
from membudget.formats import Format, get
from membudget.machines import Machine
from membudget.machines import get as machine_named
from membudget.model import Model, build
from membudget.units import GIB

pytestmark = pytest.mark.math

Start = tuple[Model, Format, Machine]

_TAG = "(EngineCore pid=1) INFO 11-01 10:00:00 "
_ARGS = (
    "(APIServer pid=1) INFO 11-01 10:00:00 [utils.py:233] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B', "
    "'max_model_len': 8192, 'gpu_memory_utilization': 0.95}"
)


def _log(version: str, *lines: str) -> EngineLog:
    found = parse(
        [
            f"(APIServer pid=1) INFO 11-01 10:00:00 [api_server.py:1] vLLM API server version {version}\n",
            _ARGS + "\n",
            *(f"{_TAG}[x.py:1] {line}\n" for line in lines),
        ]
    )
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def start() -> Start:
    """Model, format and machine of the logs."""
    model = build(data_path("models") + "/meta-llama--Llama-3.1-8B.json")
    return model, get("bf16"), machine_named("h100-80gb")


def test_the_four_figures_of_0_19(start: Start) -> None:
    """Weights, peak and the rest as printed, steps by the defaults of the machine."""
    line = (
        "Total non KV cache memory: 17.12GiB; torch peak memory increase: 1.88GiB; non-torch forward increase memory: "
        "0.25GiB; weights memory: 14.99GiB."
    )
    entry = learn(_log("0.19.0", line), *start, when="2026-04-01")
    assert (entry.max_num_seqs, entry.max_num_batched_tokens, entry.tp) == (1024, 8192, 1)
    assert [round((value or 0) / GIB, 2) for value in (entry.weights, entry.activation, entry.non_torch)] == [
        14.99,
        1.88,
        0.25,
    ]


def test_since_0_27_what_is_consumed_holds_the_weights(start: Start) -> None:
    """What is consumed less the weights is outside torch."""
    line = (
        "Total non KV cache memory: 17.40GiB; torch peak memory increase: 0.52GiB; total consumed (from mem_get_info): "
        "15.29GiB; weights memory: 14.99GiB."
    )
    entry = learn(_log("0.31.0", line), *start)
    assert [round(value / GIB, 2) for value in (entry.non_torch, entry.activation) if value] == [0.30, 0.52]


def test_measured_replaces_assumed_and_says_so(start: Start) -> None:
    """Activation for the same steps and version only, memory outside torch for every model."""
    settings = ProfileSettings(utilization=0.95, max_model_len=8192)
    before = available(*start, settings, "0.19.0")
    line = (
        "Total non KV cache memory: 17.12GiB; torch peak memory increase: 1.98GiB; non-torch forward increase memory: "
        "0.75GiB; weights memory: 14.99GiB."
    )
    entry = of_json(json.loads(json.dumps(learn(_log("0.19.0", line), *start, when="2026-04-01").as_json())))
    after = available(*start, settings, "0.19.1", Learned((entry,)))
    assert after.part("non_torch").bytes == entry.non_torch
    assert after.part("activation").why.startswith("measured 2026-04-01, vLLM 0.19.0; assumed was ")
    assert after.part("requested") == before.part("requested")
    assert after.bytes < before.bytes
    other = available(*start, settings, "0.22.0", Learned((entry,)))
    assert other.part("activation").why == available(*start, settings, "0.22.0").part("activation").why
    smaller = available(*start, replace(settings, max_num_seqs=64), "0.19.0", Learned((entry,)))
    assert smaller.part("non_torch").bytes == entry.non_torch
    assert "measured" not in smaller.part("activation").why


def test_a_log_without_figures_teaches_nothing(start: Start) -> None:
    """It is refused, with what is missing."""
    with pytest.raises(ProfileError, match="neither weights"):
        learn(_log("0.19.0"), *start)


@pytest.mark.parametrize("document", [{"model_type": 1}, {"unknown": 1}, {"weights": "1"}, {"form": "bf16"}, {}])
def test_a_document_that_is_no_entry_is_refused(document: dict[str, Any]) -> None:
    """Unknown, missing and wrong fields."""
    with pytest.raises(ProfileError, match="measured profile"):
        of_json(document)
