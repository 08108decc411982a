"""Every budget of this repository, by the test that ships with the package."""

from __future__ import annotations

from membudget.tests.test_budgets import test_budget

__all__ = ["test_budget"]
