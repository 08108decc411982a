"""Counting a model's parameters: membudget beside the meta-device build that `accelerate estimate-memory` makes.

    python benchmarks/against_accelerate.py [MODEL]

Both start from the same config.json, in one process, after their imports; the build is what
accelerate's command does once it has the config.  Needs torch, transformers and accelerate.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

from membudget.model import build

MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"
RUNS = 50


def main(name: str) -> None:
    """Print both times and their ratio; both must count the same."""
    text = (MODELS / f"{name.replace('/', '--')}.json").read_text(encoding="utf-8")
    build(json.loads(text), name)
    start = time.perf_counter()
    for _ in range(RUNS):
        ours = build(json.loads(text), name).count.params
    own = (time.perf_counter() - start) / RUNS
    raw = json.loads(text)
    start = time.perf_counter()
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(raw.pop("model_type"), **raw))
    theirs = sum(parameter.numel() for parameter in model.parameters())
    meta = time.perf_counter() - start
    assert ours == theirs, f"{ours:,} here, {theirs:,} there"
    print(f"{name}: {ours:,} parameters; membudget {own * 1e3:.2f} ms, meta build {meta:.2f} s: {meta / own:,.0f}x")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "meta-llama/Llama-3.1-8B")
