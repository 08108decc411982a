"""From a path to a `Checkpoint`: one file, a sharded folder, a split GGUF."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from membudget.checkpoint import safetensors_file
from membudget.checkpoint.entries import MAX_TENSORS, Checkpoint, CheckpointError, StoredFile, StoredTensor
from membudget.checkpoint.gguf_file import read_file
from membudget.checkpoint.safetensors_json import MAX_HEADER, parse_index

INDEX = "model.safetensors.index.json"
#: The most files of one checkpoint; the largest published have a few hundred.
MAX_FILES = 4096
#: How downloaders call a file that is not whole yet (huggingface_hub, wget and browsers, aria2).
_UNFINISHED = re.compile(r"\.(safetensors|gguf|json)\.(incomplete|part|aria2)$")


def part_of(name: str, suffix: str) -> tuple[str, int, int] | None:
    """What comes before ``-00002-of-00009`` + suffix in a name, the part and the count; None for other names."""
    stem, _, count = name.removesuffix(suffix).rpartition("-of-")
    stem, dash, number = stem.rpartition("-")
    digits = len(number) == len(count) == 5 and (number + count).isdecimal() and (number + count).isascii()
    return (stem, int(number), int(count)) if name.endswith(suffix) and dash and digits else None


def is_projector(name: str) -> bool:
    """Whether a file's name is a projector's: ``mmproj-F16.gguf``, ``gemma-3-4b-it-mmproj-f16.gguf``."""
    return name.endswith(".gguf") and "mmproj" in os.path.basename(name).lower()


def gguf_models(names: Iterable[str]) -> list[str]:
    """The GGUF models among some files: single files and first parts, no projectors."""
    models = [name for name in sorted(names) if name.endswith(".gguf") and not is_projector(name)]
    return [name for name in models if (part_of(name, ".gguf") or ("", 1, 1))[1] == 1]


def read_path(path: str) -> Checkpoint:
    """Read the headers of a .safetensors or .gguf file, an index, or a folder with either."""
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        return _folder(path)
    if not os.path.exists(path):
        raise CheckpointError(path, None, "no such file or folder")
    if not os.path.isfile(path):
        raise CheckpointError(path, None, "not a regular file: pipes and devices are not read")
    if path.endswith(".index.json"):
        return _indexed(path)
    if path.lower().endswith(".gguf") or _magic(path) == b"GGUF":
        return _gguf(path)
    if path.lower().endswith((".bin", ".pt", ".pth", ".ckpt")):
        raise CheckpointError(path, None, "a pickle is not read; save the model as safetensors")
    entries, file, metadata = safetensors_file.read_file(path)
    return Checkpoint(path, "safetensors", entries, [file], metadata)


def projectors_beside(path: str) -> list[tuple[str, int]]:
    """(name, bytes) of the projectors' files in the folder of a GGUF model's file, sorted."""
    folder = os.path.dirname(os.path.expanduser(path)) or "."
    try:
        names = sorted(filter(is_projector, os.listdir(folder)))
        return [(name, os.path.getsize(os.path.join(folder, name))) for name in names if name != os.path.basename(path)]
    except OSError:
        return []


def _magic(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(4)
    except OSError as error:
        raise CheckpointError(path, None, f"cannot be read: {error.strerror or error}") from None


def _folder(folder: str) -> Checkpoint:
    index = os.path.join(folder, INDEX)
    if os.path.isfile(index):
        return _indexed(index)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(folder, None, f"cannot be read: {error.strerror or error}") from None
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    if len(indexes) == 1:
        return _indexed(os.path.join(folder, indexes[0]))
    if "model.safetensors" in names:
        return _shards(folder, ["model.safetensors"], folder, None)
    shards = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if shards:
        _refuse_mixture(shards, folder)
        return _shards(folder, shards, folder, None)
    first = gguf_models(names)
    if len(first) == 1:
        return _gguf(os.path.join(folder, first[0]))
    if first:
        raise CheckpointError(folder, None, f"has {len(first)} GGUF models; pass one of them: {', '.join(first[:8])}")
    raise CheckpointError(folder, None, f"has no .safetensors and no .gguf file in it{unfinished(names)}")


def _refuse_mixture(shards: list[str], folder: str) -> None:
    """Without an index only files that are parts of one whole, or a single file, are one checkpoint."""
    if len(shards) == 1:
        return
    parts = [part for name in shards if (part := part_of(name, ".safetensors"))]
    wholes = {(stem, count) for stem, _, count in parts}
    if len(parts) != len(shards) or len(wholes) != 1:
        raise CheckpointError(
            folder, None, f"no {INDEX} says which of {len(shards)} files belong together: {', '.join(shards[:6])}"
        )
    count = parts[0][2]
    missing = sorted(set(range(1, min(count, MAX_FILES) + 1)) - {number for _, number, _ in parts})
    if missing:
        raise CheckpointError(folder, None, f"file {missing[0]:05d} of {count:05d} is missing ({len(missing)} in all)")


def unfinished(names: Iterable[str]) -> str:
    """``; NAME is an unfinished download: finish it first`` where a file's name says so; "" for none."""
    found = next(filter(_UNFINISHED.search, sorted(names)), "")
    return f"; {found} is an unfinished download: finish it first" if found else ""


def _indexed(index: str) -> Checkpoint:
    folder = os.path.dirname(index) or "."
    if os.path.exists(index) and not os.path.isfile(index):
        raise CheckpointError(index, None, "not a regular file: pipes and devices are not read")
    try:
        with open(index, "rb") as stream:
            content = stream.read(MAX_HEADER + 1)
    except OSError as error:
        raise CheckpointError(index, None, f"cannot be read: {error.strerror or error}") from None
    weights, total_size = parse_index(content, index)
    shards = sorted(set(weights.values()))
    missing = [name for name in shards if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise CheckpointError(
            index, None, f"names {len(shards)} files, {len(missing)} of them are not there: {', '.join(missing[:4])}"
        )
    return _shards(folder, shards, folder, total_size, weights, index)


def _shards(
    folder: str,
    shards: list[str],
    source: str,
    total_size: int | None,
    weights: dict[str, str] | None = None,
    index: str = "",
) -> Checkpoint:
    if len(shards) > MAX_FILES:
        raise CheckpointError(folder, None, f"{len(shards):,} files are no checkpoint (at most {MAX_FILES:,})")
    read = (safetensors_file.read_file(os.path.join(folder, name), name) for name in shards)
    return join(read, source, total_size, weights, index or folder)


def join(
    read: Iterable[tuple[list[StoredTensor], StoredFile, dict[str, Any]]],
    source: str,
    total_size: int | None,
    weights: dict[str, str] | None,
    index: str,
) -> Checkpoint:
    """Put the shards of a safetensors checkpoint together; each name in one shard, as the index says."""
    entries: list[StoredTensor] = []
    files: list[StoredFile] = []
    metadata: dict[str, Any] = {}
    where: dict[str, str] = {}
    for shard, file, more in read:
        for entry in shard:
            if entry.name in where:
                raise CheckpointError(
                    index, None, f"the tensor {entry.name[:80]!r} stands in {where[entry.name]} and in {file.name}"
                )
            where[entry.name] = file.name
        entries += shard
        files.append(file)
        metadata = {**more, **metadata}
        if len(entries) > MAX_TENSORS:
            raise CheckpointError(index, None, f"more than {MAX_TENSORS:,} tensors")
    if weights is not None and weights != where:
        wrong = next(name for name in [*weights, *where] if weights.get(name) != where.get(name))
        raise CheckpointError(
            index,
            None,
            f"the index says {wrong[:80]!r} is in {weights.get(wrong, 'no file')}, it is in {where.get(wrong, 'none')}",
        )
    return Checkpoint(source, "safetensors", entries, files, metadata, total_size)


def _gguf(path: str) -> Checkpoint:

    folder, name = os.path.split(path)
    names = split_names(name, path)
    if len(names) == 1 and part_of(name, ".gguf") is None:
        entries, file, metadata = read_file(path)
        count = metadata.get("split.count", 0)
        if type(count) is int and count > 1:
            raise CheckpointError(path, None, f"is one of {count} parts, but not named -00001-of-{count:05d}.gguf")
        return Checkpoint(path, "gguf", entries, [file], metadata)
    missing = [part for part in names if not os.path.isfile(os.path.join(folder, part))]
    if missing:
        raise CheckpointError(
            path, None, f"{len(missing)} of {len(names)} parts are not there: {', '.join(missing[:4])}"
        )
    return join_splits([read_file(os.path.join(folder, part), part) for part in names], path)


def split_names(name: str, path: str) -> list[str]:
    """All parts of the split GGUF that `name` is a part of; only itself where it is whole."""
    part = part_of(name, ".gguf")
    if part is None:
        return [name]
    stem, number, count = part
    if not 1 <= number <= count <= MAX_FILES:
        raise CheckpointError(path, None, f"its name says part {number} of {count}")
    return [f"{stem}-{each:05d}-of-{count:05d}.gguf" for each in range(1, count + 1)]


def join_splits(read: list[tuple[list[StoredTensor], StoredFile, dict[str, Any]]], source: str) -> Checkpoint:
    """Put the parts of a split GGUF together; the first part's key-values are the model's."""
    entries: list[StoredTensor] = []
    where: dict[str, str] = {}
    for number, (part, file, metadata) in enumerate(read):
        said = metadata.get("split.no"), metadata.get("split.count")
        if said not in ((number, len(read)), (None, None)):
            what = f"{file.name} says it is part {said[0]} (from 0) of {said[1]}, its name: {number} of {len(read)}"
            raise CheckpointError(source, None, what)
        for entry in part:
            if entry.name in where:
                raise CheckpointError(source, None, f"{entry.name[:80]!r} is in {where[entry.name]} and in {file.name}")
            where[entry.name] = file.name
        entries += part
    metadata = read[0][2]
    total = metadata.get("split.tensors.count")
    if total is not None and total != len(entries):
        raise CheckpointError(source, None, f"split.tensors.count says {total} tensors, the parts hold {len(entries)}")
    return Checkpoint(source, "gguf", entries, [file for _, file, _ in read], metadata)
