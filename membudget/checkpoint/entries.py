"""What a checkpoint's headers say: every stored tensor, where it lies, and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from membudget.errors import MembudgetError

#: No published checkpoint has more (Kimi-K2 in NVFP4: about 280,000); a header that claims more is broken.
MAX_TENSORS = 400_000


class CheckpointError(MembudgetError):
    """A checkpoint that cannot be read: names the file, the byte offset and what is wrong there."""

    def __init__(self, file: str, offset: int | None, what: str) -> None:
        where = file if offset is None else f"{file}: byte {offset:,}"
        super().__init__(f"{where}: {what}")
        self.file, self.offset = file, offset


class StoredTensor(NamedTuple):
    """One tensor as it lies in a file.

    dtype: as the format spells it: ``BF16``, ``I32``, ``F8_E4M3`` (safetensors); ``Q4_K``, ``F32`` (GGUF).
    shape: in PyTorch's order, the last extent is contiguous; packed formats store packed shapes.
    nbytes: its data.  file: the file's name.  offset: of its data in that file, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int

    @property
    def elements(self) -> int:
        """Elements as stored: for a packed tensor those of its container (int32), not weights."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size


class StoredFile(NamedTuple):
    """One file: its size, and what of it is not tensor data.  None where a server did not say."""

    name: str
    nbytes: int | None
    header_bytes: int | None


class DtypeTotal(NamedTuple):
    """All tensors of one dtype."""

    tensors: int
    elements: int
    nbytes: int


class Skipped(NamedTuple):
    """A metadata value that is not kept: a vocabulary, a long text.  length: its items or bytes."""

    kind: str
    length: int


class Checkpoint:
    """The headers of one checkpoint; no tensor data is read.

    source: how it was named.  kind: ``safetensors`` or ``gguf``.
    entries: every `StoredTensor`, in file order.  files: every `StoredFile`.
    metadata: GGUF's key-values, or safetensors' __metadata__ of all files.
    total_size: what the index file claims, in bytes; None without one.
    """

    __slots__ = ("entries", "files", "kind", "metadata", "source", "total_size")

    def __init__(
        self,
        source: str,
        kind: str,
        entries: Iterable[StoredTensor],
        files: Iterable[StoredFile],
        metadata: Mapping[str, Any],
        total_size: int | None = None,
    ) -> None:
        self.source, self.kind = source, kind
        self.entries, self.files = tuple(entries), tuple(files)
        self.metadata, self.total_size = metadata, total_size

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' data."""
        return sum(entry.nbytes for entry in self.entries)

    @property
    def elements(self) -> int:
        """Elements as stored."""
        return sum(entry.elements for entry in self.entries)

    @property
    def file_bytes(self) -> int | None:
        """Bytes of all files; None where one is unknown."""
        sizes = [file.nbytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def header_bytes(self) -> int | None:
        """Bytes of all files that are not tensor data: headers, vocabulary, padding."""
        sizes = [file.header_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def by_dtype(self) -> dict[str, DtypeTotal]:
        """Totals by dtype, the largest in bytes first."""
        totals: dict[str, list[int]] = {}
        for entry in self.entries:
            total = totals.setdefault(entry.dtype, [0, 0, 0])
            total[0] += 1
            total[1] += entry.elements
            total[2] += entry.nbytes
        ordered = sorted(totals.items(), key=lambda item: (-item[1][2], item[0]))
        return {dtype: DtypeTotal(*total) for dtype, total in ordered}

    @property
    def total_size_difference(self) -> int | None:
        """The index's total_size less the sum of the tensors, in bytes; None without an index."""
        return None if self.total_size is None else self.total_size - self.nbytes

    def bits_per_weight(self, params: int | None = None) -> float:
        """True bits a weight: of `params` parameters, or of the elements as stored."""
        count = self.elements if params is None else params
        return self.nbytes * 8 / count if count else 0.0

    def __iter__(self) -> Iterator[StoredTensor]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.source} {self.kind} {len(self.entries):,} tensors {self.nbytes:,} bytes>"
