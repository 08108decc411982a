"""The pytest plugin: `budget` parametrizes any test, markers say what a test needs, a summary says what fits.

It is loaded in every pytest run of an environment that has membudget, so it does and
imports nothing until a test asks for `budget`.  What markers mean (`slow` is skipped, `cuda`
needs a GPU) holds for tests that ask for `budget`, and for all tests of a project whose
conftest.py names this plugin in `pytest_plugins`; nobody else's `slow` is touched or registered.
With `membudget_budgets = budgets` in its ini file a project's budgets are tests without a test file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from membudget.pytest_plugin.budgets import PROPERTY, Budgets
from membudget.pytest_plugin.items import BadFile, BudgetItem, BudgetYaml
from membudget.pytest_plugin.options import PREFIX, add_options, is_named, refuse_paths_behind_a_space

if TYPE_CHECKING:
    from membudget.budgets.budget import Budget

#: Registered where a conftest.py names this plugin; their names are anybody's.
MARKERS = {
    "math": "arithmetic on integers, needs nothing but Python",
    "suite": "membudget's own machinery (commands, pages, records, logs, files); needs no torch",
    "transformers": "against transformers on the meta device; needs torch and transformers",
    "cpu": "hardware tests rehearsed with tiny models on the CPU; needs torch and transformers",
    "cuda": "on an NVIDIA GPU; needs torch with CUDA",
    "spark": "on a DGX Spark",
    "slow": "takes minutes; runs only when -m asks for it or the test is named",
}
#: Budgets of these run with `-m spark` on a Spark.
_SPARKS = ("dgx-spark", "this-machine")


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
    budgets = config.stash[_BUDGETS] = Budgets(config)
    config.addinivalue_line("markers", "membudget: a budget that is collected from its YAML file")
    for name, text in MARKERS.items() if budgets.explicit else ():
        config.addinivalue_line("markers", f"{name}: {text}")
    budgets.check_options()
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # testpaths may name tests alone; the ini file's budgets are tests as well
        given = [str(config.rootpath / name) for name in config.getini("membudget_budgets")]
        config.args += [path for path in given if not _below(path, config.args, config.invocation_params.dir)]
    from membudget.pytest_plugin.summary import Summary

    skipped = config.stash[_SKIPPED] = {}
    config.pluginmanager.register(Summary(config, PROPERTY, skipped), "membudget-summary")
    recorder = budgets.recorder()
    if recorder is not None:
        config.pluginmanager.register(recorder, "membudget-recorder")


def _below(path: str, places: list[str], folder: Path) -> bool:
    """Whether a path is one of `places` or in one."""
    found = [folder / place.partition("::")[0] for place in places]
    return any(Path(path) == place or place in Path(path).parents for place in found)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> BudgetYaml | None:
    """The budget files that the project's ini file names."""
    budgets = parent.config.stash[_BUDGETS]
    if not budgets.collects(file_path):
        return None
    found: BudgetYaml = BudgetYaml.from_parent(parent, path=file_path)
    found.budgets = budgets
    return found


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
            f"{PREFIX}budgets=PATH, run pytest from the folder that has them, or write one with `membudget init`"
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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Let the report carry the budget's figures as user properties, and its failure one line for the short summary."""
    if call.when == "call":
        item.user_properties += _properties(item)
    report = yield
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    if report.failed and crash is not None and (isinstance(item, BadFile) or _param(item) is not None):
        # pytest prints all of it in its short summary too where CI is set: the table once is enough
        crash.message = crash.message.strip().partition("\n")[0]
    return report


def _properties(item: pytest.Item) -> list[tuple[str, str]]:
    """What a report says of its budget: one JSON for our own table, and plain figures for whoever reads JUnit XML."""
    if isinstance(item, BadFile):
        place = {"file": item.file.path, "line": item.file.problems[0].line}
        return [(PROPERTY, json.dumps({"budget": item.file.stem, **place}))]
    found = _param(item)
    if not hasattr(found, "kv_cache_dtype"):
        return []
    budgets = item.config.stash[_BUDGETS]
    out: list[tuple[str, str]] = []
    if figures := budgets.figures(found):
        out.append((PROPERTY, figures))
        plain = json.loads(figures)
        out += [
            (f"membudget_{name}", str(plain[name])) for name in plain if name not in ("budget", "file", "line", "notes")
        ]
    if budgets.records and (lines := budgets.lines(found)):
        out.append(lines)
    return out


class NoBudget(NamedTuple):
    """Stands for the budgets that are not there: a test without one would prove nothing."""

    why: str


def _reason(config: pytest.Config, item: pytest.Item) -> str | None:
    from membudget.host.available import NEEDS, missing

    for marker in NEEDS:
        if item.get_closest_marker(marker):
            lack = missing(marker)
            if lack is not None:
                return str(lack)
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
    if isinstance(item, BudgetItem):
        return item.budget
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("budget") if callspec is not None else None
    return found if type(found).__module__.startswith("membudget.") else None
