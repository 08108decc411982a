"""Repositories on the hub, through huggingface_hub: its token, retries, cache and endpoint.

Headers come through ranged reads of our own, which end where the header does.  Configs are
saved for offline use by `fetch`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from membudget.checkpoint import gguf_file, safetensors_file
from membudget.checkpoint.entries import Checkpoint, CheckpointError, StoredFile, StoredTensor
from membudget.checkpoint.reading import INDEX, gguf_models, join, join_splits, read_path, split_names
from membudget.checkpoint.safetensors_json import MAX_HEADER, parse_header, parse_index
from membudget.errors import NOT_AVAILABLE
from membudget.model.config import MAX_CONFIG_BYTES
from membudget.sources.cache import cache_folder, is_offline, snapshot
from membudget.sources.connection import reason, unreachable
from membudget.sources.names import is_model_id, is_repo_file
from membudget.sources.small import within
from membudget.sources.stream import limited, stream
from membudget.sources.waiting import FILE_SECONDS, HEADER_SECONDS, HubTooSlow, bounded
from membudget.text.sanitize import shown

#: First read of a GGUF header; then four times as much, until the header is complete.
_WINDOW = 2 * 2**20
#: First read of a safetensors file: most headers of shards are shorter.  Shards that are asked at once.
_FIRST, _AT_ONCE = 100_000, 8
_LESS = "the server sent less of the header than the file holds"


class HubNotReached(CheckpointError):
    """A repository that is not in the cache, and the hub did not answer or was not asked: it may well exist."""

    reachable = False
    exit_code = NOT_AVAILABLE


class Fetched(NamedTuple):
    """A repository whose config was saved.

    config: the file it was saved as.  total_size: of the index, in bytes; None without one.
    files: all that was saved.
    """

    repo: str
    config: str
    total_size: int | None
    files: tuple[str, ...]


def read_repo(repo: str, *, revision: str | None = None, offline: bool | None = None) -> Checkpoint:
    """Read a repository's headers: the cached files if they are complete, else ranged reads.

    ``org/name/file.gguf`` names one file of a repository.  Raises `CheckpointError`.
    """
    repo, file = _split_file(repo)
    if not is_model_id(repo):
        raise CheckpointError(shown(repo), None, "no such path, and no id of a repository (org/name)")
    folder = snapshot(repo)
    if folder is not None and revision is None:
        try:
            return read_path(os.path.join(folder, file) if file else folder)
        except CheckpointError as error:
            cached = str(error)
    else:
        cached = f"it is not in the cache at {cache_folder()}"
    if is_offline() if offline is None else offline:
        raise HubNotReached(repo, None, f"{cached}; and the hub is not asked: offline")
    try:
        import huggingface_hub
    except ImportError:
        raise HubNotReached(repo, None, f"{cached}; for the hub, pip install huggingface_hub") from None
    failed = unreachable()
    if failed:
        raise HubNotReached(repo, None, f"{cached}; and the hub {failed}")
    try:
        api = huggingface_hub.HfApi()
        return bounded(lambda: _read(api, repo, revision, file), f"{repo}'s headers", HEADER_SECONDS)
    except CheckpointError:
        raise
    except HubTooSlow as error:
        raise HubNotReached(repo, None, f"{cached}; and the hub {error}") from None
    except Exception as error:  # its transport's exceptions differ between versions
        raise CheckpointError(repo, None, f"the hub {reason(error)}") from None


def _split_file(name: str) -> tuple[str, str | None]:
    repo, _, file = name.rpartition("/")
    return (repo, file) if is_repo_file(name) else (name, None)


def _read(api: Any, repo: str, revision: str | None, file: str | None) -> Checkpoint:
    sizes = {
        item.path: item.size
        for item in api.list_repo_tree(repo, revision=revision)
        if getattr(item, "size", None) is not None
    }
    if file is not None and file not in sizes:
        raise CheckpointError(repo, None, f"has no file {shown(file)} at its top level")
    if file is None and ("model.safetensors" in sizes or INDEX in sizes):
        return _safetensors(repo, revision, sizes)
    if file is not None and file.endswith(".safetensors"):
        return join([_header(repo, file, revision, sizes[file])], repo, None, None, repo)
    first = gguf_models(sizes)
    if file is None and len(first) > 1:
        raise CheckpointError(repo, None, f"has {len(first)} GGUF models; name one, as {repo}/{first[0]}")
    if file is None and not first:
        raise CheckpointError(repo, None, f"has neither model.safetensors, {INDEX} nor a .gguf file")
    return _gguf(api, repo, revision, file or first[0], sizes)


def _safetensors(repo: str, revision: str | None, sizes: dict[str, int]) -> Checkpoint:
    """One file, or the shards of the index: of each its header."""
    if "model.safetensors" in sizes:
        return join([_header(repo, "model.safetensors", revision, sizes["model.safetensors"])], repo, None, None, repo)
    source = f"{repo}/{INDEX}"
    if sizes[INDEX] > MAX_HEADER:
        raise CheckpointError(source, None, f"has {sizes[INDEX]:,} bytes; at most {MAX_HEADER:,} are read")
    weights, total = parse_index(_span(repo, INDEX, revision, 0, sizes[INDEX]), source)
    names = sorted(set(weights.values()))
    missing = [name for name in names if name not in sizes]
    if missing:
        raise CheckpointError(source, None, f"names {shown(missing[0])}, which is not there")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = list(pool.map(lambda name: _header(repo, name, revision, sizes[name]), names))
    return join(parts, repo, total, weights, source)


def _header(
    repo: str, name: str, revision: str | None, size: int
) -> tuple[list[StoredTensor], StoredFile, dict[str, Any]]:
    """One file's header, by the same rules as that of a file on disk."""
    path = f"{repo}/{name}"
    content = _span(repo, name, revision, 0, min(_FIRST, size))
    length = safetensors_file.header_length(content[:8], size, path)
    if len(content) < 8 + length:
        content += _span(repo, name, revision, len(content), 8 + length)
    if len(content) < 8 + length:
        raise CheckpointError(path, len(content), _LESS)
    entries, metadata = parse_header(content[8 : 8 + length], path, name)
    safetensors_file.check_layout(entries, path, 8 + length, size)
    return entries, StoredFile(name, size, 8 + length), metadata


def _gguf(api: Any, repo: str, revision: str | None, file: str, sizes: dict[str, int]) -> Checkpoint:
    names = split_names(file, repo)
    missing = [name for name in names if name not in sizes]
    if missing:
        raise CheckpointError(
            repo, None, f"{len(missing)} of {len(names)} parts are not there: {', '.join(missing[:4])}"
        )
    read = []
    for name in names:
        header = _remote_header(repo, name, revision, sizes[name])
        stored = gguf_file.stored_file(header, sizes[name], f"{repo}/{name}", name)
        read.append((header.entries, stored, header.metadata))
    if len(read) > 1:
        return join_splits(read, repo)
    return Checkpoint(f"{repo}/{file}", "gguf", read[0][0], [read[0][1]], read[0][2])


def _remote_header(repo: str, name: str, revision: str | None, size: int) -> gguf_file.Header:
    """Read windows of the file's start until the header is complete."""
    content = b""
    for content in _windows(repo, name, revision, size):
        try:
            return gguf_file.parse_header(content, size, f"{repo}/{name}", name)
        except gguf_file.NeedMore:
            continue
    raise CheckpointError(f"{repo}/{name}", len(content), _LESS)


def _windows(repo: str, name: str, revision: str | None, size: int) -> Iterator[bytes]:
    content, want = b"", _WINDOW
    while True:
        want = min(want, size, gguf_file.MAX_HEADER)
        content += _span(repo, name, revision, len(content), want)
        yield content
        if len(content) < want or want in (size, gguf_file.MAX_HEADER):
            return
        want *= 4


def _span(repo: str, name: str, revision: str | None, first: int, end: int) -> bytes:
    """The bytes [first, end) of a file, never more of them, whatever the server sends."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    if end <= first:
        return b""
    # packed bytes have no ranges, and would unpack to more than was asked for
    span = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={first}-{end - 1}"}
    with stream(hf_hub_url(repo, name, revision=revision), span) as response:
        hf_raise_for_status(response)
        # A server without ranges sends the whole file: of that only the start is read.
        if response.status_code != 206 and first:
            raise CheckpointError(f"{repo}/{name}", first, "the server does not honour range requests")
        return limited(response, end - first)


def fetch(repos: Iterable[str], dest: str) -> list[Fetched]:
    """Save each repository's config.json as ``dest/org--name.json``, and what lies beside it that a plan reads.

    Beside it: hf_quant_config.json.  The index is read for its total_size and not kept.
    Raises `CheckpointError` for the first repository that cannot be had.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError("the hub", None, "pip install huggingface_hub, then fetch again") from None
    failed = "is not asked: offline" if is_offline() else unreachable()
    if failed:
        raise CheckpointError("fetch", None, f"the hub {failed}")
    os.makedirs(dest, exist_ok=True)
    fetched = []
    for repo in repos:
        if not is_model_id(repo):
            raise CheckpointError(shown(repo), None, "invalid repository id; write org/name")
        try:
            fetched.append(bounded(functools.partial(_fetch, huggingface_hub, repo, dest), repo, 4 * FILE_SECONDS))
        except CheckpointError:
            raise
        except HubTooSlow as error:
            raise HubNotReached(repo, None, f"the hub {error}") from None
        except Exception as error:
            raise CheckpointError(repo, None, f"the hub {reason(error)}") from None
    return fetched


def _fetch(hub: Any, repo: str, dest: str) -> Fetched:
    stem = os.path.join(dest, repo.replace("/", "--"))
    saved = []
    for name, target in (("config.json", stem + ".json"), ("hf_quant_config.json", stem + ".hf_quant_config.json")):
        content = _optional(hub, repo, name)
        if content is None:
            if name == "config.json":
                what = "has no config.json: a GGUF or adapter repository? name the base model"
                raise CheckpointError(repo, None, what)
            continue
        _check_json(content, f"{repo}/{name}")
        _save(target, content)
        saved.append(target)
    index = _optional(hub, repo, INDEX)
    total = parse_index(index, f"{repo}/{INDEX}")[1] if index is not None else None
    return Fetched(repo, saved[0], total, tuple(saved))


def _save(path: str, content: bytes) -> None:
    """Write a file at once: a full disk leaves what was there before."""
    beside = f"{path}.part"
    try:
        with open(beside, "wb") as stream:
            stream.write(content)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _optional(hub: Any, repo: str, name: str) -> bytes | None:
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        within(repo, name, MAX_HEADER if name == INDEX else MAX_CONFIG_BYTES)
        path = hub.hf_hub_download(repo, name)
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None
    with open(path, "rb") as stream:
        return stream.read(MAX_HEADER)


def _check_json(content: bytes, source: str) -> None:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(source, None, f"is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(source, None, "is not a JSON object")
