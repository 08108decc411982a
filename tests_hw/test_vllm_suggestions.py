"""What `membudget log` says would start a refused engine, done: a real vLLM then starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.log import parse_file
from membudget.engines.vllm.logs.suggestions import suggestions
from membudget.model import build
from tests_hw.test_vllm_engine import TINY, vllm_python  # noqa: F401  (a fixture)
from tests_hw.vllm_engine import run_forks

pytestmark = pytest.mark.cpu

MIB = 2**20
#: Starts that are refused, by name: the model and its engine's settings.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "too long": ("gemma3", {"max_model_len": 8192, "kv_cache_memory_bytes": 4 * MIB}),
    "too few blocks": (
        "llama",
        {"max_model_len": 2048, "kv_cache_memory_bytes": 1024 * MIB, "num_gpu_blocks_override": 8},
    ),
    "more than there is": ("llama", {"max_model_len": 2048, "gpu_memory_utilization": 1.0}),
}


def case(name: str, model: str, engine: dict[str, Any]) -> dict[str, Any]:
    """One engine start."""
    return {"name": name, "config": TINY[model], "engine": engine, "generate": False}


def changed(engine: dict[str, Any], text: str) -> dict[str, Any]:
    """The settings with a suggestion's flag in place."""
    words = text.removeprefix("leave out ").split()
    key = words[0].lstrip("-").replace("-", "_")
    left = {name: value for name, value in engine.items() if name != key}
    if text.startswith("leave out "):
        return left
    return {**left, key: float(words[1]) if "." in words[1] else int(words[1])}


def test_each_suggestion_starts(vllm_python: str, tmp_path: Path) -> None:  # noqa: F811
    """A length, a pool's bytes, no override: each alone makes vLLM start what it refused."""
    refused = {name: case(name, *given) for name, given in REFUSED.items()}
    started = run_forks(vllm_python, list(refused.values()), tmp_path / "refused")
    tried: list[dict[str, Any]] = []
    shares: list[str] = []
    for name, (model, engine) in REFUSED.items():
        assert "error" in started[name], f"{name}: vLLM starts it"
        (log,) = parse_file(str(tmp_path / "refused" / f"{name}.log"))
        found = [each.text for each in suggestions(log, compare(log, build(TINY[model], model)))]
        assert found, f"{name}: {started[name]['error']}"
        shares += [text for text in found if "utilization" in text]
        # a share of this machine's memory is not taken here: others use it as well
        tried += [
            case(f"{name}, {text}", model, changed(engine, text))
            for text in found
            if "utilization" not in text and not text.startswith("free ")
        ]
    assert len(tried) >= 4, tried
    assert shares, "no share was named for a machine of which not all is free"
    started = run_forks(vllm_python, tried, tmp_path / "cured")
    assert {name: line["error"] for name, line in started.items() if "error" in line} == {}
