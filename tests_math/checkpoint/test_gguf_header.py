"""A header that we write is the header that a reader finds: ours, and gguf-py's."""

from __future__ import annotations

import pathlib

import pytest

from membudget.checkpoint.gguf_file import read_file
from membudget.checkpoint.gguf_header import HeaderTensor, tensors, write
from membudget.checkpoint.gguf_header_keys import ARCHITECTURES, metadata
from membudget.formats import FormatError
from membudget.formats.gguf import gguf
from membudget.model import build

pytestmark = pytest.mark.math

LIST = [
    HeaderTensor("token_embd.weight", "Q4_K", (32, 512)),
    HeaderTensor("output_norm.weight", "F32", (512,)),
    HeaderTensor("blk.0.ffn_down_exps.weight", "Q6_K", (4, 512, 256)),
]
KEYS = {
    "general.architecture": "llama", "llama.block_count": 1, "llama.rope.freq_base": 500000.0, "llama.flag": True,
    "llama.each": [1, 2, 3], "llama.signed": [-1, 2], "llama.flags": [True, False],
}  # fmt: skip


def test_a_written_header_is_read_back(tmp_path: pathlib.Path) -> None:
    """Names, shapes, types and values; the file is as long as its tensors and takes next to no room."""
    path = tmp_path / "model.gguf"
    size = write(path, KEYS, LIST)
    entries, file, found = read_file(str(path))
    assert [(entry.name, entry.dtype, entry.shape) for entry in entries] == [tuple(item) for item in LIST]
    assert found == KEYS
    assert file.nbytes == size == path.stat().st_size
    assert path.stat().st_blocks * 512 <= 64 * 2**10


def test_gguf_py_reads_the_same(tmp_path: pathlib.Path) -> None:
    """The field's own reader agrees on types, bytes and keys."""
    reader = pytest.importorskip("gguf").GGUFReader
    path = tmp_path / "model.gguf"
    write(path, KEYS, LIST)
    found = reader(path)
    assert [(t.name, t.tensor_type.name, tuple(int(n) for n in t.shape[::-1])) for t in found.tensors] == [
        tuple(item) for item in LIST
    ]
    assert found.fields["llama.signed"].parts[-1].tolist() == [2]


def test_rows_of_broken_blocks_are_refused(tmp_path: pathlib.Path) -> None:
    """A row of 100 weights has no blocks of 256."""
    with pytest.raises(FormatError):
        write(tmp_path / "x.gguf", {}, [HeaderTensor("a.weight", "Q4_K", (2, 100))])


def test_the_metadata_of_llama() -> None:
    """Llama-3.1-8B's own file says these (its public header)."""
    model = build("membudget/data/models/meta-llama--Llama-3.1-8B.json")
    entries = tensors(gguf("q4", "Q4_K_M"), model)
    found = metadata(model, {entry.name: entry.shape for entry in entries})
    assert found["general.architecture"] == "llama"
    expected = {
        "block_count": 32, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 14336,
        "attention.head_count": 32, "attention.head_count_kv": 8, "rope.dimension_count": 128, "vocab_size": 128256,
    }  # fmt: skip
    assert {key: found[f"llama.{key}"] for key in expected} == expected


def test_an_architecture_that_llama_cpp_lacks_is_refused() -> None:
    """BLT has no loader there."""
    assert "zamba2" not in ARCHITECTURES
    model = build({"model_type": "zamba2"})
    with pytest.raises(FormatError, match="zamba2"):
        metadata(model, {})
