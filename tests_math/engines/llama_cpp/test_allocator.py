"""ggml's allocator as arithmetic: blocks, in-place work, inputs and outputs."""

from __future__ import annotations

import pytest

from membudget.engines.llama_cpp.allocator import Node, buffer_size

pytestmark = pytest.mark.math


def node(op: str, size: int, *sources: int, layout: object = None, first: bool = False, kept: bool = False) -> Node:
    """A tensor of the graph; tensors without a layout share no memory."""
    return Node(op, size, object() if layout is None else layout, sources, first=first, kept=kept)


def test_a_chain_needs_two_at_once() -> None:
    """A source is freed after its last reader, so a chain of products is two long, and the third takes the first's."""
    nodes = [node("NONE", 64, first=True), node("MUL_MAT", 640, 0), node("MUL_MAT", 640, 1), node("MUL_MAT", 640, 2)]
    assert buffer_size(nodes, [1, 2, 3], 32) == 64 + 640 + 640


def test_in_place_takes_no_memory() -> None:
    """An addition writes over its source where nobody else reads it."""
    same = "f32"
    nodes = [
        node("NONE", 640, layout=same, first=True),
        node("ADD", 640, 0, layout=same),
        node("ADD", 640, 1, layout=same),
    ]
    assert buffer_size(nodes, [1, 2], 32) == 640


def test_a_residual_is_not_written_over() -> None:
    """A source with another reader keeps its memory."""
    same = "f32"
    nodes = [
        node("NONE", 640, layout=same, first=True),
        node("UNARY", 640, 0, layout=same),
        node("ADD", 640, 1, 0, layout=same),
    ]
    assert buffer_size(nodes, [1, 2], 32) == 2 * 640


def test_sizes_are_padded_to_the_alignment() -> None:
    """32 bytes on the host, 128 on a GPU."""
    nodes = [node("NONE", 4, first=True), node("MUL_MAT", 100, 0)]
    assert (buffer_size(nodes, [1], 32), buffer_size(nodes, [1], 128)) == (32 + 128, 128 + 128)


def test_an_output_is_kept() -> None:
    """A kept tensor's block is never used again."""
    nodes = [
        node("NONE", 32, first=True),
        node("MUL_MAT", 320, 0, kept=True),
        node("MUL_MAT", 320, 1),
        node("MUL_MAT", 320, 2),
    ]
    assert buffer_size(nodes, [1, 2, 3], 32) == 32 + 3 * 320
