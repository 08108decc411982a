"""Changes of one place of a module: comparisons, arithmetic, and/or/not, numbers, flags, branches of expressions.

Not changed: texts, messages of errors, annotations, assertions.
"""

from __future__ import annotations

import ast
import copy
import pathlib
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
    for child in _children(node):
        yield from _walk(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            yield from (
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            )


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


def functions_of(mutant: Mutant) -> dict[CodeType, CodeType] | None:
    """Each changed function's code -> its new one; nothing where what runs at import changes itself."""
    path = ROOT / mutant.file
    before, after = compile(path.read_text(encoding="utf-8"), str(path), "exec"), code_of(mutant)
    found: dict[CodeType, CodeType] = {}
    return found if _compare(before, after, found, False) else None


def _compare(before: CodeType, after: CodeType, found: dict[CodeType, CodeType], inside: bool) -> bool:
    """Collect functions that differ; false where a module's or a class's own code does."""
    if before == after:
        return True
    inside = inside or bool(before.co_flags & 2)  # CO_NEWLOCALS: a function, not a module or a class
    pairs = zip(_codes(before), _codes(after), strict=True)
    if inside:
        found[before] = after
        return all(_compare(one, other, found, True) for one, other in pairs)
    if before.co_code != after.co_code or _plain(before) != _plain(after):
        return False
    return all(_compare(one, other, found, False) for one, other in pairs)


def _codes(code: CodeType) -> list[CodeType]:
    return [item for item in code.co_consts if isinstance(item, CodeType)]


def _plain(code: CodeType) -> list[str]:
    return [repr(item) for item in code.co_consts if not isinstance(item, CodeType)]


def lines_of(mutant: Mutant) -> range:
    """The lines of the innermost statement or lambda that holds the change."""
    place: Any = None

    def look(node: ast.AST, number: int, around: ast.AST) -> int:
        nonlocal place
        around = node if isinstance(node, (ast.stmt, ast.Lambda)) else around
        if number == mutant.number:
            place = around
        number += 1
        for child in _children(node):
            number = look(child, number, around)
        return number

    tree = ast.parse((ROOT / mutant.file).read_text(encoding="utf-8"))
    look(tree, 0, tree)
    last = {ast.If: "test", ast.While: "test", ast.For: "iter"}.get(type(place))  # its head alone, not its body
    end = getattr(place, last).end_lineno if last else place.end_lineno
    return range(place.lineno, end + 1)
