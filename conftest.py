"""Loads membudget's pytest plugin; what was measured on this machine is not what the tests plan with."""

import os

pytest_plugins = ["membudget.pytest_plugin.plugin"]

os.environ.setdefault("MEMBUDGET_MEASURED", os.path.join(os.path.dirname(__file__), ".no-measurements"))
