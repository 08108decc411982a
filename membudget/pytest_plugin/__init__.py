"""Budgets as pytest tests."""
