"""Save models' config.json files from the hub, and print each index's total_size beside the count.

They go into the Hugging Face cache, where every command finds them without a network;
with --to also into a folder, to carry to another machine (pass the file's path there).
"""

from __future__ import annotations

import tempfile
from typing import Any

from membudget.checkpoint import CheckpointError
from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares
from membudget.cli.commands.common import InputError, NotHere
from membudget.model import UnknownModelType, build
from membudget.sources.hub import fetch
from membudget.sources.locate import ModelNotFound, locate
from membudget.sources.names import is_model_id
from membudget.text.sanitize import shown


def options(parser: Declares) -> None:
    """The arguments of `membudget fetch`."""
    parser.add_argument("repos", metavar="REPO", nargs="*", help="a hub id, for example Qwen/Qwen3-8B; one or more")
    parser.add_argument("--to", metavar="DIR", help="also write ORG--NAME.json files there")


def run(args: Arguments) -> Result:
    """Fetch every repository, in order."""
    if not args.repos:
        raise InputError("fetch what? name at least one hub id, for example Qwen/Qwen3-8B")
    for repo in args.repos:
        if not is_model_id(repo):
            raise InputError(f"invalid hub id {shown(repo)}; write org/name")
    fetched = [_fetch(repo, args.to) for repo in args.repos]
    return Result(0, {"fetched": fetched}, lambda: "\n".join(_line(item) for item in fetched))


def _fetch(repo: str, folder: str | None) -> dict[str, Any]:

    with tempfile.TemporaryDirectory(prefix="membudget-") as scratch:
        try:
            (found,) = fetch([repo], folder or scratch)
        except CheckpointError as error:
            return _without_hub(repo, folder, error)
        except OSError as error:
            raise InputError(f"--to: {folder}: cannot be written: {error.strerror or error}") from None
        document: dict[str, Any] = {"model": repo, "files": list(found.files) if folder else [], "source": "hub"}
        document |= {"params": None, "checkpoint": None, "total_size": found.total_size, "note": ""}
        try:
            count = build(found.config, repo).count
            document |= {"params": count.params, "checkpoint": count.checkpoint}
        except UnknownModelType as error:
            document["note"] = str(error)
        return document


def _without_hub(repo: str, folder: str | None, error: CheckpointError) -> dict[str, Any]:
    """The hub does not answer: what is here already serves as well, unless a copy was asked for."""
    try:
        found = locate(repo, offline=True)
    except ModelNotFound:
        raise NotHere(str(error)) from None
    if folder is not None or found.config is None:
        raise NotHere(str(error))
    count = build(found.config, repo).count
    document: dict[str, Any] = {"model": repo, "files": [], "source": found.source, "params": count.params}
    return document | {"checkpoint": count.checkpoint, "total_size": None, "note": f"the hub was not asked: {error}"}


def _line(item: dict[str, Any]) -> str:
    parts = [f"{item['model']}: {item['source']}"]
    if item["params"] is not None:
        parts.append(f"{item['params']:,} parameters")
    if item["total_size"] is not None:
        parts.append(f"total_size {item['total_size']:,} B")
    parts += [f"wrote {', '.join(item['files'])}"] if item["files"] else []
    parts += [item["note"]] if item["note"] else []
    return "; ".join(parts)
