"""What was measured, kept: one record a run, what moved between two of them, and since when.

record = make("pytest -m spark", {"llama.dgx-spark": Entry("passed", {"weights": Line(predicted, measured)})})
append(record, runs_folder())
drift = compare(select("last-green", runs), select("last", runs))
"""

from __future__ import annotations

from membudget.history.drift import Drift, Move, compare
from membudget.history.here import make, runs_folder
from membudget.history.record import Entry, Line, Record, RecordError
from membudget.history.select import SelectError, select
from membudget.history.store import Problem, Runs, append, read, read_folder

__all__ = [
    "Drift",
    "Entry",
    "Line",
    "Move",
    "Problem",
    "Record",
    "RecordError",
    "Runs",
    "SelectError",
    "append",
    "compare",
    "make",
    "read",
    "read_folder",
    "runs_folder",
    "select",
]
