"""The local cache of the hub, as huggingface_hub keeps it; it is read here, never written."""

from __future__ import annotations

import os

from membudget.model.config import ConfigError
from membudget.sources.names import is_word

_YES = ("1", "ON", "YES", "TRUE")


def is_offline() -> bool:
    """Whether the environment says that the hub must not be asked."""
    return any(os.environ.get(key, "").upper() in _YES for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cache_folder() -> str:
    """The hub cache of this user, as huggingface_hub finds it."""
    env = os.environ
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(key):
            return os.path.expanduser(os.path.expandvars(env[key]))
    home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.join(os.path.expanduser(os.path.expandvars(home)), "hub")


def snapshot(name: str) -> str | None:
    """The cached snapshot of a repository: the one that refs/main names, or the only one there is."""
    root = cache_folder()
    wanted = "models--" + name.replace("/", "--")
    repo = os.path.join(root, wanted)
    if not os.path.isdir(repo):
        try:
            same = [entry for entry in os.listdir(root) if entry.casefold() == wanted.casefold()]
        except OSError:
            return None
        if not same:
            return None
        repo = os.path.join(root, same[0])
    snapshots = os.path.join(repo, "snapshots")
    ref = os.path.join(repo, "refs", "main")
    if os.path.exists(ref) and not os.path.isfile(ref):
        raise ConfigError(f"{ref}: not a regular file: pipes and devices are not read")
    try:
        with open(ref, encoding="ascii", errors="replace") as stream:
            commit = stream.read(200).strip()
        if not is_word(commit):
            raise ConfigError(f"{repo}/refs/main: {commit[:40]!r} is not a commit; delete the folder and fetch again")
    except OSError:
        try:
            commits = os.listdir(snapshots)
        except OSError:
            return None
        if len(commits) != 1:
            return None
        commit = commits[0]
    folder = os.path.join(snapshots, commit)
    return folder if os.path.isdir(folder) else None
