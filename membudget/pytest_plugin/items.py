"""Budgets as tests of their own: a YAML file that plain `pytest` collects, and a file that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from membudget.budgets.budget import Budget
    from membudget.budgets.file import BudgetFile
    from membudget.pytest_plugin.budgets import Budgets


class BadFile(pytest.Item):
    """Stands for a budget file that cannot be read, and fails with what is wrong with it."""

    file: BudgetFile

    @classmethod
    def of(cls, item: pytest.Item, file: BudgetFile) -> BadFile:
        """The same name, place and markers as the item it stands for."""
        assert item.parent is not None
        bad = cls.in_place(item.parent, item.name, file)
        bad.own_markers += [mark for mark in item.own_markers if mark.name not in ("parametrize", "usefixtures")]
        bad.keywords.update({mark.name: mark for mark in bad.own_markers})
        return bad

    @classmethod
    def in_place(cls, parent: Any, name: str, file: BudgetFile) -> BadFile:
        """An item of that name below `parent`."""
        bad: BadFile = cls.from_parent(parent, name=name)
        bad.file = file
        return bad

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(self.file.error, pytrace=False)

    def reportinfo(self) -> tuple[str, int, str]:
        """Where the first problem is."""
        return self.file.path, self.file.problems[0].line - 1, self.name


class BudgetItem(pytest.Item):
    """One budget of a YAML file: its arithmetic against what its author expects."""

    budget: Budget
    budgets: Budgets

    def runtest(self) -> None:
        """Fail with the table, the reason and the smallest changes that help."""
        from membudget.planning.check import check
        from membudget.report.failure import failure

        verdict = check(self.budget)
        if not verdict.passed:
            text = failure(verdict, self.budgets.rerun(self), self.budgets.since(self.budget))
            pytest.fail(text, pytrace=False)

    def reportinfo(self) -> tuple[Any, int, str]:
        """The budget's line in its file."""
        return self.path, max(self.budget.line - 1, 0), self.name


class BudgetYaml(pytest.File):
    """A budget file: an item for each of its budgets."""

    budgets: Budgets

    def collect(self) -> Iterator[pytest.Item]:
        """The budgets, or what is wrong with the file."""
        (file,) = self.budgets.read([str(self.path)])
        if file.problems:
            yield BadFile.in_place(self, file.stem, file)
        for budget in file.budgets:
            item: BudgetItem = BudgetItem.from_parent(self, name=budget.id)
            item.budget, item.budgets = budget, self.budgets
            item.add_marker("membudget")
            yield item
