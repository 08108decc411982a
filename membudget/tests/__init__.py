"""Tests that ship with membudget, for budgets of your own: `pytest --pyargs membudget.tests`."""
