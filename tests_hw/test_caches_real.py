"""Caches of real tiny models on the CPU, of every causal-LM type: prompts, decode steps, static caches.

A third of the types a run, by the day, each with a config drawn for the day; all of them with
MEMBUDGET_FULL=1 (nightly).
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.transformers.caches import CacheHeld, cache_bytes
from membudget.model import build
from tests_math.model import cache_reference as caches
from tests_math.model import family_reference as ref

pytestmark = pytest.mark.transformers

pytest.importorskip("torch", reason="torch is not installed; `pip install membudget[transformers]`")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
if VERSION < (5, 24):
    pytest.skip(f"transformers {transformers.__version__}: see docs/caches.md", allow_module_level=True)

TODAY = datetime.date.today().toordinal()
FULL = bool(os.environ.get("MEMBUDGET_FULL"))
TYPES = [
    name
    for name in ref.causal_types()
    if name not in ref.UNBUILDABLE and name not in ref.TOWERS and name not in caches.UNMEASURED
]
_STORED = json.loads((Path(__file__).parents[1] / "fixtures" / "cache_census.json").read_text(encoding="utf-8"))
CENSUS, STAMP = _STORED["types"], _STORED["transformers"]
#: Numbers of draws to try until one builds: some of a type's draws are refused by its class.
TRIES = 12


#: Prompts shorter and longer than the windows.
PROMPTS = (5, 37)


def _drawn(model_type: str) -> tuple[dict[str, Any], Any, list[list[caches.Held]]]:
    """(config.json, the real model, what it holds) of the first of today's draws that the class runs."""
    import torch

    torch.set_num_threads(1)
    defaults, under = ref.text_defaults(model_type)
    for attempt in range(TRIES):
        given = caches.overrides(model_type, defaults, TODAY + attempt)
        try:
            real = caches.build_real(model_type, given, under)
            held = [caches.measure(real, prompt) for prompt in PROMPTS]
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RuntimeError, IndexError) as error:
            why = f"{type(error).__name__}: {str(error)[:160]}"
            continue
        return ref.raw(model_type, given, under), real, held
    pytest.fail(f"none of {TRIES} draws runs: {why}")


@pytest.mark.parametrize("model_type", TYPES if FULL else TYPES[TODAY % 3 :: 3])
def test_cache_of_a_real_model(model_type: str) -> None:
    """Tensors and storages after a prompt and after decode steps, and a StaticCache's: equal to the byte."""
    config, real, measured = _drawn(model_type)
    model, source = build(config), caches.source_tokens(real)
    for prompt, held in zip(PROMPTS, measured, strict=True):
        ours = [
            _pair(cache_bytes(model, prompt + step, caches.BATCH, stage=stage, encoder_tokens=source))
            for step, stage in ((0, "prefill"), *((step, "decode") for step in caches.STEPS))
        ]
        assert ours == held
    static = caches.measure_static(real)
    if static is None:
        # a class that has a StaticCache in the census must not lose it silently
        draws = CENSUS[model_type]["draws"] if transformers.__version__ == STAMP else []
        assert not draws or any(item.get("static") is None for item in draws)
    else:
        assert _pair(cache_bytes(model, caches.STATIC_LEN, caches.BATCH, kind="static")) == static


def _pair(held: CacheHeld) -> caches.Held:
    return caches.Held(held.tensors, held.storage)
