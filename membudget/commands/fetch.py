"""Save a model's config.json from the hub, for this machine's cache or for a machine without a network.

Looks where every command looks (shipped configs, the Hugging Face cache), then asks the hub.
"""

from __future__ import annotations

import os

from membudget.commands import Result
from membudget.commands.common import InputError
from membudget.locate import locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from membudget.commands.arguments import Arguments, Declares


def options(parser: Declares) -> None:
    """The arguments of `membudget fetch`."""
    parser.add_argument("model", metavar="MODEL", help="a hub id, for example Qwen/Qwen3-8B")
    parser.add_argument("--to", metavar="FILE", help="also write the config.json there; an existing file stays")
    parser.add_argument("--offline", action="store_true", help="never ask the hub")


def run(args: Arguments) -> Result:
    """Find it, and copy it if asked."""
    found = locate(args.model, offline=True if args.offline else None)
    if found.config is None:
        raise InputError(f"{args.model}: has no config.json, only weights")
    if args.to:
        _copy(found.config.raw, args.to)
    document = {"model": found.repo or args.model, "source": found.source, "kind": found.kind, "path": found.path}
    lines = [f"{found.source}: {found.path}"]
    if args.to:
        document["written"] = args.to
        lines.append(f"wrote {args.to}")
    return Result(0, document, lambda: "\n".join(lines))


def _copy(content: object, path: str) -> None:
    import json

    target = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(target, "x", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
    except FileExistsError:
        raise InputError(f"--to: {target} is there already and stays as it is") from None
    except OSError as error:
        raise InputError(f"--to: {target} cannot be written: {error.strerror or error}") from None
