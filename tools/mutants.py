"""Change one thing in the code at a time and see whether a test notices: the share of changes that none does.

    python tools/mutants.py model --sample 200 --seed 1 --out survivors.jsonl
    python tools/mutants.py membudget/formats/groups.py --out survivors.jsonl      # every change of one file

Each changed module is loaded in a process of its own, forked from one that has imported the libraries; the tests that
mirror the package run in it until the first fails.  Changed are comparisons, arithmetic, and/or/not, numbers, flags
and the branches of conditional expressions; not texts, messages of errors, annotations or assertions.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: The tests of a part of the package, the quickest killers first; of several that fit the longest name counts.
TESTS = {
    "model": ["tests_math/model"],
    "formats": ["tests_math/formats"],
    "planning": ["tests_math/planning"],
    "engines/llama_cpp": ["tests_math/engines/llama_cpp"],
    "engines/vllm/logs": ["tests_math/engines/vllm/logs"],
    "engines/vllm": [
        "tests_math/engines/vllm/test_pool.py", "tests_math/engines/vllm/test_oracle_golden.py",
        "tests_math/engines/vllm", "--ignore=tests_math/engines/vllm/logs",
    ],
    "engines": ["tests_math/engines/test_activations.py", "tests_math/planning"],
}  # fmt: skip
#: Seconds after which a change counts as noticed: it made something endless.
LONGEST = 120
COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change.

    file: below the root.  line: where.  what: before -> after.  number: the node's place in the walk.  kind: of change.
    """

    file: str
    line: int
    what: str
    number: int
    kind: str


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that is code: no texts, annotations, messages of errors, assertions or decorators."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(
            node, (ast.Raise, ast.Assert, ast.JoinedStr)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
        yield "compare"
    elif (isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node)) or (
        isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC
    ):
        yield "arithmetic"
    elif isinstance(node, ast.BoolOp):
        yield "and-or"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        yield "constant"
    elif isinstance(node, ast.IfExp):
        yield "branches"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def _apply(node: Any, kind: str) -> ast.AST:
    """The changed node; the same object where it is changed in place."""
    if kind == "compare":
        node.ops = [COMPARE[type(node.ops[0])]()]
    elif kind == "arithmetic":
        node.op = ARITHMETIC[type(node.op)]()
    elif kind == "and-or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif kind == "branches":
        node.body, node.orelse = node.orelse, node.body
    elif kind == "not":
        node.op = ast.UAdd()  # never reached by arithmetic: replaced below
    return node  # type: ignore[no-any-return]


class _Replace(ast.NodeTransformer):
    """`not x` becomes `bool(x)`."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.UAdd):
            return ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        return node


def mutants(path: pathlib.Path) -> list[Mutant]:
    """Every change of one file."""
    file, found = str(path.relative_to(ROOT)), []
    for number, node in enumerate(_walk(ast.parse(path.read_text(encoding="utf-8")))):
        for kind in _changes(node):
            changed = _Replace().visit(_apply(copy.deepcopy(node), kind))
            what = f"{ast.unparse(node)[:90]} -> {ast.unparse(changed)[:90]}"
            found.append(Mutant(file, getattr(node, "lineno", 0), what, number, kind))
    return found


def code_of(mutant: Mutant) -> Any:
    """The changed module, compiled."""
    path = ROOT / mutant.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for number, node in enumerate(_walk(tree)):
        if number == mutant.number:
            _apply(node, mutant.kind)
            break
    return compile(ast.fix_missing_locations(_Replace().visit(tree)), str(path), "exec")


def tests_of(file: str) -> list[str]:
    """The tests that mirror a module."""
    below = file.removeprefix("membudget/")
    return TESTS[max((name for name in TESTS if below.startswith(name)), key=len)]


def noticed(mutant: Mutant) -> tuple[bool, float]:
    """(whether a test fails with this change, seconds)."""
    start, child = time.monotonic(), os.fork()
    if not child:
        _run(mutant)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) != 0, time.monotonic() - start
        if time.monotonic() - start > LONGEST:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True, time.monotonic() - start
        time.sleep(0.02)


def _run(mutant: Mutant) -> None:
    """In the child: load the changed module instead of the file, run the tests, leave with their code."""
    import pytest

    code, path, own = code_of(mutant), str(ROOT / mutant.file), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        return code if self.path == path else own(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    quiet = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    options = ["-x", "--assert=plain", "-q", "-n0", "-p", "no:cacheprovider", "-m", "(math or suite) and not slow",
               "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
    os._exit(int(pytest.main([*tests_of(mutant.file), *options])))


def main() -> None:
    """Change, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="a part of the package (model, engines/vllm/pool) or a file")
    parser.add_argument("--sample", type=int, help="only so many changes")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no change after so many")
    parser.add_argument("--out", required=True, help="where survivors are written, one JSON line each")
    args = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    found: list[Mutant] = []
    for what in args.what:
        place = ROOT / what if what.endswith(".py") else ROOT / "membudget" / what
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found += [] if "_child" in path.parts else mutants(path)
    total = len(found)
    if args.sample:
        found = random.Random(args.seed).sample(found, min(args.sample, total))
    part, parts = (int(number) for number in args.part.split("/"))
    import hypothesis  # noqa: F401  (imported once, before the first fork)
    import pytest  # noqa: F401

    for file in {tests_of(mutant.file)[0]: mutant.file for mutant in found}.values():
        if noticed(Mutant(file, 0, "", -1, ""))[0]:
            sys.exit(f"the tests of {file} fail without a change: nothing can be told")
    start, ran, survived = time.monotonic(), 0, 0
    with open(args.out, "a", encoding="utf-8") as out:
        for mutant in found[part - 1 :: parts]:
            if time.monotonic() - start > args.seconds:
                break
            killed, seconds = noticed(mutant)
            ran += 1
            if not killed:
                survived += 1
                print(json.dumps(mutant._asdict() | {"seconds": round(seconds, 1)}), file=out, flush=True)
        figures = {"what": args.what, "changes": total, "ran": ran, "survived": survived}
        print(json.dumps(figures), file=out)
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
