"""ggml's graph allocator as arithmetic: the size of the buffer that a graph's temporaries need.

Tensors are allocated in the order of the graph's nodes, at the best fitting free block; a tensor is freed after its
last reader; an operation that may work in place takes over its source's memory.  Inputs are allocated first and
freed like others.  The buffer is as long as its highest end.

Source: llama.cpp v0.4.0 ggml/src/ggml-alloc.c (ggml_gallocr_alloc_graph_impl, ggml_gallocr_allocate_node,
ggml_dyn_tallocr_alloc, ggml_dyn_tallocr_free_bytes), ggml-impl.h (ggml_impl_is_view).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Operations that may take over the memory of a source of the same layout (ggml_op_can_inplace).
IN_PLACE = frozenset(
    (
        "FILL", "SCALE", "DIAG_MASK_ZERO", "DIAG_MASK_INF", "ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "SQR",
        "SQRT", "LOG", "UNARY", "ROPE", "ROPE_BACK", "SILU_BACK", "RMS_NORM", "RMS_NORM_BACK", "CLAMP", "SOFT_MAX",
        "SOFT_MAX_BACK",
    )
)  # fmt: skip
#: Of a CPU buffer and of CUDA's (ggml_backend_buft_get_alignment).
CPU_ALIGNMENT, DEVICE_ALIGNMENT = 32, 128
_ENDLESS = 2**62


class Node(NamedTuple):
    """A tensor of a graph; sources and views are numbers of tensors before it.

    layout: tensors with the same one may share memory in place (type, extents and strides).
    view: the tensor whose memory it looks into, -1 for none.  own: it is allocated with the graph; a weight, or a
    cache, is not.  first: an input, allocated before all others.  kept: an output, never freed.
    """

    op: str
    nbytes: int
    layout: object
    sources: tuple[int, ...] = ()
    view: int = -1
    own: bool = True
    first: bool = False
    kept: bool = False


class _Blocks:
    """Free memory by offset; `top` is the highest end so far."""

    def __init__(self, alignment: int) -> None:
        self.alignment, self.top = alignment, 0
        self.free: list[list[int]] = [[0, _ENDLESS]]

    def padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """The offset of `size` bytes: the smallest block that fits, the last only where no other does."""
        size = self.padded(size)
        best = -1
        for number, (_, length) in enumerate(self.free[:-1]):
            if length >= size and (best < 0 or length <= self.free[best][1]):
                best = number
        block = self.free[best]
        offset = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            del self.free[best]
        self.top = max(self.top, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Return bytes; neighbours become one block."""
        size = self.padded(size)
        for number, block in enumerate(self.free):
            if block[0] + block[1] == offset:
                block[1] += size
                if number + 1 < len(self.free) and block[0] + block[1] == self.free[number + 1][0]:
                    block[1] += self.free.pop(number + 1)[1]
                return
            if offset + size == block[0]:
                block[0], block[1] = offset, block[1] + size
                if number and self.free[number - 1][0] + self.free[number - 1][1] == offset:
                    self.free[number - 1][1] += self.free.pop(number)[1]
                return
        number = next((i for i, block in enumerate(self.free) if block[0] > offset), len(self.free))
        self.free.insert(number, [offset, size])


def buffer_size(
    tensors: Sequence[Node], order: Sequence[int], alignment: int = CPU_ALIGNMENT, inputs: Sequence[int] = ()
) -> int:
    """Bytes of the compute buffer of a graph whose nodes run in this order; `inputs` are its leaves, read or not."""
    return _Run(tensors, order, alignment).size(inputs)


class _Run:
    """One pass over a graph: readers left of each tensor, where each lies."""

    def __init__(self, tensors: Sequence[Node], order: Sequence[int], alignment: int) -> None:
        self.tensors, self.order, self.blocks = tensors, order, _Blocks(alignment)
        self.readers, self.views = [0] * len(tensors), [0] * len(tensors)
        self.offset: dict[int, int] = {}
        self.allocated: set[int] = set()

    def size(self, inputs: Sequence[int]) -> int:
        """The highest end of all tensors."""
        for number in inputs:
            self.place(number)
        for number in self.order:
            node = self.tensors[number]
            if node.view >= 0 and node.op != "NONE":
                self.views[node.view] += 1
            if node.first:
                self.place(number)
            for source in node.sources:
                self.readers[source] += 1
                if self.tensors[source].first:
                    self.place(source)
        for number in self.order:
            for source in self.tensors[number].sources:
                self.place(source)
            self.place(number)
            for source in self.tensors[number].sources:
                self.read(source)
        return self.blocks.top

    def place(self, number: int) -> None:
        """Allocate a tensor, or let it take over a source's memory."""
        node = self.tensors[number]
        if number in self.allocated or not node.own or node.view >= 0:
            return
        self.allocated.add(number)
        if node.op in IN_PLACE:
            for source in node.sources:
                if self.takes_over(number, source):
                    return
        self.offset[number] = self.blocks.take(node.nbytes)

    def takes_over(self, number: int, source: int) -> bool:
        """Whether this node works in its source's memory: nobody else reads it, and it has the same layout."""
        parent = self.tensors[source]
        if source not in self.allocated or parent.kept or parent.layout != self.tensors[number].layout:
            return False
        if self.readers[source] != 1 or self.views[source]:
            return False
        self.allocated.discard(source)
        self.offset[number] = self.offset[source]
        return True

    def read(self, source: int) -> None:
        """One reader less; the last one frees the tensor, and the last view its source."""
        self.readers[source] -= 1
        if self.readers[source] or self.views[source]:
            return
        view = self.tensors[source].view
        if view >= 0:
            self.views[view] -= 1
            if not self.views[view] and not self.readers[view]:
                self.release(view)
        else:
            self.release(source)

    def release(self, number: int) -> None:
        """Free a tensor that was allocated here; outputs stay."""
        if number in self.allocated and not self.tensors[number].kept:
            self.allocated.discard(number)
            self.blocks.give(self.offset[number], self.tensors[number].nbytes)
