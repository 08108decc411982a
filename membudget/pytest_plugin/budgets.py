"""The budgets of a pytest run: where they are read from, what is said of each, and how one is run again."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from membudget.errors import MembudgetError
from membudget.pytest_plugin.options import PREFIX, is_named

if TYPE_CHECKING:
    from membudget.budgets.budget import Budget
    from membudget.budgets.file import BudgetFile
    from membudget.history.recorder import Recorder

#: The name under which a report carries a budget's figures, also between xdist's processes.
PROPERTY = "membudget"


def _under(file: BudgetFile, versions: list[str]) -> BudgetFile:
    """A file whose budgets stand once for each version, where their engine has versions and they name none."""
    from membudget.budgets.settings import kind_of

    found: list[Budget] = []
    for budget in file.budgets:
        engine = budget.engine
        if "version" not in kind_of(engine.name).fields.fields or "version" in engine.options:
            found.append(budget)
            continue
        for version in versions:
            told = replace(engine, options={**engine.options, "version": version})
            found.append(replace(budget, id=f"{budget.id}-{engine.name}-{version}", engine=told))
    return replace(file, budgets=tuple(found))


class Budgets:
    """The budgets of a run, read when a test first asks for one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.explicit = is_named(config.pluginmanager)
        self._files: list[BudgetFile] | None = None
        self._figures: dict[str, str] = {}

    def option(self, name: str) -> Any:
        """The value of an option of ours."""
        return self.config.getoption(f"membudget_{name.replace('-', '_')}", None)

    @property
    def records(self) -> bool:
        """Whether this run is written down or held against an earlier one."""
        return any(self.option(name) for name in ("record", "compare", "accept-drift"))

    def lines(self, budget: Budget) -> tuple[str, str] | None:
        """A budget's predicted lines as a user property; None where nothing can be predicted."""
        from membudget.history import lines
        from membudget.history.recorder import prop

        try:
            return prop(budget.id, lines.settings(budget), lines.predicted(budget))
        except MembudgetError:
            return None

    @property
    def runs(self) -> str:
        """Where records of runs lie."""
        from membudget.history.here import runs_folder

        given = self.option("runs")
        return runs_folder(self._at(given) if given else None, str(self.config.rootpath))

    def since(self, budget: Budget) -> str:
        """What changed since a budget last passed on this machine."""
        from membudget.history import here, read_folder
        from membudget.history.select import since_green

        name = here.machine()["name"] if os.path.isdir(self.runs) else ""
        runs = [run for run in read_folder(self.runs).records if run.machine_name == name]
        if not runs:
            return ""
        versions = {**here.own_versions(), **here.packages()}
        return since_green(budget.id, runs, versions, here.commit(str(self.config.rootpath)))

    def recorder(self) -> Recorder | None:
        """What keeps this run; None where it is not asked for."""
        if not self.records:
            return None
        from membudget.history.recorder import Recorder, refusal

        reason = self.option("accept-drift") or ""
        if reason and (why := refusal()):
            raise pytest.UsageError(why)
        write = bool(self.option("record") or reason)
        return Recorder(self.config, folder=self.runs, write=write, ref=self.option("compare") or "", reason=reason)

    @property
    def paths(self) -> list[str]:
        """Where budgets are read from; empty where there are none.  `NoBudgets` for an option that has none."""
        from membudget.budgets.file import NoBudgets, find

        given = self.option("budgets")
        if given:
            return find(self._at(path) for path in given)
        try:
            return find([os.path.join(self.config.rootpath, "budgets")])
        except NoBudgets:
            return []

    @property
    def files(self) -> list[BudgetFile]:
        """Every budget file."""
        if self._files is None:
            self._files = self.read(self.paths)
        return self._files

    def read(self, paths: list[str]) -> list[BudgetFile]:
        """The budget files at `paths`, with the machines and models of the options."""
        from membudget.budgets.file import Sources
        from membudget.planning.load import load_files

        models = self.option("models")
        tables = [self._at(path) for path in self.option("machines") or ()]
        sources = Sources(tables, self._at(models) if models else None)
        files = load_files(paths, sources, str(self.config.invocation_params.dir))
        versions = self.versions
        return [_under(file, versions) for file in files] if versions else files

    @property
    def versions(self) -> list[str]:
        """The versions whose rules the budgets run under; empty for the budgets' own."""
        given = self.option("vllm-version") or ""
        return [text.strip() for text in given.split(",")] if given else []

    def collects(self, path: Path) -> bool:
        """Whether plain `pytest` takes a file for budgets: the project's ini file names it or a folder of it."""
        if path.suffix not in (".yaml", ".yml"):
            return False
        given = [self.config.rootpath / name for name in self.config.getini("membudget_budgets")]
        return any(path == place or place in path.parents for place in given)

    def check_options(self) -> None:
        """`pytest.UsageError` for an option with a path that is not there, or a folder without budgets."""
        for name in ("budgets", "machines", "models"):
            given = self.option(name) or ()
            for path in [given] if isinstance(given, str) else given:
                if not os.path.exists(self._at(path)):
                    raise pytest.UsageError(f"{PREFIX}{name} {path}: no such file or folder")
        if self.option("budgets"):
            from membudget.budgets.file import NoBudgets

            try:
                _ = self.paths
            except NoBudgets as error:
                raise pytest.UsageError(f"{PREFIX}budgets {error}") from None
        from membudget.engines.vllm.versions import rules
        from membudget.host import available

        for version in self.versions:
            try:
                rules(version)
            except MembudgetError as error:
                raise pytest.UsageError(f"{PREFIX}vllm-version: {error}") from None
        if why := available.no_command(self.option("vllm")):
            raise pytest.UsageError(f"{PREFIX}vllm {why}")

    def figures(self, budget: Budget) -> str:
        """A budget's total, headroom and verdict as JSON; empty where nothing can be predicted."""
        if budget.id not in self._figures:
            from membudget.planning.ledger import predict

            try:
                ledger = predict(budget)
                found = {"budget": budget.id, "total": ledger.total, "headroom": ledger.headroom, "fits": ledger.fits}
                found |= {**ledger.sums, "file": budget.file, "line": budget.line}
                found["notes"] = [f"{budget.model.name}: {note}" for note in budget.model.notes]
                self._figures[budget.id] = json.dumps(found)
            except MembudgetError:
                self._figures[budget.id] = ""
        return self._figures[budget.id]

    def rerun(self, item: pytest.Item) -> str:
        """The command that runs this item again and nothing else, from where pytest was started."""
        from membudget.text.sanitize import without_tokens

        words = ["pytest"]
        for name in ("budgets", "machines", "models", "vllm"):
            given = self.option(name) or ()
            for value in [given] if isinstance(given, str) else given:
                # With a space pytest would take the path for one of tests, and its folder for the rootdir.
                words.append(f"{PREFIX}{name}={without_tokens(str(value))}")
        test = item.nodeid.partition("::")[2]
        if item.path.parent == Path(__file__).parents[1] / "tests":
            return shlex.join([*words, "--pyargs", f"membudget.tests.{item.path.stem}::{test}"])
        return shlex.join([*words, f"{os.path.relpath(item.path, self.config.invocation_params.dir)}::{test}"])

    def _at(self, path: str) -> str:
        return os.path.join(self.config.invocation_params.dir, os.path.expanduser(path))
