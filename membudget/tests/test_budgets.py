"""Every budget, as one test: the arithmetic against what its author typed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from membudget.budgets.budget import Budget
from membudget.planning.check import check
from membudget.report.failure import failure


@pytest.mark.math
def test_budget(budget: Budget, membudget_rerun: str, membudget_since: Callable[[], str]) -> None:
    """The budget fits (or must not), and every number in its `expect` and `break` is right."""
    verdict = check(budget)
    if not verdict.passed:
        pytest.fail(failure(verdict, membudget_rerun, membudget_since()), pytrace=False)
