"""The pytest plugin: `budget` parametrizes any test, markers say what a test needs, a summary says what fits.

It is loaded in every pytest run of an environment that has membudget, so it does and
imports nothing until a test asks for `budget`.  What markers mean (`slow` is skipped, `cuda`
needs a GPU) holds for tests that ask for `budget`, and for all tests of a project whose
conftest.py names this plugin in `pytest_plugins`; nobody else's `slow` is touched.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import BudgetFile
from membudget.history.recorder import Recorder
from membudget.pytest_plugin.options import add_options, is_named, refuse_paths_behind_a_space

MARKERS = {
    "math": "arithmetic on integers, needs nothing but Python",
    "suite": "membudget's own machinery (commands, pages, records, logs, files); needs no torch",
    "transformers": "against transformers on the meta device; needs torch and transformers",
    "cpu": "hardware tests rehearsed with tiny models on the CPU; needs torch and transformers",
    "cuda": "on an NVIDIA GPU; needs torch with CUDA",
    "spark": "on a DGX Spark",
    "slow": "takes minutes; runs only when -m asks for it or the test is named",
}
#: The name under which a report carries a budget's figures, also between xdist's processes.
_PROPERTY = "membudget"
#: Budgets of these run with `-m spark` on a Spark.
_SPARKS = ("dgx-spark", "this-machine")


class Budgets:
    """The budgets of a run, read when a test first asks for one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.explicit = is_named(config.pluginmanager)
        self._files: list[BudgetFile] | None = None
        self._figures: dict[str, str] = {}

    def option(self, name: str) -> Any:
        """The value of an option of ours, None where another plugin has taken its name."""
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
        except ValueError:
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
            from membudget.budgets.file import Sources, load_files

            models = self.option("models")
            tables = [self._at(path) for path in self.option("machines") or ()]
            sources = Sources(tables, self._at(models) if models else None)
            self._files = load_files(self.paths, sources, str(self.config.invocation_params.dir))
        return self._files

    def check_options(self) -> None:
        """`pytest.UsageError` for an option with a path that is not there, or a folder without budgets."""
        for name in ("budgets", "machines", "models"):
            given = self.option(name) or ()
            for path in [given] if isinstance(given, str) else given:
                if not os.path.exists(self._at(path)):
                    raise pytest.UsageError(f"--{name} {path}: no such file or folder")
        if self.option("budgets"):
            from membudget.budgets.file import NoBudgets

            try:
                _ = self.paths
            except NoBudgets as error:
                raise pytest.UsageError(f"--budgets {error}") from None
        from membudget.host import available

        if why := available.no_command(self.option("vllm")):
            raise pytest.UsageError(f"--vllm {why}")

    def figures(self, budget: Budget) -> str:
        """A budget's total, headroom and verdict as JSON; empty where nothing can be predicted."""
        if budget.id not in self._figures:
            from membudget.planning.ledger import predict

            try:
                ledger = predict(budget)
                found = {"budget": budget.id, "total": ledger.total, "headroom": ledger.headroom, "fits": ledger.fits}
                self._figures[budget.id] = json.dumps(found)
            except ValueError:
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
                words.append(f"--{name}={without_tokens(str(value))}")
        test = item.nodeid.partition("::")[2]
        if item.path.parent == Path(__file__).parents[1] / "tests":
            return shlex.join([*words, "--pyargs", f"membudget.tests.{item.path.stem}::{test}"])
        return shlex.join([*words, f"{os.path.relpath(item.path, self.config.invocation_params.dir)}::{test}"])

    def _at(self, path: str) -> str:
        return os.path.join(self.config.invocation_params.dir, os.path.expanduser(path))


_BUDGETS = pytest.StashKey[Budgets]()
#: Why tests are skipped on this machine, and how many: shown where nothing else is.
_SKIPPED = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Our options, where a conftest.py names this plugin."""
    if is_named(pluginmanager):
        add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Our options, where the plugin is merely installed.

    Last of all: a project's own `--models` must win, and pytest refuses the second of two.
    """
    refuse_paths_behind_a_space(args, str(early_config.invocation_params.dir))
    yield
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers; refuse a path that is not there before anything is collected."""
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    budgets = config.stash[_BUDGETS] = Budgets(config)
    budgets.check_options()
    from membudget.report.summary import Summary

    skipped = config.stash[_SKIPPED] = {}
    config.pluginmanager.register(Summary(config, _PROPERTY, skipped), "membudget-summary")
    recorder = budgets.recorder()
    if recorder is not None:
        config.pluginmanager.register(recorder, "membudget-recorder")


@pytest.fixture(scope="session")
def budget(request: pytest.FixtureRequest) -> Budget:
    """One budget: a test that asks for it runs once for every budget, and fails where there is none."""
    if isinstance(request.param, NoBudget):
        pytest.fail(request.param.why, pytrace=False)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def membudget_rerun(request: pytest.FixtureRequest, budget: Budget) -> str:
    """The command that runs this test's budget again, for failure messages."""
    return request.config.stash[_BUDGETS].rerun(request.node)


@pytest.fixture
def membudget_since(request: pytest.FixtureRequest, budget: Budget) -> Callable[[], str]:
    """Call it when a budget fails: what changed since it last passed, by the records; empty where there are none."""
    return lambda: request.config.stash[_BUDGETS].since(budget)


@pytest.fixture
def membudget_measured(request: pytest.FixtureRequest, budget: Budget) -> Callable[[Iterable[Any]], None]:
    """Call it with rows of `membudget.measure.comparison`: they become lines of this budget in the run's record."""

    def keep(rows: Iterable[Any]) -> None:
        if request.config.stash[_BUDGETS].records:
            from membudget.history.lines import settings
            from membudget.history.record import samples_of
            from membudget.history.recorder import prop, rows_to_lines

            kept = list(rows)
            found = prop(budget.id, settings(budget), rows_to_lines(kept), samples_of(kept))
            request.node.user_properties.append(found)

    return keep


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for every budget, and one for every file that cannot be read."""
    if "budget" not in metafunc.fixturenames or not _is_ours(metafunc):
        return
    budgets = metafunc.config.stash[_BUDGETS]
    params: list[Any] = []
    for file in budgets.files:
        if file.problems:
            params.append(pytest.param(file, id=file.stem))
        params += [pytest.param(item, id=item.id) for item in file.budgets]
    if not params:
        why = (
            f"no budgets: no .yaml file in {budgets.config.rootpath}/budgets, so nothing was checked; pass "
            "--budgets=PATH, run pytest from the folder that has them, or write a first one with `membudget init`"
        )
        params.append(pytest.param(NoBudget(why), id="none"))
    metafunc.parametrize("budget", params, indirect=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Before -k and -m: an item for each bad file.  After them: skips, with their reasons."""
    for place, item in enumerate(items):
        param = _param(item)
        if getattr(param, "problems", ()):
            item = items[place] = BadFile.of(item, param)
        name = str(getattr(param, "id", "") or getattr(param, "stem", ""))
        if not name.isascii():  # pytest writes such letters as \u0431 in names; -k takes them as they are
            item.extra_keyword_matches.add(name)
    yield
    seen: set[str] = set()
    skipped = config.stash[_SKIPPED]
    for item in list(items):
        if isinstance(item, BadFile):
            # Every test that asks for a budget would fail with the same text: once is enough.
            if item.file.path in seen:
                items.remove(item)
            seen.add(item.file.path)
        elif config.stash[_BUDGETS].explicit or _param(item) is not None:
            reason = _reason(config, item)
            # what would be loaded can be said on any machine
            told = {"check", "served"}.intersection(getattr(item, "fixturenames", ()))
            dry = config.stash[_BUDGETS].option("dry-run") and told
            if reason and not dry:
                item.add_marker(pytest.mark.skip(reason=reason), append=False)
                skipped[reason] = skipped.get(reason, 0) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Let the report carry the budget's figures, as an ordinary user property."""
    if call.when != "call":
        return
    if isinstance(item, BadFile):
        item.user_properties.append((_PROPERTY, json.dumps({"budget": item.file.stem})))
    elif hasattr(param := _param(item), "kv_cache_dtype"):
        figures = item.config.stash[_BUDGETS].figures(param)
        if figures:
            item.user_properties.append((_PROPERTY, figures))
        if item.config.stash[_BUDGETS].records and (lines := item.config.stash[_BUDGETS].lines(param)):
            item.user_properties.append(lines)


class NoBudget(NamedTuple):
    """Stands for the budgets that are not there: a test without one would prove nothing."""

    why: str


class BadFile(pytest.Item):
    """Stands for a budget file that cannot be read, and fails with what is wrong with it."""

    file: BudgetFile

    @classmethod
    def of(cls, item: pytest.Item, file: BudgetFile) -> BadFile:
        """The same name, place and markers as the item it stands for."""
        assert item.parent is not None
        bad: BadFile = cls.from_parent(item.parent, name=item.name)
        bad.file = file
        bad.own_markers += [mark for mark in item.own_markers if mark.name in MARKERS]
        bad.keywords.update({mark.name: mark for mark in bad.own_markers})
        return bad

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(self.file.error, pytrace=False)

    def reportinfo(self) -> tuple[str, int, str]:
        """Where the first problem is."""
        return self.file.path, self.file.problems[0].line - 1, self.name


def _reason(config: pytest.Config, item: pytest.Item) -> str | None:
    from membudget.host.available import NEEDS, missing

    for marker in NEEDS:
        if item.get_closest_marker(marker):
            reason = missing(marker)
            if reason:
                return reason
    if item.get_closest_marker("slow") and not _asked_for(config, item):
        return "slow: runs with `-m slow`, or when it is named"
    machine = getattr(_param(item), "machine", None)
    if machine is not None and item.get_closest_marker("spark") and machine.name not in _SPARKS:
        return f"this budget is for {machine.name}, and this machine is a DGX Spark"
    return None


def _asked_for(config: pytest.Config, item: pytest.Item) -> bool:
    words = (config.getoption("markexpr", "") or "").replace("(", " ").replace(")", " ").split()
    if "slow" in words:
        return True
    return any("::" in argument and argument.rpartition("::")[2] in item.nodeid for argument in config.args)


def _is_ours(metafunc: pytest.Metafunc) -> bool:
    """Whether `budget` here is this plugin's fixture: not one of the project's own, and not yet parametrized."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if "budget" in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return False
    found = getattr(metafunc, "_arg2fixturedefs", {}).get("budget")
    return not found or getattr(found[-1].func, "__module__", __name__) == __name__


def _param(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("budget") if callspec is not None else None
    return found if type(found).__module__.startswith("membudget.") else None
