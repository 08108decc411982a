"""membudget: the memory a language model needs to serve people, predicted and proven.

>>> import membudget
>>> ledger = membudget.plan("Qwen/Qwen3-8B", "dgx-spark", ctx=32_768, users=8, engine="arithmetic")
>>> ledger.sums["weights"], ledger.sums["kv_cache"]  # bytes
(16381470720, 38654705664)
>>> ledger.fits, ledger.limiting_bucket
(True, None)

`Ledger` has every line with its formula, `verdict` in a sentence, `suggestions` of what would make it fit, and
`as_json()`.
`load_budgets(["budgets"])` reads budget files; `predict(budget)` is the ledger of one.  In a test, ask for the pytest
fixture `budget`.  `snap("loaded")` reads this machine's memory at that moment, for a notebook.
Nothing is imported before its name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"
__all__ = [
    "Budget",
    "ConfigError",
    "Ledger",
    "Line",
    "Machine",
    "MembudgetError",
    "Model",
    "__version__",
    "build",
    "load_budgets",
    "plan",
    "predict",
    "snap",
]

#: Name: (module, its name there).
_PLACES = {
    "Budget": ("budgets.budget", "Budget"),
    "ConfigError": ("model", "ConfigError"),
    "Ledger": ("planning.ledger", "Ledger"),
    "Line": ("planning.ledger", "Line"),
    "Machine": ("machines", "Machine"),
    "MembudgetError": ("errors", "MembudgetError"),
    "Model": ("model", "Model"),
    "build": ("model", "build"),
    "load_budgets": ("planning.load", "load"),
    "plan": ("api", "plan"),
    "predict": ("planning.ledger", "predict"),
    "snap": ("host.sources", "snap"),
}

if TYPE_CHECKING:
    from membudget.api import plan
    from membudget.budgets.budget import Budget
    from membudget.errors import MembudgetError
    from membudget.host.sources import snap
    from membudget.machines import Machine
    from membudget.model import ConfigError, Model, build
    from membudget.planning.ledger import Ledger, Line, predict
    from membudget.planning.load import load as load_budgets
else:

    def __getattr__(name: str) -> object:
        """Import what is asked for, when it is asked for."""
        if name not in _PLACES:
            raise AttributeError(f"module 'membudget' has no attribute {name!r}")
        module, there = _PLACES[name]
        found: object = getattr(import_module(f"membudget.{module}"), there)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """All that is public, imported or not."""
    return sorted({*globals(), *__all__})
