"""The block types of ggml: how many weights and bytes a block has.

Source: ggml src/ggml-common.h (the static_asserts on the block structs) and ggml.h
(the ids).  gguf-py 0.19.0 lacks Q2_0 and says 40 bytes for Q8_1, which C lays out
in 36 and which never lies in a file.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.formats.base import FormatError


class GgmlType(NamedTuple):
    """A ggml type: its id in files, and `nbytes` for every block of `weights` weights."""

    name: str
    id: int
    weights: int
    nbytes: int

    def row(self, columns: int) -> int:
        """Bytes of one row; a row is made of whole blocks."""
        blocks, rest = divmod(columns, self.weights)
        if rest:
            raise FormatError(
                f"{self.name}: a row of {columns:,} weights is not made of whole blocks of {self.weights}; "
                "llama.cpp stores such a tensor in another type"
            )
        return blocks * self.nbytes

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this shape, PyTorch's order: the last extent is a row's."""
        rows = 1
        for extent in shape[:-1]:
            rows *= extent
        return rows * self.row(shape[-1]) if shape else self.row(1)


_TABLE = (
    GgmlType("F32", 0, 1, 4),
    GgmlType("F16", 1, 1, 2),
    GgmlType("Q4_0", 2, 32, 18),
    GgmlType("Q4_1", 3, 32, 20),
    GgmlType("Q5_0", 6, 32, 22),
    GgmlType("Q5_1", 7, 32, 24),
    GgmlType("Q8_0", 8, 32, 34),
    GgmlType("Q8_1", 9, 32, 36),
    GgmlType("Q2_K", 10, 256, 84),
    GgmlType("Q3_K", 11, 256, 110),
    GgmlType("Q4_K", 12, 256, 144),
    GgmlType("Q5_K", 13, 256, 176),
    GgmlType("Q6_K", 14, 256, 210),
    GgmlType("Q8_K", 15, 256, 292),
    GgmlType("IQ2_XXS", 16, 256, 66),
    GgmlType("IQ2_XS", 17, 256, 74),
    GgmlType("IQ3_XXS", 18, 256, 98),
    GgmlType("IQ1_S", 19, 256, 50),
    GgmlType("IQ4_NL", 20, 32, 18),
    GgmlType("IQ3_S", 21, 256, 110),
    GgmlType("IQ2_S", 22, 256, 82),
    GgmlType("IQ4_XS", 23, 256, 136),
    GgmlType("I8", 24, 1, 1),
    GgmlType("I16", 25, 1, 2),
    GgmlType("I32", 26, 1, 4),
    GgmlType("I64", 27, 1, 8),
    GgmlType("F64", 28, 1, 8),
    GgmlType("IQ1_M", 29, 256, 56),
    GgmlType("BF16", 30, 1, 2),
    GgmlType("TQ1_0", 34, 256, 54),
    GgmlType("TQ2_0", 35, 256, 66),
    GgmlType("MXFP4", 39, 32, 17),
    GgmlType("NVFP4", 40, 64, 36),
    GgmlType("Q1_0", 41, 128, 18),
    GgmlType("Q2_0", 42, 64, 18),
)

#: By name, as gguf-py and llama.cpp spell it.
TYPES: dict[str, GgmlType] = {kind.name: kind for kind in _TABLE}
#: By the id that a GGUF file stores.
BY_ID: dict[int, GgmlType] = {kind.id: kind for kind in _TABLE}
#: Ids that once meant a type and that no current file may use (repacked and removed types).
RETIRED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


def by_id(number: int) -> GgmlType:
    """The type with this id; a `FormatError` names a retired or unknown one."""
    kind = BY_ID.get(number)
    if kind is None:
        what = f"is retired ({RETIRED[number]}): quantize the model again" if number in RETIRED else "is unknown"
        raise FormatError(f"ggml type id {number} {what}; known ids are {', '.join(map(str, sorted(BY_ID)))}")
    return kind
