"""The hardware tests' budgets: the rehearsal's tiny ones and those of the run, each marked by its machine.

A budget is measured once a session, by the first test that asks for it; at the end its
worksheet is printed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, load
from membudget.cli.commands.common import InputError, context
from membudget.data.defaults import MAX_CTX, SPARK_GPU
from membudget.host.detect import DetectError, detect
from membudget.machines import THIS_MACHINE, Machine
from membudget.measure.comparison import Comparison, Row
from membudget.measure.device import device_of
from membudget.measure.plan import plan
from membudget.measure.planned import CannotMeasure, Plan
from membudget.measure.progress import Progress
from membudget.measure.run import Job, Settings, measure, measure_all, outlook
from membudget.report import samples
from membudget.report.failure import subject
from membudget.report.worksheet import failure, lines, markdown
from membudget.text.terminal import Terminal
from tests_math.collecting import ignored

HERE = Path(__file__).parent
#: Seconds that two processes of one pytest run wait for each other on the CPU.
WAIT = 900.0
_DONE = pytest.StashKey[dict[str, Comparison]]()
_DRY = pytest.StashKey[dict[str, str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of another tier than `-m` asks for are not imported."""
    return ignored(collection_path, config)


def rehearsal(name: str = "") -> list[Budget]:
    """The budgets of tiny models for the CPU; those whose id starts with `name`."""
    files = load([HERE / "budgets"], Sources([str(HERE / "machines.yaml")]), str(HERE.parent))
    problems = [file.error for file in files if file.problems]
    assert not problems, "\n".join(problems)
    return [item for file in files for item in file.budgets if item.id.startswith(name)]


@pytest.fixture(scope="session")
def budget(request: pytest.FixtureRequest) -> Budget:
    """One budget of a machine that tests can run on."""
    return request.param  # type: ignore[no-any-return]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every budget with the marker of its machine: cpu, cuda or spark."""
    if "budget" not in metafunc.fixturenames or metafunc.module.__name__.rpartition(".")[2] != "test_budgets":
        return
    from membudget.pytest_plugin.plugin import _BUDGETS

    given = [item for file in metafunc.config.stash[_BUDGETS].files for item in file.budgets]
    params = []
    for item in [*rehearsal(), *given]:
        several = f"this budget names {item.machines} machines: it is served, see tests_hw/test_served.py"
        params += marked(item, several if item.machines > 1 else None)
    metafunc.parametrize("budget", params, indirect=True)


def marked(item: Budget, why_not: str | None = None) -> list[Any]:
    """A budget as a parameter with its machine's marker, skipped where it cannot be measured; none for other machines.

    why_not: a reason beside that of the machine.
    """
    marker = _marker(item.machine)
    if marker is None:
        return []
    reason = why_not or (_other_machine(item.machine) if marker == "cuda" else None)
    skips = [pytest.mark.skip(reason=reason)] if reason else []
    return [pytest.param(item, id=item.id, marks=[getattr(pytest.mark, marker), *skips])]


@pytest.fixture
def check(request: pytest.FixtureRequest, budget: Budget) -> Callable[..., list[Row]]:
    """Measure a budget, once a session, and fail where lines of these groups do not hold."""
    record = request.getfixturevalue("membudget_measured")

    def ask(*groups: str) -> list[Row]:
        comparison = _measured(request, budget)
        rows = comparison.of(*groups)
        record(rows)
        broken = any(row.holds is False for row in rows)
        refused = comparison.status == "refused"
        # what failed before the refusal has failed
        if refused and not broken and _lost(rows):
            pytest.skip(comparison.why)
        if broken or (comparison.status != "done" and not refused and _lost(rows)):
            where = f"{budget.file}:{budget.line}"
            rerun = request.getfixturevalue("membudget_rerun")
            about = _subject(budget)
            pytest.fail(failure(comparison, rows, about, where, rerun), pytrace=False)
        return rows

    return ask


def _measured(request: pytest.FixtureRequest, budget: Budget) -> Comparison:
    config = request.config
    done = config.stash.setdefault(_DONE, {})
    if budget.id not in done:
        dry = config.getoption("membudget_dry_run", False)
        try:
            made = plan(budget, device_of(budget.machine), chunk_of(config))
        except CannotMeasure as error:
            if dry:
                say_dry(config, budget.id, f"{budget.id}: not measured: {error}")
            pytest.skip(str(error))
        if dry:
            say_dry(config, budget.id, made.text() + f"\n  now: {outlook(made)[1]}")
            pytest.skip("--dry-run: nothing is loaded; see the end of the report")
        settings = _settings(config, made.device, budget)
        if made.device == "cpu" and settings.checkpoint is None:
            plans = _rehearsed(request, made)
            done.update((item.budget, item) for item in measure_all([Job(item) for item in plans], settings))
        else:
            done[budget.id] = measure(made, settings)
    return done[budget.id]


def chunk_of(config: pytest.Config) -> int:
    """Tokens of each prompt that the search for the most users prefills at a time; 0: all at once."""
    said = config.getoption("membudget_chunk", None)
    try:
        return 0 if said is None else context("--membudget-chunk", said, MAX_CTX)
    except InputError as error:
        raise pytest.UsageError(str(error)) from None


def say_dry(config: pytest.Config, name: str, text: str) -> None:
    """Keep what a dry run says of a budget for the end of the report."""
    config.stash.setdefault(_DRY, {})[name] = text


def _rehearsed(request: pytest.FixtureRequest, first: Plan) -> list[Plan]:
    """This plan and those of the run's other CPU budgets: together they load torch once."""
    plans = {first.budget.id: first}
    for item in request.session.items:
        other = getattr(item, "callspec", None)
        budget = other.params.get("budget") if other is not None else None
        if not isinstance(budget, Budget) or "check" not in getattr(item, "fixturenames", ()):
            continue
        if budget.id not in plans and device_of(budget.machine) == "cpu":
            with contextlib.suppress(CannotMeasure):
                plans[budget.id] = plan(budget, "cpu", chunk_of(request.config))
    return list(plans.values())


def _settings(config: pytest.Config, device: str, budget: Budget) -> Settings:
    models = os.path.expanduser(config.getoption("membudget_models", None) or "")
    found = None
    for name in (budget.model.name, budget.model.name.replace("/", "--"), budget.model.name.rpartition("/")[2]):
        place = os.path.join(models, name) if models else ""
        if place and any(entry.endswith(".safetensors") for entry in _entries(place)):
            found = place
    if device == "cpu":  # counted exactly in its own process: others on this machine do not disturb it
        lock = own_lock()
        return Settings(checkpoint=found, lock=lock, wait=WAIT, report=_progress(config).hear)
    return Settings(checkpoint=found, report=_progress(config).hear)


def own_lock() -> str:
    """A lock of this process alone, gone with it: what is counted exactly in its own process disturbs nobody."""
    path = os.path.join(tempfile.gettempdir(), f"membudget.rehearsal.{os.getuid()}.{os.getpid()}")
    atexit.register(lambda: Path(path).unlink(missing_ok=True))
    return path


def _progress(config: pytest.Config) -> Progress:
    """Where pytest's own report is on a terminal; with captured or piped output nothing is drawn."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or not reporter.isatty():
        return Progress(None)
    return Progress(lambda text: reporter.write(text, flush=True), Terminal.of().unicode)


def _entries(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _lost(rows: list[Row]) -> bool:
    return any(row.measured is None and row.note == "it did not run" for row in rows)


def _subject(budget: Budget) -> str:
    from membudget.planning.ledger import predict

    return subject(predict(budget))


def _marker(machine: Machine) -> str | None:
    """Where a budget of this machine runs; None for machines that tests do not reach (Metal, ROCm elsewhere)."""
    if machine.name == "dgx-spark" or (machine.name == THIS_MACHINE and SPARK_GPU in machine.title):
        return "spark"
    return {"cpu": "cpu", "cuda": "cuda"}.get(machine.platform)


def _other_machine(machine: Machine) -> str | None:
    """Why a budget of some other card is not measured on this one."""
    if machine.name == THIS_MACHINE:
        return None
    try:
        here = detect()
    except DetectError as error:
        return str(error)
    if here.platform != "cuda":
        return None  # the marker's own reason says that there is no GPU
    if abs(here.memory - machine.memory) * 20 <= machine.memory:
        return None
    return f"this budget is for {machine.name}, and this machine is a {here.title}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One worksheet a budget, and what a dry run would load; Markdown beside the records with --record."""
    config = terminalreporter.config
    done, dry = config.stash.get(_DONE, {}), config.stash.get(_DRY, {})
    if dry:
        terminalreporter.section("what would be loaded")
        for text in dry.values():
            terminalreporter.line(text)
    if done and config.get_verbosity() >= 0:
        terminalreporter.section("worksheets")
        for comparison in done.values():
            took = f"{comparison.seconds:.0f} s" + (f", {comparison.status}" if comparison.status != "done" else "")
            terminalreporter.line(f"{comparison.budget} ({took})")
            drawn = samples.lines(comparison.rows, Terminal.of().unicode)
            for text in [*lines(comparison.rows), *drawn]:
                terminalreporter.line("  " + text)
    if done and config.getoption("membudget_record", False):
        from membudget.history import here

        folder = here.runs_folder(config.getoption("membudget_runs", None), str(config.rootpath))
        os.makedirs(folder, exist_ok=True)
        for name in {device.partition(".")[2] or device for device in done}:
            page = [item for key, item in done.items() if (key.partition(".")[2] or key) == name]
            Path(folder, f"{name}.md").write_text(markdown(page, f"Worksheets of {name}"), encoding="utf-8")
