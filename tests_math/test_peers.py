"""The peers' answers are read as they were printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "benchmarks" / "peers"

pytestmark = pytest.mark.math

ACCELERATE = (
    "│ dtype │Largest Layer│Total Size│    Training using Adam    │\n│float16│  1002.0 MB  │ 13.98 GB │   55.92 GB   │"
)
MODELINFO = "  ├─ Weights:    14.96 GB\n  ├─ KV Cache:   8.0 GB (8192 tokens)\n  └─ Overhead:   600.0 MB"
KVFIT = '{"cache": {"bytes_per_sequence": 1073741824.0}, "model": {"weight_bytes": 16060526156}}'
PRINTED = {
    "hf-mem": ('{"model_id": "m", "memory": 16060522496, "kv_cache": 8589934592}', (16060522496, 8589934592)),
    "kvfit": (KVFIT, (16060526156, 8589934592)),
    "sparkfit": ('{"budget_gb": {"weights": 16.06, "kv": 8.59}}', (16.06e9, 8.59e9)),
    "vramcalc": ('{"estimate": {"weights": 16060522496, "kv_cache": 8589934592}}', (16060522496, 8589934592)),
    "modelinfo-cli": (MODELINFO, (14.96 * 2**30, 8.0 * 2**30)),
    "accelerate": (ACCELERATE, (13.98 * 2**30, None)),
    "membudget": ('{"weights": 16060522496, "kv_cache": 8589934592}', (16060522496, 8589934592)),
    "ridgepoint": (
        '{"memory": {"weights_bytes": {"best": 1.6061e10}}, "capacity": {"bytes_per_seq": 1073741824}}',
        (1.6061e10, 8589934592),
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer printed for Llama-3.1-8B, 8 x 8,192 tokens, gives its two figures."""
    monkeypatch.syspath_prepend(str(HERE))
    import peers

    text, expected = PRINTED[name]
    assert peers.PEERS[name].parse(text, 8) == pytest.approx(expected)
    sys.modules.pop("peers", None)


def test_results_are_of_these_models() -> None:
    """The stored results hold an answer or a reason for each model and tool."""
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    models = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
    assert set(results["models"]) == set(models)
    assert all(set(row) == set(results["versions"]) for row in results["models"].values())
