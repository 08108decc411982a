"""Change one thing in the code at a time and see whether a test notices: the share of changes that none does.

    python tools/mutants.py model formats --out results.jsonl --seconds 600     # goes on where results.jsonl ends
    python tools/mutants.py membudget/formats/groups.py --out results.jsonl      # every change of one file
    python tools/mutants.py engines/vllm --sample 200 --seed 1 --out results.jsonl

The tests that mirror a part are collected once.  For each change a process is forked from there, the changed function
gets its new code, and the tests that run its lines follow, of each test function one case first, until one fails.
What runs at import cannot be exchanged so: such a change, and one in a function that import calls and that no test has
noticed, is loaded in a process of its own and sees all of the part's tests (--at-import).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import pickle
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper
from importlib.machinery import SourceFileLoader
from types import FunctionType
from typing import Any, NamedTuple

# tools/coverage.py is not the coverage that is meant
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import coverage  # noqa: E402
import hypothesis  # noqa: E402, F401  (imported once, before the first fork)
import pytest  # noqa: E402

from tools.mutations import ROOT, Mutant, code_of, functions_of, lines_of, mutants  # noqa: E402

#: The tests of a part of the package; of several that fit the longest name counts.
TESTS = {
    "model": ["tests_math/model"],
    "formats": ["tests_math/formats", "tests_math/checkpoint"],
    "planning": ["tests_math/planning"],
    "engines/llama_cpp": ["tests_math/engines/llama_cpp"],
    "engines/vllm/logs": ["tests_math/engines/vllm/logs"],
    "engines/vllm": ["tests_math/engines/vllm", "--ignore=tests_math/engines/vllm/logs"],
    "engines": ["tests_math/engines", "tests_math/planning", "--ignore=tests_math/engines/vllm/logs"],
}
OPTIONS = ["-q", "-s", "--assert=plain", "-n0", "-p", "no:cacheprovider", "-m", "(math or suite) and not slow",
           "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
#: Seconds of a test run after which a change counts as noticed: it made something endless.
ENDLESS = 120


class Run(NamedTuple):
    """What the tests run. lines: file -> line -> tests, None for import.  seconds: of each test."""

    lines: dict[str, dict[int, set[str | None]]]
    seconds: dict[str, float]


def quiet() -> None:
    """No output of this process from here on."""
    null = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(null, 1)
    os.dup2(null, 2)


def forked(work: Callable[[], int], longest: float = 1e9) -> int:
    """The exit code of work in a process of its own; -9 where it took longer."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = work()
        except BaseException as problem:  # told by the exit code
            print(repr(problem), file=sys.stderr)
        finally:
            os._exit(code)
    start = time.monotonic()
    while time.monotonic() - start < longest:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def caches() -> list[Any]:
    """Every functools cache: what one test fills, or collecting, no other finds."""
    return [item for item in gc.get_objects() if isinstance(item, _lru_cache_wrapper)]


class Mapping:
    """Runs every test alone and notes the lines that it runs."""

    def __init__(self, tracer: coverage.Coverage) -> None:
        self.tracer, self.seconds, self.failed = tracer, dict[str, float](), False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Each item with its fixtures of its own."""
        for item in session.items:
            for cache in caches():
                cache.cache_clear()
            self.tracer.switch_context(item.nodeid)
            start = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            self.seconds[item.nodeid] = time.monotonic() - start
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure makes every answer worthless."""
        if report.failed:
            raise SystemExit(f"{report.nodeid} fails without a change: nothing can be told")


def map_of(tests: list[str], place: pathlib.Path) -> Run:
    """What these tests run, from a file of an earlier run where there is one."""

    def work() -> int:
        tracer = coverage.Coverage(data_file=None, include=[str(ROOT / "membudget" / "*")])
        tracer.start()
        plugin = Mapping(tracer)
        code = pytest.main([*tests, *OPTIONS], plugins=[plugin])
        tracer.stop()
        data, lines = tracer.get_data(), {}
        for file in data.measured_files():
            lines[os.path.relpath(file, ROOT)] = {
                line: {context or None for context in contexts}
                for line, contexts in data.contexts_by_lineno(file).items()
            }
        place.write_bytes(pickle.dumps(Run(lines, plugin.seconds)))
        return int(code)

    if not place.exists():
        forked(work)
    if not place.exists():  # a test that fails without a change ends it before
        sys.exit(f"no map of {tests}")
    read: Run = pickle.loads(place.read_bytes())
    return read


def queue(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """The quickest case of each test function, then the next of each."""
    cases: dict[str, list[str]] = {}
    for test in sorted(tests, key=lambda name: seconds.get(name, 0)):
        cases.setdefault(test.partition("[")[0], []).append(test)
    rounds = [(number, seconds.get(case, 0), case) for group in cases.values() for number, case in enumerate(group)]
    return [case for _, _, case in sorted(rounds)]


class Quick:
    """Forks a process for each change from one that has collected the tests."""

    def __init__(self, todo: list[Mutant], known: Run, out: Callable[..., None], until: float) -> None:
        self.todo, self.known, self.out, self.until = todo, known, out, until
        self.caches, self.functions = list[Any](), list[FunctionType]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """All changes, or those that the time allows."""
        items = {item.nodeid: item for item in session.items}
        gc.collect()
        self.caches = caches()
        self.functions = [
            item
            for item in gc.get_objects()
            if isinstance(item, FunctionType) and item.__code__.co_filename.startswith(str(ROOT / "membudget"))
        ]
        gc.freeze()
        for mutant in self.todo:
            if time.monotonic() > self.until:
                break
            lines = self.known.lines.get(mutant.file, {})
            tests = set().union(*(lines.get(line, set()) for line in lines_of(mutant)))
            order = [items[name] for name in queue({t for t in tests if t}, self.known.seconds) if name in items]
            changed, start = functions_of(mutant), time.monotonic()
            if not changed:  # runs at import
                self.out(mutant, "import", 0, 0)
                continue
            code = forked(lambda: self.child(mutant, changed, order), ENDLESS) if order else 0  # noqa: B023
            verdict = "survived" if code == 0 else "import" if code == 98 else "killed"
            if verdict == "survived" and None in tests:
                verdict = "import"
            self.out(mutant, verdict, time.monotonic() - start, len(order))
        return True

    def child(self, mutant: Mutant, changed: Any, order: list[pytest.Item]) -> int:
        """Exchange the code and run the tests; 0 where none fails."""
        quiet()
        found = [function for function in self.functions if function.__code__ in changed]
        for function in found:
            function.__code__ = changed[function.__code__]
        for cache in self.caches:
            cache.cache_clear()
        if not found:
            return 98
        for item, after in zip(order, [*order[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Only in the child: the first failure is enough."""
        if report.failed:
            os._exit(1)


def at_import(mutant: Mutant) -> int:
    """Load the changed module instead of the file and run the part's tests; 0 where none fails."""
    code, path, own = code_of(mutant), str(ROOT / mutant.file), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        return code if self.path == path else own(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    quiet()
    return int(pytest.main([*tests_of(mutant.file), "-x", *OPTIONS]))


def tests_of(file: str) -> list[str]:
    """The tests that mirror a module."""
    below = file.removeprefix("membudget/")
    return TESTS[max((name for name in TESTS if below.startswith(name)), key=len)]


def found_in(what: list[str]) -> Iterator[Mutant]:
    """Every change of these parts and files."""
    for name in what:
        place = ROOT / name if name.endswith(".py") else ROOT / "membudget" / name
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if "_child" not in path.parts:  # runs in vLLM's own Python
                yield from mutants(path)


def main() -> None:
    """Change, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="a part of the package (model, engines/vllm/pool) or a file")
    parser.add_argument("--sample", type=int, help="only so many changes")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no change after so many")
    parser.add_argument("--at-import", action="store_true", help="also what runs at import: seconds to minutes each")
    parser.add_argument("--maps", type=pathlib.Path, help="a folder that keeps what each test runs between calls")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="a JSON line for each change")
    args = parser.parse_args()
    os.chdir(ROOT)
    every = list(found_in(args.what))
    if args.sample:
        every = random.Random(args.seed).sample(every, min(args.sample, len(every)))
    part, parts = (int(number) for number in args.part.split("/"))
    every = every[part - 1 :: parts]
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(row["file"], row["number"], row["kind"]): row["verdict"] for row in rows}
    until = time.monotonic() + args.seconds
    maps = args.maps or pathlib.Path(tempfile.mkdtemp())

    def out(mutant: Mutant, verdict: str, seconds: float, tests: int) -> None:
        done[mutant.file, mutant.number, mutant.kind] = verdict
        with args.out.open("a", encoding="utf-8") as file:
            more = {"verdict": verdict, "seconds": round(seconds, 1), "tests": tests}
            print(json.dumps(mutant._asdict() | more), file=file)

    def verdict_of(mutant: Mutant) -> str | None:
        return done.get((mutant.file, mutant.number, mutant.kind))

    for tests in TESTS.values():
        todo = [m for m in every if tests_of(m.file) == tests and verdict_of(m) is None]
        if todo and time.monotonic() < until:
            known = map_of(tests, maps / ("-".join(tests).replace("/", ".") + ".pickle"))
            quick = Quick(todo, known, out, until)
            forked(lambda: int(pytest.main([*tests, *OPTIONS], plugins=[quick])))  # noqa: B023
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done.update({(row["file"], row["number"], row["kind"]): row["verdict"] for row in rows})
    for mutant in every if args.at_import else []:
        if time.monotonic() < until and verdict_of(mutant) in (None, "import"):
            start = time.monotonic()
            code = forked(lambda: at_import(mutant), 10 * ENDLESS)  # noqa: B023
            out(mutant, "killed" if code else "survived", time.monotonic() - start, -1)
    verdicts = [verdict_of(mutant) for mutant in every]
    figures = {verdict or "not run": verdicts.count(verdict) for verdict in ("killed", "survived", "import", None)}
    print(json.dumps({"what": args.what, "changes": len(every)} | figures))


if __name__ == "__main__":
    main()
