"""Budgets, measured: the same tests on a Spark, on any NVIDIA card, and with tiny models on the CPU.

Predictions are made before anything runs.  Where nothing is said otherwise a line must be
within the tolerance of its budget; on the CPU every live tensor is counted, and lines are exact.
"""

from __future__ import annotations

from collections.abc import Callable

from membudget.budgets.budget import Budget
from membudget.measure.comparison import Row

Check = Callable[..., list[Row]]


def test_weights(budget: Budget, check: Check) -> None:
    """Loading takes the weights once: measured less before is what the format says, buffers by name."""
    check("context", "weights")


def test_kv_growth(budget: Budget, check: Check) -> None:
    """Every token of a sequence adds what is predicted, windows and states do not grow, and all of it is given back."""
    check("growth")


def test_static_cache(budget: Budget, check: Check) -> None:
    """A StaticCache takes its whole length at once and nothing after."""
    check("static")


def test_activations(budget: Budget, check: Check) -> None:
    """One prefill's peak is that of the same forward on fake tensors, with the last logit and with every one."""
    rows = {row.name: row for row in check("activations")}
    last, every = rows["prefill_last"], rows["prefill_every"]
    if last.measured is not None and every.measured is not None:
        assert every.measured >= last.measured


def test_sandwich(budget: Budget, check: Check) -> None:
    """A prefill fits with 3% more than it is predicted to need, and is out of memory with 3% less."""
    check("preflight", "sandwich")


def test_total(budget: Budget, check: Check) -> None:
    """All of the budget's users at once take what is predicted, by the allocator, the driver and the system."""
    check("total")


def test_breakages(budget: Budget, check: Check) -> None:
    """Under our own ceiling what must run out of memory does, and what must fit does; an unexpected pass fails."""
    check("preflight", "break")


def test_fragmentation(budget: Budget, check: Check) -> None:
    """Many single-token steps leave what the cache holds, and little reserved beside it."""
    check("fragmentation")


def test_edge(budget: Budget, check: Check) -> None:
    """The most prompts at once under the ceiling are as many as predicted, found by trying."""
    check("preflight", "edge")
