"""safetensors headers: equal to the safetensors library's reading, and bad files end in one error."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membudget.checkpoint import CheckpointError, read_path
from membudget.checkpoint.safetensors_json import parse_header, parse_index
from membudget.formats.dtypes import DTYPE_BITS
from membudget.model import Model
from tests_math.checkpoint.checkpoint_files import is_refused, stored, write_safetensors, write_shards

pytestmark = pytest.mark.suite
np = pytest.importorskip("numpy", reason="numpy is in the [test] extra")
safetensors = pytest.importorskip("safetensors", reason="the safetensors library is in the [test] extra")

Get = Callable[[str], Model]


def library(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes as the library reads them."""
    with safetensors.safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def raw(path: Path, header: bytes | dict[str, Any], data: int = 0, length: int | None = None) -> Path:
    """A file of this header (as bytes or to be dumped) and so many bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * data)
    return path


shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
NUMPY = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint64"]


@settings(max_examples=150, deadline=None)
@given(
    tensors=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(NUMPY), shapes),
        min_size=1,  # safetensors 0.8 itself writes broken JSON for no tensors and empty metadata
        max_size=8,
    ),
    metadata=st.one_of(st.none(), st.dictionaries(st.text(max_size=9), st.text(max_size=40), max_size=4)),
)
def test_any_saved_file_equals_the_library(
    tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str] | None, tmp_path_factory: Any
) -> None:
    """Any names, dtypes, shapes and metadata that the library saves read the same."""
    from safetensors.numpy import save_file

    path = tmp_path_factory.mktemp("st") / "any.safetensors"
    save_file({name: np.zeros(shape, dtype) for name, (dtype, shape) in tensors.items()}, path, metadata)
    checkpoint = read_path(str(path))
    assert {entry.name: (entry.dtype, entry.shape) for entry in checkpoint.entries} == library(path)
    assert checkpoint.metadata == (metadata or {})
    assert checkpoint.nbytes == sum(np.zeros(shape, dtype).nbytes for dtype, shape in tensors.values())
    assert checkpoint.file_bytes == path.stat().st_size == checkpoint.nbytes + (checkpoint.header_bytes or 0)


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_equals_the_library(dtype: str, tmp_path: Path) -> None:
    """Every dtype of the library, also those without a numpy type, has the library's size."""
    size = 64 * DTYPE_BITS[dtype] // 8
    path = raw(tmp_path / "one.safetensors", {"t": {"dtype": dtype, "shape": [8, 8], "data_offsets": [0, size]}}, size)
    with safetensors.safe_open(path, "np") as file:
        assert list(file.keys()) == ["t"]
    assert read_path(str(path)).entries[0].nbytes == size
    short = raw(tmp_path / "s.safetensors", {"t": {"dtype": dtype, "shape": [9, 8], "data_offsets": [0, size]}}, size)
    with pytest.raises(CheckpointError, match=r"takes .* bytes, data_offsets"):
        read_path(str(short))


def test_dtypes_are_the_librarys() -> None:
    """The library's own list of dtypes, from its error message, is our table."""
    text = b'{"t":{"dtype":"NONE","shape":[],"data_offsets":[0,0]}}'
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(struct.pack("<Q", len(text)) + text)
    named = {word for word in str(caught.value).split("`") if word.isupper() or "_" in word} - {"NONE"}
    assert {word for word in named if word[0] in "BFIUC"} == set(DTYPE_BITS)


def test_offsets_point_at_the_data(tmp_path: Path) -> None:
    """Each tensor's absolute offset is where its bytes lie."""
    from safetensors.numpy import save_file

    data = {f"t{n}": np.arange(n + 1, dtype=np.int32) for n in range(5)}
    path = tmp_path / "data.safetensors"
    save_file(data, path)
    content = path.read_bytes()
    for entry in read_path(str(path)).entries:
        assert content[entry.offset : entry.offset + entry.nbytes] == data[entry.name].tobytes()


def test_sharded_folder_and_total_size(tmp_path: Path, model: Get) -> None:
    """Llama-3.2-1B in three shards: the index's total_size is the sum of the tensors, 2 bytes a parameter."""
    llama = model("meta-llama/Llama-3.2-1B")
    names = list(stored(llama).items())
    write_shards(tmp_path, [dict(names[:50]), dict(names[50:100]), dict(names[100:])])
    checkpoint = read_path(str(tmp_path))
    assert checkpoint.total_size == checkpoint.nbytes == 2 * 1_235_814_400
    assert checkpoint.total_size_difference == 0
    assert len(checkpoint.files) == 3
    assert read_path(str(tmp_path / "model.safetensors.index.json")).nbytes == checkpoint.nbytes
    assert checkpoint.by_dtype["BF16"] == (len(names), 1_235_814_400, 2 * 1_235_814_400)


def test_wrong_total_size_is_said(tmp_path: Path) -> None:
    """An index whose total_size differs from the tensors is read, and the difference is there."""
    write_shards(tmp_path, [{"a": ("F32", (4,))}], total_size=20)
    assert read_path(str(tmp_path)).total_size_difference == 4


def test_folder_without_an_index(tmp_path: Path) -> None:
    """Files named as parts of one whole are one checkpoint; a lost part or a mixture is refused."""
    write_shards(tmp_path, [{"a": ("F32", (4,))}, {"b": ("F32", (4,))}])
    (tmp_path / "model.safetensors.index.json").unlink()
    assert read_path(str(tmp_path)).nbytes == 32
    write_safetensors(tmp_path / "other.safetensors", {"c": ("F32", (4,))})
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json says which of 3 files belong"):
        read_path(str(tmp_path))
    (tmp_path / "other.safetensors").unlink()
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    write_safetensors(tmp_path / "model-00003-of-00003.safetensors", {"c": ("F32", (4,))})
    with pytest.raises(CheckpointError, match="belong together"):
        read_path(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": "gone.safetensors"}, r"names 3 files, 1 of them are not there: gone\.safetensors"),
        ({"b": "../../etc/passwd.safetensors"}, r"names '\.\./\.\./etc/passwd\.safetensors', not a file beside it"),
        ({"b": "/etc/passwd"}, r"names '/etc/passwd', not a file beside it"),
        ({"b": "/etc/passwd.safetensors"}, r"names '/etc/passwd\.safetensors', not a file beside it"),
        ({"b": "sub/b.safetensors"}, r"names 'sub/b\.safetensors', not a file beside it"),
        ({"b": "sub\\b.safetensors"}, r"names 'sub\\\\b\.safetensors', not a file beside it"),
        ({"b": ".b.safetensors"}, r"names '\.b\.safetensors', not a file beside it"),
        ({"extra": "model-00001-of-00002.safetensors"}, r"says 'extra' is in model-00001.*, it is in none"),
        ({"b": "model-00001-of-00002.safetensors"}, r"says 'b' is in model-00001.*, it is in model-00002"),
    ],
)
def test_index_and_shards_must_agree(change: dict[str, str], message: str, tmp_path: Path) -> None:
    """An index that names a missing file, leaves its folder or contradicts the shards is refused."""
    write_shards(tmp_path, [{"a": ("F32", (4,))}, {"b": ("F32", (4,)), "c": ("F32", (1,))}])
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"].update(change)
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        read_path(str(tmp_path))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    """The same name in two shards is refused."""
    write_shards(tmp_path, [{"a": ("F32", (4,))}, {"a": ("F32", (4,))}])
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"'a' stands in model-00001-of-00002\.safetensors and in model-00002"):
        read_path(str(tmp_path))


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=40),
        st.sampled_from(["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", 'ä "x".safetensors']),
        max_size=20,
    ),
    st.integers(0, 2**50),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_any_index_reads_as_json_does(
    weights: dict[str, str], total: int, indent: int | None, ascii_only: bool
) -> None:
    """Names with quotes, escapes and any script; indented or not; the metadata before or after."""
    content = {"metadata": {"total_size": total}, "weight_map": weights}
    for part in (content, dict(reversed(content.items()))):
        text = json.dumps(part, indent=indent, ensure_ascii=ascii_only).encode()
        assert parse_index(text, "index") == (weights, total)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{}", "byte 0: has no weight_map"),
        (b'{"weight_map": 1}', "byte 0: has no weight_map"),
        (b'{"weight_map": {"a": 1}}', r"byte 21: weight_map: expected a file name, found '1\}\}'"),
        (b'{"weight_map": {"a": "b.safetensors"', r"byte 21: 'a': expected ',' or"),
        (b'{"weight_map": {a: 1}}', r"byte 16: expected a name in quotes"),
        (b'{"weight_map": {"a": "b.safetensors", "a": "b.safetensors"}}', r"byte 38: weight_map: duplicate name 'a'"),
        (b'{"weight_map": {"a": "b.bin"}}', r"weight_map names 'b\.bin', not a file beside it"),
        (b'{"weight_map": {"a": "\xff.safetensors"}}', r"a name is not text"),
        (b'{"metadata": {"total_size": "9"}, "weight_map": {}}', r"metadata\.total_size is not a whole number"),
    ],
)
def test_bad_index(text: bytes, message: str) -> None:
    """Every kind of broken index is one error with its place."""
    with pytest.raises(CheckpointError, match=message):
        parse_index(text, "index")


E = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
BAD: dict[str, tuple[Any, int, int | None, str]] = {
    "nothing": (b"", 0, 2, r"byte 0: claims a header of 2 bytes, 0 follow: truncated"),
    "10 GB header": ({"a": E}, 2, 10**10, r"byte 0: claims a header of 10,000,000,000 bytes, at most 100,000,000"),
    "exabyte header": ({"a": E}, 2, 2**64 - 1, r"byte 0: claims a header of 18,446,744,073,709,551,615 bytes"),
    "longer than the file": ({"a": E}, 2, 5000, r"byte 0: claims a header of 5,000 bytes, \d+ follow: truncated"),
    "no length": (b"", 0, 0, r"byte 0: claims a header of 0 bytes"),
    "no JSON": (b"hello world!", 0, None, r"byte 8: the header is not a JSON object: it starts with 'hello world!'"),
    "a list": (b"[1, 2, 3]", 0, None, r"byte 8: the header is not a JSON object"),
    "cut JSON": (b'{"a":{"dtype":"U8","shape":[2],"data_of', 0, None, r"byte 13: 'a': not JSON"),
    "no colon": (b'{"a"}', 0, None, r"byte 9: expected a name in quotes and a colon"),
    "nested deeply": (b'{"a":' + b"[" * 100_000, 0, None, r"byte 13: 'a': not JSON"),
    "metadata nested deeply": (b'{"__metadata__":' + b"[" * 100_000, 0, None, r"__metadata__': not JSON"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": E}, 2, None, r"__metadata__ must be an object of strings"),
    "name twice": (b'{"a":%b,"a":%b}' % ((json.dumps(E).encode(),) * 2), 2, None, r"duplicate name 'a'"),
    "field twice": (b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', 2, None, r"duplicate field"),
    "unknown dtype": ({"a": {**E, "dtype": "Q4"}}, 2, None, r"byte 14: 'a': unknown dtype 'Q4'; known are F64, F32"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 2]}}, 2, None, r"'a': dtype is missing"),
    "negative extent": ({"a": {**E, "shape": [-2]}}, 2, None, r"'a': shape must be a list of whole numbers >= 0"),
    "fraction": ({"a": {**E, "shape": [2.0]}}, 2, None, r"'a': shape must be a list of whole numbers >= 0"),
    "extents overflow": ({"a": {**E, "shape": [2**40, 2**40]}}, 2, None, r"'a': shape .* is beyond any file"),
    "zero hides overflow": ({"a": {**E, "shape": [2**60, 0]}}, 2, None, r"'a': an extent of 1,152,921,504,606,846,976"),
    "shape and bytes": ({"a": {**E, "shape": [3]}}, 2, None, r"'a': U8 \[3\] takes 3 bytes, .* hold 2"),
    "half a byte": ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, 2, None, r"3 x 4 bits are not"),
    "backwards": ({"a": {**E, "data_offsets": [2, 0]}}, 2, None, r"'a': data_offsets run backwards"),
    "one offset": ({"a": {**E, "data_offsets": [2]}}, 2, None, r"'a': data_offsets has 1 numbers"),
    "beyond the file": ({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, 2, None, r"truncated"),
    "overlap": ({"a": E, "b": {**E, "data_offsets": [1, 3]}}, 3, None, r"'b' overlaps 'a'"),
    "hole": ({"a": E, "b": {**E, "data_offsets": [3, 5]}}, 5, None, r"'b' leaves a hole of 1 bytes after 'a'"),
    "hole at the start": ({"a": {**E, "data_offsets": [1, 3]}}, 3, None, r"'a' leaves a hole of 1 bytes after"),
    "bytes left over": ({"a": E}, 7, None, r"the tensors end at byte \d+, the file at \d+: bytes that"),
    "text after": (b'{"a":%b} {"b":1}' % json.dumps(E).encode(), 2, None, r"7 bytes follow the end of the JSON object"),
    "surrogate": (b'{"\\ud800":%b}' % json.dumps(E).encode(), 2, None, r"a name is not text"),
    "bad UTF-8": (b'{"\xff\xfe":%b}' % json.dumps(E).encode(), 2, None, r"a name is not text"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "data", "length", "message"), BAD.values(), ids=BAD.keys())
def test_bad_file_is_one_error(header: Any, data: int, length: int | None, message: str, tmp_path: Path) -> None:
    """Every kind of broken file ends in a CheckpointError with file and place, in little memory."""
    path = raw(tmp_path / "bad.safetensors", header, data, length)
    is_refused(path, message)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"PK\x03\x04" + b"\x5a" * 4000, "zip archive"),
        (b"GGUF\x01\0\0\0" + b"\0" * 16, "GGUF version 1"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (b"\x80\x02}q\x00." + b"\xff" * 40, "pickle"),
        (b"<html>not found</html>", "web page"),
        (b"", "0 bytes are no safetensors file"),
    ],
)
def test_other_things_under_the_name(content: bytes, hint: str, tmp_path: Path) -> None:
    """What people have instead of the weights is named: a zip, an lfs pointer, a pickle, a web page."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=hint):
        read_path(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * 45_000_000,
        b'"' + b"\\\\" * 45_000_000,
        b'{"x":"' + b"a" * 90_000_000,
        b"{" + b'"a":{},' * 12_000_000,
    ],
    ids=["list", "escapes", "text", "objects"],
)
def test_90_megabytes_of_hostile_json(body: bytes, tmp_path: Path) -> None:
    """A header that may legally be 90 MB is refused without building what it claims."""
    path = raw(tmp_path / "big.safetensors", b'{"t":' + body)
    del body
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read_path(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * 10**6


def accepted_by_library(content: bytes) -> bool:
    """Whether the library takes these bytes."""
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True


def accepted(content: bytes, tmp: Path) -> bool:
    """Whether we take these bytes; anything but a CheckpointError escapes."""
    path = tmp / "fuzz.safetensors"
    path.write_bytes(content)
    try:
        read_path(str(path))
    except CheckpointError:
        return False
    return True


SOUND = b'{"__metadata__":{"format":"pt"},"a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"c":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}'  # noqa: E501


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_mutated_headers_agree_with_the_library(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Whatever is changed: we accept no file that the library refuses, and refuse only a name that stands twice."""
    text = bytearray(SOUND)
    pieces = [
        b"0",
        b"1",
        b"-",
        b'"',
        b",",
        b"{",
        b"}",
        b"[",
        b"]",
        b" ",
        b"\\",
        b"\xff",
        b":",
        b"null",
        b"1e1",
        b".0",
        b"\n",
    ]
    for _ in range(data.draw(st.integers(1, 3))):
        at, cut = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 2))
        text[at : at + cut] = data.draw(st.sampled_from(pieces))
    content = struct.pack("<Q", len(text)) + bytes(text) + b"\0" * 9
    ours = accepted(content, tmp_path_factory.getbasetemp())
    theirs = accepted_by_library(content)
    assert ours == theirs or (theirs and _twice(bytes(text)))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[00,2]}}',
        b'{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}',
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[-0,2]}}',
        b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"U8","shape":[2,],"data_offsets":[0,2]}}',
        b'{"a":{"dtype":"U8","shape":[1 2],"data_offsets":[0,2]}}',
        b'{"a":{"dtype":"U8","shape":[12],"data_offsets":[0,2]}}',
        b'{"a\\x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b'{"a\n":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"\\ud800":1}}',
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":NaN}}',
        b'{"__metadata__":{"\\ud800":""},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    ],
)
def test_what_fuzzing_found(text: bytes, tmp_path: Path) -> None:
    """Numbers with leading zeros, trailing commas, bad escapes: refused by the library and by us."""
    content = struct.pack("<Q", len(text)) + text + b"\0\0"
    assert not accepted_by_library(content)
    assert not accepted(content, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x{y}":{"z":[1,{}]}}}',
        b' {"a" : { "data_offsets" : [0, 2], "shape": [ 2 ],\n"dtype":"U8"} , "__metadata__":null}  ',
        b'{"__metadata__":{"a":"}{","b":"\\"}"},"a\\u00e9\\"{":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    ],
)
def test_unusual_but_sound(text: bytes, tmp_path: Path) -> None:
    """Further fields, spaces, another order, braces in strings: accepted by the library and by us."""
    content = struct.pack("<Q", len(text)) + text + b"\0\0"
    assert accepted_by_library(content)
    assert accepted(content, tmp_path)


def _twice(text: bytes) -> bool:
    pairs: list[Any] = []
    json.loads(text, object_pairs_hook=lambda found: pairs.append(found) or dict(found))
    return any(len(dict(found)) != len(found) for found in pairs)


@given(st.binary(max_size=300))
def test_any_bytes_as_header(text: bytes) -> None:
    """Arbitrary bytes parse or end in a CheckpointError that names the file."""
    message = "fuzz"
    try:
        parse_header(text, "fuzz", "fuzz")
    except CheckpointError as error:
        message = str(error)
    assert message.startswith("fuzz")
