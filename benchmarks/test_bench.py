"""How fast the arithmetic is: `pytest benchmarks` (needs pytest-benchmark; asserts no times).

Aims, on one core: 10,000 plans of a parsed model a second; a config read, inventoried and
counted in a few milliseconds; any format weighed in a few more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.settings import settings_of
from membudget.model import Model, build
from membudget.planning.ledger import Ledger, predict

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"
#: Dense, a mixture of experts, sliding windows beside full attention, MLA.
NAMES = ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3")


def raw(name: str) -> dict[str, Any]:
    """The content of a shipped config.json."""
    content = json.loads((MODELS / f"{name.replace('/', '--')}.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def budget(model: Model, users: int = 8) -> Budget:
    """A bf16 budget on a DGX Spark at 32,768 tokens."""
    return Budget(
        "bench", model, formats.get("bf16"), "bf16", 32_768, users, machines.get("dgx-spark"), settings_of("vllm", 8192)
    )


@pytest.mark.parametrize("name", NAMES)
def test_plan_of_a_parsed_model(benchmark: BenchmarkFixture, name: str) -> None:
    """A plan: every line, total, verdict's numbers.  Aim: 10,000 a second."""
    model = build(raw(name), name)
    plans = [budget(model, users) for users in range(1, 101)]

    def hundred() -> Ledger:
        for one in plans:
            ledger = predict(one)
        return ledger

    ledger = benchmark(hundred)
    assert ledger.total == sum(ledger.sums.values())
    benchmark.extra_info["plans_a_second"] = round(100 / benchmark.stats.stats.median) if benchmark.stats else None


@pytest.mark.parametrize("name", NAMES)
def test_plan_with_both_searches(benchmark: BenchmarkFixture, name: str) -> None:
    """The same plan with the most users and the longest context.  Aim: 10,000 a second."""
    one = budget(build(raw(name), name))

    def searched() -> tuple[int, int]:
        ledger = predict(one)
        return ledger.max_users, ledger.max_ctx

    users, ctx = benchmark(searched)
    assert users >= 0
    assert ctx >= 0


@pytest.mark.parametrize("name", NAMES)
def test_read_inventory_count(benchmark: BenchmarkFixture, name: str) -> None:
    """From a parsed JSON to every tensor, every cache and the count."""
    content = raw(name)
    model = benchmark(lambda: build(content, name))
    assert model.count.params > 10**9


@pytest.mark.parametrize("form", ["bf16", "fp8", "awq", "q4_k_m"])
@pytest.mark.parametrize("name", NAMES)
def test_weigh(benchmark: BenchmarkFixture, name: str, form: str) -> None:
    """A format's bytes of every tensor, without what is kept on the model."""
    model, chosen = build(raw(name), name), formats.get(form)

    def weigh() -> int:
        model.memo.clear()
        return chosen.weigh(model).total

    assert benchmark(weigh) > 10**9
