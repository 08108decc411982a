"""A ggml graph being built: tensors by number, in the order in which ggml would run them.

Only what decides about memory is kept: extents, type, sources, and whose memory a view looks into.  Functions are
named as ggml's; extents are in ggml's order, a row's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from membudget.engines.llama_cpp.allocator import Node, buffer_size
from membudget.formats.ggml import TYPES

Extents = tuple[int, int, int, int]


class T(NamedTuple):
    """A tensor of the graph: its number, its four extents, its type, and the tensor that owns its memory."""

    number: int
    ne: Extents
    type: str
    base: int


def extents(*ne: int) -> Extents:
    """Four extents, the missing ones 1."""
    found = (*ne, 1, 1, 1, 1)
    return found[0], found[1], found[2], found[3]


def nbytes(ne: Extents, kind: str) -> int:
    """Bytes of a contiguous tensor."""
    return TYPES[kind].row(ne[0]) * ne[1] * ne[2] * ne[3]


class Tape:
    """Records tensors; `expand` puts a tensor and what it needs into the graph, sources before their readers."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.order: list[int] = []
        self.visited: set[int] = set()
        self.inputs: list[int] = []

    # -- making tensors ---------------------------------------------------------------------------

    def _new(
        self, op: str, ne: Extents, sources: Sequence[T] = (), kind: str = "F32", *, own: bool = True, base: int = -1,
        first: bool = False,
    ) -> T:  # fmt: skip
        number = len(self.nodes)
        size = nbytes(ne, kind) if own and base < 0 else 0
        self.nodes.append(Node(op, size, (kind, ne), tuple(s.number for s in sources), base, own, first))
        return T(number, ne, kind, base if base >= 0 else number)

    def weight(self, *ne: int, kind: str = "F16") -> T:
        """A tensor of the model or of a cache: it lies in a buffer of its own."""
        return self._new("NONE", extents(*ne), kind=kind, own=False)

    def input(self, *ne: int, kind: str = "F32") -> T:
        """A tensor that is set before the graph runs."""
        return self._new("NONE", extents(*ne), kind=kind, first=True)

    def op(self, name: str, *sources: T, ne: Extents | None = None, kind: str | None = None) -> T:
        """A new tensor; of the first source's extents and in fp32 where nothing else is said."""
        return self._new(name, ne or sources[0].ne, sources, kind or "F32")

    def view(self, source: T, *ne: int, name: str = "VIEW") -> T:
        """A look into the source's memory."""
        return self._new(name, extents(*ne), (source,), source.type, base=source.base)

    def reshape(self, source: T, *ne: int) -> T:
        """The same memory in other extents."""
        return self.view(source, *ne, name="RESHAPE")

    def permute(self, source: T, a: int, b: int, c: int, d: int) -> T:
        """The same memory, extent i at place (a, b, c, d)[i]."""
        ne = [0, 0, 0, 0]
        for place, extent in zip((a, b, c, d), source.ne, strict=True):
            ne[place] = extent
        return self.view(source, *ne, name="PERMUTE")

    def transpose(self, source: T) -> T:
        """Rows and columns of a view exchanged."""
        ne = source.ne
        return self.view(source, ne[1], ne[0], ne[2], ne[3], name="TRANSPOSE")

    def cont(self, source: T, *ne: int) -> T:
        """A contiguous copy."""
        return self._new("CONT", extents(*ne) if ne else source.ne, (source,), source.type)

    # -- operations with extents of their own -----------------------------------------------------

    def mul_mat(self, weight: T, x: T) -> T:
        """Rows of `weight` against rows of `x`."""
        return self.op("MUL_MAT", weight, x, ne=(weight.ne[1], x.ne[1], x.ne[2], x.ne[3]))

    def mul_mat_id(self, weight: T, x: T, ids: T) -> T:
        """The same with the experts that `ids` names."""
        return self.op("MUL_MAT_ID", weight, x, ids, ne=(weight.ne[1], ids.ne[0], x.ne[2], 1))

    def get_rows(self, table: T, ids: T) -> T:
        """Rows of a table by their numbers."""
        return self.op("GET_ROWS", table, ids, ne=(table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]))

    def set_rows(self, table: T, rows: T, ids: T) -> T:
        """Rows written into a cache, which the result is a view of."""
        return self._new("SET_ROWS", table.ne, (rows, ids, table), table.type, base=table.base)

    def cpy(self, source: T, target: T) -> T:
        """Copied into another tensor, which the result is a view of."""
        return self._new("CPY", target.ne, (source, target), target.type, base=target.base)

    def glu(self, gate: T, up: T | None = None) -> T:
        """A gated activation; of one tensor that has both halves, or of two."""
        if up is None:
            return self.op("GLU", gate, ne=(gate.ne[0] // 2, gate.ne[1], gate.ne[2], gate.ne[3]))
        return self.op("GLU", gate, up)

    def top_k(self, scores: T, count: int) -> T:
        """The numbers of the largest scores: a view of all of them, sorted."""
        ranked = self.op("ARGSORT", scores, kind="I32")
        return self.view(ranked, count, *scores.ne[1:])

    def concat(self, a: T, b: T, dim: int) -> T:
        """Two tensors behind one another."""
        ne = list(a.ne)
        ne[dim] += b.ne[dim]
        return self.op("CONCAT", a, b, ne=(ne[0], ne[1], ne[2], ne[3]), kind=a.type)

    # -- the graph --------------------------------------------------------------------------------

    def expand(self, tensor: T) -> T:
        """Put it into the graph: sources first, left to right, each once."""
        stack: list[tuple[int, int]] = [(tensor.number, 0)]
        while stack:
            number, at = stack.pop()
            if at == 0:
                if number in self.visited:
                    continue
                self.visited.add(number)
            node = self.nodes[number]
            if at < len(node.sources):
                stack.append((number, at + 1))
                if node.sources[at] not in self.visited:
                    stack.append((node.sources[at], 0))
            elif node.op != "NONE":
                self.order.append(number)
            elif node.first:
                self.inputs.append(number)
        return tensor

    def keep(self, tensor: T) -> T:
        """Mark an output: its memory is not given to others."""
        self.nodes[tensor.number] = self.nodes[tensor.number]._replace(kept=True)
        return tensor

    def size(self, alignment: int) -> int:
        """Bytes of the buffer that this graph's temporaries need."""
        return buffer_size(self.nodes, self.order, alignment, self.inputs)
