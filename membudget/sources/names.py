"""Names of repositories on the hub: what may be one, and what never is."""

from __future__ import annotations


def is_model_id(name: str) -> bool:
    """Whether `name` may be a hub id; never true for what could leave a folder."""
    parts = name.split("/")
    return len(name) <= 200 and len(parts) <= 2 and all(map(is_word, parts)) and ".." not in name and "--" not in name


def is_word(text: str) -> bool:
    """One part of an id, as the hub allows it: letters, digits, ``_``, and behind the first also ``.`` and ``-``."""
    if not text or text[0] in ".-" or not text.isascii():
        return False
    rest = text.replace("_", "").replace(".", "").replace("-", "")
    return not rest or rest.isalnum()


def is_repo_file(name: str) -> bool:
    """Whether `name` is a file of a repository: ``org/name/file.gguf``."""
    repo, _, file = name.rpartition("/")
    return file.endswith((".gguf", ".safetensors")) and "/" in repo and is_model_id(repo) and is_model_id(file)
