"""GGUF headers: equal to the gguf library's reading, and bad files end in one error."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.checkpoint import Checkpoint, CheckpointError, Skipped, read_path
from membudget.checkpoint.gguf_file import NeedMore, parse_header
from membudget.formats.ggml import TYPES
from membudget.model import Model
from tests_math.checkpoint.checkpoint_files import is_refused, write_gguf, write_model

pytestmark = pytest.mark.suite
gguf = pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
np = pytest.importorskip("numpy", reason="numpy is in the [test] extra")

Get = Callable[[str], Model]


def same_as_library(path: Path, checkpoint: Checkpoint) -> None:
    """Names, types, shapes, bytes and offsets of every tensor, and every small key-value."""
    reader = gguf.GGUFReader(path)
    theirs = [
        (t.name, t.tensor_type.name, tuple(map(int, reversed(t.shape))), int(t.n_bytes), int(t.data_offset))
        for t in reader.tensors
    ]
    assert theirs == [(e.name, e.dtype, e.shape, e.nbytes, e.offset) for e in checkpoint.entries]
    fields = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == checkpoint.metadata.keys()
    for name, value in checkpoint.metadata.items():
        if isinstance(value, Skipped):
            assert value.length == len(fields[name])
        else:
            assert value == fields[name]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind in gguf.GGMLQuantizationType.__members__])
def test_every_type_equals_the_library(kind: str, tmp_path: Path) -> None:
    """One tensor of every ggml type that gguf-py knows, two-dimensional and stacked."""
    if kind == "Q8_1":
        pytest.skip("gguf-py says 40 bytes a block, ggml's C code 36; the type never lies in a file")
    tensors = {"token_embd.weight": (kind, (6, 512)), "blk.0.ffn_up_exps.weight": (kind, (4, 3, 256))}
    path = write_gguf(tmp_path / "one.gguf", "llama", {".block_count": 1}, tensors)
    same_as_library(path, read_path(str(path)))


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
)
def test_real_data_of_the_librarys_quantizers(kind: str, tmp_path: Path) -> None:
    """Files with real quantized data: our bytes are the data's and the file's size is explained."""
    data = np.random.default_rng(0).standard_normal((7, 512)).astype(np.float32)
    number = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(data, number)
    path = tmp_path / "real.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a.weight", packed, raw_dtype=number)
    writer.add_tensor("b.weight", np.ones(5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = read_path(str(path))
    same_as_library(path, checkpoint)
    assert checkpoint.nbytes == packed.nbytes + 20
    assert checkpoint.file_bytes == path.stat().st_size == checkpoint.nbytes + (checkpoint.header_bytes or 0)
    assert path.read_bytes()[checkpoint.entries[0].offset :].startswith(packed.tobytes())


values = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(allow_nan=False, width=32),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=9),
)
rows = st.tuples(
    st.sampled_from(["F32", "F16", "Q8_0", "Q4_K", "IQ2_XXS", "MXFP4"]), st.integers(1, 5), st.integers(1, 3)
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abcxyz._", min_size=1, max_size=12), values, max_size=6),
    st.lists(rows, min_size=1, max_size=8),
    st.booleans(),
)
def test_any_header_equals_the_library(keys: dict[str, Any], tensors: list[tuple[str, int, int]], big: bool) -> None:
    """Drawn key-values and tensors in either byte order, written and read by the library."""
    import tempfile

    drawn = {f"t{n}": (kind, (r, blocks * TYPES[kind].weights)) for n, (kind, r, blocks) in enumerate(tensors)}
    with tempfile.TemporaryDirectory() as folder:
        # The library ignores a general.* clash; ours are prefixed to be free of it.
        path = Path(folder) / "any.gguf"
        write_gguf(path, "llama", {f"k.{key}": value for key, value in keys.items()}, drawn, big_endian=big)
        same_as_library(path, read_path(str(path)))


def test_vocabulary_is_passed_over(tmp_path: Path) -> None:
    """A vocabulary of 300,000 strings is counted and not kept."""
    keys = {"tokenizer.ggml.tokens": [f"t{n}" for n in range(300_000)], "tokenizer.ggml.scores": [0.5] * 5000}
    path = write_gguf(tmp_path / "vocab.gguf", "llama", keys, {"token_embd.weight": ("F32", (2, 32))})
    checkpoint = read_path(str(path))
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == Skipped("string[]", 300_000)
    assert checkpoint.metadata["tokenizer.ggml.scores"] == Skipped("float32[]", 5000)
    assert checkpoint.entries[0].nbytes == 256


def test_split_files_are_one_checkpoint(tmp_path: Path, model: Get) -> None:
    """A model in parts of 40 tensors reads as the whole one, from any part or from the folder."""
    qwen = model("Qwen/Qwen3-0.6B")
    whole = read_path(str(write_model(tmp_path / "whole.gguf", qwen)))
    (tmp_path / "parts").mkdir()
    first = write_model(tmp_path / "parts" / "qwen.gguf", qwen, split=40)
    assert first.name == "qwen-00001-of-00008.gguf"
    third = first.with_name("qwen-00003-of-00008.gguf")
    for path in (first, third, first.parent):
        parts = read_path(str(path))
        assert [entry[:4] for entry in parts.entries] == [entry[:4] for entry in whole.entries]
        assert parts.nbytes == whole.nbytes
        assert len(parts.files) == 8
    third.unlink()
    with pytest.raises(CheckpointError, match=r"1 of 8 parts are not there: qwen-00003-of-00008\.gguf"):
        read_path(str(first))


def part(path: Path, tensors: dict[str, Any], **said: int) -> Path:
    """One part as llama-gguf-split writes it: its own tensors, and split.no, split.count, split.tensors.count."""
    keys = {f"split.{name.replace('_', '.')}": value for name, value in said.items()}
    return write_gguf(path, "llama", {".block_count": 2, **keys}, tensors)


@pytest.mark.parametrize(
    ("second", "names", "told"),
    [
        ({"no": 0, "count": 2}, ("a", "b"), r"says it is part 0 \(from 0\) of 2, its name: 1 of 2"),
        ({"no": 1, "count": 3}, ("a", "b"), r"says it is part 1 \(from 0\) of 3, its name: 1 of 2"),
        ({"no": 1, "count": 2}, ("a", "a"), r"'a' is in m-00001-of-00002\.gguf and in m-00002-of-00002\.gguf"),
        ({"no": 1, "count": 2}, ("a", ""), r"split\.tensors\.count says 2 tensors, the parts hold 1"),
        ({"no": 2**32 - 1, "count": 2**31}, ("a", "b"), r"says it is part 4294967295"),
    ],
)
def test_hostile_splits(second: dict[str, int], names: tuple[str, str], told: str, tmp_path: Path) -> None:
    """Parts that do not make one model are one clear error."""
    first = {"no": 0, "count": 2, "tensors_count": 2}
    for number, (said, name) in enumerate(((first, names[0]), (second, names[1])), 1):
        tensors = {name: ("F32", (32, 2))} if name else {}
        part(tmp_path / f"m-{number:05d}-of-00002.gguf", tensors, **said)
    with pytest.raises(CheckpointError, match=told):
        read_path(str(tmp_path / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("m-00003-of-00002.gguf", r"part 3 of 2"),
        ("m-00000-of-00002.gguf", r"part 0 of 2"),
        ("m-00001-of-99999.gguf", r"part 1 of 99999"),
        ("m-00001-of-00000.gguf", r"part 1 of 0"),
        ("alone.gguf", r"is one of 2 parts, but not named -00001-of-00002\.gguf"),
    ],
)
def test_hostile_names_of_parts(name: str, told: str, tmp_path: Path) -> None:
    """A name that cannot be, or a part under another one."""
    part(tmp_path / name, {"a": ("F32", (32, 2))}, no=0, count=2)
    with pytest.raises(CheckpointError, match=told):
        read_path(str(tmp_path / name))


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    """llama-gguf-split --no-tensor-first-split: the first file is metadata alone."""
    part(tmp_path / "m-00001-of-00002.gguf", {}, no=0, count=2, tensors_count=1)
    part(tmp_path / "m-00002-of-00002.gguf", {"a": ("F32", (32, 2))}, no=1, count=2)
    found = read_path(str(tmp_path))
    assert (found.nbytes, len(found.files), found.metadata["llama.block_count"]) == (256, 2, 2)


def header(**change: Any) -> bytes:
    """A small valid file, piece by piece; `change` replaces pieces."""
    pieces: dict[str, bytes] = {
        "magic": b"GGUF",
        "version": struct.pack("<I", 3),
        "tensors": struct.pack("<Q", 1),
        "keys": struct.pack("<Q", 2),
        "key": struct.pack("<Q", 20) + b"general.architecture",
        "value": struct.pack("<IQ", 8, 5) + b"llama",
        "key2": struct.pack("<Q", 17) + b"general.alignment",
        "value2": struct.pack("<II", 4, 32),
        "name": struct.pack("<Q", 1) + b"t",
        "dims": struct.pack("<I", 2),
        "shape": struct.pack("<QQ", 256, 2),
        "type": struct.pack("<I", 12),
        "offset": struct.pack("<Q", 0),
    }
    pieces.update(change)
    content = b"".join(pieces.values())
    return content + b"\0" * (-len(content) % 32) + b"\0" * 288


u32, u64 = (lambda n: struct.pack("<I", n)), (lambda n: struct.pack("<Q", n))
BAD = {
    "empty": (b"", r"byte 0: 0 bytes are no GGUF file"),
    "wrong magic": (header(magic=b"GGUX"), r"byte 0: not a GGUF file: it starts with b'GGUX'"),
    "a zip": (b"PK\x03\x04" + b"\x5a" * 4000, r"byte 0: not a GGUF file.*zip archive"),
    "an older format": (header(magic=b"tjgg"), r"older ggml format"),
    "version 1": (header(version=u32(1)), r"byte 4: GGUF version 1"),
    "a billion tensors": (header(tensors=u64(10**9)), r"byte 8: claims 1,000,000,000 tensors"),
    "negative count": (header(tensors=u64(2**64 - 1)), r"byte 8: claims 18,446,744,073,709,551,615 tensors"),
    "a billion keys": (header(keys=u64(10**9)), r"byte 16: claims 1,000,000,000 keys"),
    "10 GB key": (header(key=u64(10**10)), r"byte 24: a key of 10,000,000,000 bytes"),
    "10 GB string": (header(value=u32(8) + u64(10**10)), r"byte 64: .* takes 10,000,000,000 bytes"),
    "exabyte string": (header(value=u32(8) + u64(2**63)), r"byte 64: .* takes 9,223,372,036,854,775,808 bytes"),
    "10 GB array": (header(value=u32(9) + u32(0) + u64(10**10)), r"byte 68: .* 10,000,000,000 values"),
    "a billion strings": (header(value=u32(9) + u32(8) + u64(10**9)), r"byte 60: .* claims 1,000,000,000 strings"),
    "unknown value type": (header(value=u32(13)), r"byte 52: .* value type 13 is unknown"),
    "array of arrays": (header(value=u32(9) + u32(9) + u64(1)), r"arrays of arrays"),
    "key twice": (header(key2=u64(20) + b"general.architecture"), r"byte 69: duplicate key 'general.archi"),
    "key is no text": (header(key=u64(4) + b"\xff\xfe\xff\xfe"), r"byte 32: a key is not UTF-8"),
    "alignment 0": (header(value2=u32(4) + u32(0)), r"general.alignment is 0"),
    "alignment 24": (header(value2=u32(4) + u32(24)), r"general.alignment is 24"),
    "alignment is text": (header(value2=u32(8) + u64(1) + b"x"), r"general.alignment is 'x'"),
    "unknown tensor type": (header(type=u32(99)), r"byte 131: 't': ggml type id 99 is unknown"),
    "retired tensor type": (header(type=u32(4)), r"byte 131: 't': ggml type id 4 is retired"),
    "no dimensions": (header(dims=u32(0)), r"byte 111: 't': 0 dimensions"),
    "nine dimensions": (header(dims=u32(9)), r"byte 111: 't': 9 dimensions"),
    "negative extent": (header(shape=u64(2**64 - 256) + u64(2)), r"byte 115: 't': extents .* are beyond any file"),
    "overflowing extents": (header(shape=u64(2**40) + u64(2**40)), r"byte 115: 't': extents .* are beyond any file"),
    "part of a block": (header(shape=u64(100) + u64(2)), r"byte 131: 't': Q4_K: a row of 100 weights"),
    "bigger than the file": (header(shape=u64(256) + u64(10**9)), r"143,999,999,712 bytes are missing"),
    "offset in a hole": (header(offset=u64(32)), r"byte 102: 't' lies at data offset 32, not 0: it leaves a hole"),
    "10 GB name": (header(name=u64(10**10)), r"byte 102: a tensor's name of 10,000,000,000 bytes"),
    "cut in the header": (header()[:90], r"byte 88: .* takes 4 bytes, 2 are left|takes \d+ bytes, \d+ are left"),
    "cut in the data": (header()[:-200], r"bytes are missing"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_bad_file_is_one_error(content: bytes, message: str, tmp_path: Path) -> None:
    """Every kind of broken file ends in a CheckpointError with file and place, in little memory."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    is_refused(path, message)


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    """The file that the broken ones are made of is accepted."""
    path = tmp_path / "good.gguf"
    path.write_bytes(header())
    assert read_path(str(path)).nbytes == 288


def test_overlapping_tensors(tmp_path: Path) -> None:
    """Two tensors at one offset are refused, as llama.cpp does."""
    second = u64(1) + b"u" + u32(1) + u64(256) + u32(12) + u64(0)
    path = tmp_path / "overlap.gguf"
    path.write_bytes(header(tensors=u64(2), second=second))
    with pytest.raises(CheckpointError, match=r"'u' lies at data offset 0, not 288: it overlaps"):
        read_path(str(path))


def test_name_twice(tmp_path: Path) -> None:
    """Two tensors of one name are refused."""
    second = u64(1) + b"t" + u32(1) + u64(256) + u32(12) + u64(288)
    path = tmp_path / "twice.gguf"
    path.write_bytes(header(tensors=u64(2), second=second) + b"\0" * 288)
    with pytest.raises(CheckpointError, match="duplicate tensor 't'"):
        read_path(str(path))


def test_a_sparse_file_of_empty_strings_is_bounded(tmp_path: Path) -> None:
    """A file of 8 GB that claims 900 million empty strings is refused before they are walked."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(header(value=u32(9) + u32(8) + u64(900_000_000))[:72])
    with open(path, "r+b") as stream:
        stream.truncate(8_000_000_000)
    with pytest.raises(CheckpointError, match="claims 900,000,000 strings"):
        read_path(str(path))


def test_many_long_texts_are_not_kept(tmp_path: Path) -> None:
    """1,000 texts of 60 kB are walked; what is kept stays under the limit."""
    keys = {f"k.{n}": "x" * 60_000 for n in range(1000)}
    path = write_gguf(tmp_path / "texts.gguf", "llama", keys, {"t": ("F32", (1,))})
    tracemalloc.start()
    checkpoint = read_path(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 2**20
    assert isinstance(checkpoint.metadata["k.999"], Skipped)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_headers_never_escape(data: st.DataObject) -> None:
    """Whatever bytes are changed, cut or repeated: a header or a CheckpointError, nothing else."""
    content = bytearray(header())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"\0" * 8])))
        content[at : at + len(piece)] = piece
    content = content[: data.draw(st.integers(24, len(content)))] if data.draw(st.booleans()) else content
    message = "fuzz"
    try:
        parse_header(bytes(content), len(content), "fuzz", "fuzz")
    except CheckpointError as error:
        message = str(error)
    assert message.startswith("fuzz")


@given(st.integers(24, 400))
def test_a_part_asks_for_more(length: int) -> None:
    """Any start of a sound file gives the whole header or asks for more bytes, never an error."""
    content = header()
    try:
        parsed = parse_header(content[:length], len(content), "part", "part")
    except NeedMore:
        assert length < len(content) - 288
    else:
        assert parsed.entries[0].nbytes == 288
