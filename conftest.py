"""Loads membudget's pytest plugin, nothing else."""

pytest_plugins = ["membudget.pytest_plugin.plugin"]
