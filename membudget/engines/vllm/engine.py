"""vLLM as an engine."""

from __future__ import annotations

from membudget.engines.arithmetic.engine import Arithmetic


class Vllm(Arithmetic):
    """vLLM."""

    name = "vllm"


ENGINE = Vllm()
