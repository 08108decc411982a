"""Budget files as they are read, and the layouts that an engine refuses noted at their line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from membudget.budgets import file as budget_file
from membudget.budgets.budget import Budget
from membudget.budgets.file import BudgetFile, Sources
from membudget.engines.base import LayoutError
from membudget.planning.capacity import prepared
from membudget.planning.ledger import advised
from membudget.text.yaml_strict import Problem


def load(
    paths: Iterable[str | os.PathLike[str]], sources: Sources | None = None, root: str | None = None
) -> list[BudgetFile]:
    """As `membudget.budgets.file.load`; a budget on several machines whose layout is refused is a problem too."""
    return [checked(file) for file in budget_file.load(paths, sources, root)]


def load_files(files: Sequence[str], sources: Sources | None = None, root: str | None = None) -> list[BudgetFile]:
    """As `membudget.budgets.file.load_files`, with refused layouts as problems."""
    return [checked(file) for file in budget_file.load_files(files, sources, root)]


def checked(file: BudgetFile) -> BudgetFile:
    """The file; where a layout of its budgets is refused, with that problem and without budgets."""
    problems: list[Problem] = []
    for budget in file.budgets:
        if budget.machines > 1:
            try:
                prepared(budget)
            except LayoutError as error:
                field = _field(budget)
                problem = Problem(file.path, budget.where.get(field, budget.line), field, str(advised(budget, error)))
                if problem not in problems:
                    problems.append(problem)
    return replace(file, budgets=(), problems=tuple(problems)) if problems else file


def _field(budget: Budget) -> str:
    """The field that a layout comes from: a parallel size where one is given, else the machine."""
    sizes = [f"engine.{budget.engine.name}.{kind}_parallel_size" for kind in ("tensor", "pipeline")]
    return next((path for path in sizes if path in budget.where), "machine")
