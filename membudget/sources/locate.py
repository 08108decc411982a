"""From what a user types to a config: a path, a shipped fixture, the Hugging Face cache, the hub.

In that order.  Names come from strangers (budget files, command lines): an id can
never leave the folder that is searched, and no access token is ever shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from json import loads
from typing import Any

from membudget.checkpoint import Checkpoint, CheckpointError, config_of, read_path
from membudget.checkpoint.reading import gguf_models, unfinished
from membudget.data import data_path
from membudget.errors import NOT_AVAILABLE, WRONG_INPUT
from membudget.model.config import MAX_CONFIG_BYTES, Config, ConfigError, load
from membudget.sources.cache import cache_folder, is_offline, snapshot
from membudget.sources.connection import reason, unreachable
from membudget.sources.hub import read_repo
from membudget.sources.names import is_model_id, is_repo_file
from membudget.sources.small import HubBusy, within
from membudget.sources.waiting import FILE_SECONDS, HubTooSlow, bounded
from membudget.text.sanitize import shown, without_tokens

_QUANT = ".hf_quant_config"


class ModelNotFound(ConfigError):
    """A model that is in none of the places searched.

    reachable: the hub was asked and answered, so the name itself is wrong (or
    closed to us); False: offline, the model may well exist.
    """

    def __init__(self, message: str, reachable: bool) -> None:
        super().__init__(message)
        self.reachable = reachable
        self.exit_code = WRONG_INPUT if reachable else NOT_AVAILABLE


@dataclass(frozen=True)
class Located:
    """Where a model was found."""

    #: Of its text model; None where only weights lie (`kind` safetensors without a config.json).
    config: Config | None
    #: The place, in words, for people.
    source: str
    #: ``path``, ``fixture``, ``cache``, ``hub``, ``gguf`` or ``safetensors``.
    kind: str
    #: The file or folder; for a checkpoint, what `membudget.checkpoint.read_path` takes.
    path: str
    #: The hub's id, where there is one.
    repo: str | None = None
    #: The content of ModelOpt's hf_quant_config.json beside the config.
    hf_quant_config: dict[str, Any] | None = None
    #: The headers, where they had to be read to know the config (GGUF).
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        if self.config is not None and self.hf_quant_config is not None:
            self.config.hf_quant_config = self.hf_quant_config


def locate(name: str, *, offline: bool | None = None) -> Located:
    """Find the model that `name` stands for.

    name: a folder, config.json, .gguf or .safetensors file, or a hub id.
    offline: never ask the hub; None asks unless HF_HUB_OFFLINE is set.
    Raises `ModelNotFound` that says where it looked, or `ConfigError`.
    """
    _refuse_odd(name)
    if is_repo_file(name) and not os.path.exists(name):
        return _from_headers(name, offline)
    if _is_path(name):
        return _from_path(name)
    if not is_model_id(name):
        raise ConfigError(
            f"{shown(name)} is neither an existing path nor a model id: an id is org/name of letters, digits, '_', '.' "
            "and '-', for example Qwen/Qwen3-8B"
        )
    looked = ["the shipped configs"]
    found = _from_fixtures(name) or _from_cache(name, looked)
    if found is not None:
        return found
    if offline is None:
        offline = is_offline()
    if offline:
        raise _not_found(name, looked, "not asked: offline", reachable=False)
    return _from_hub(name, looked)


def fixture_ids() -> list[str]:
    """The ids of all shipped configs, sorted."""
    return sorted(_id(stem) for stem in _stems(data_path("models")))


def _refuse_odd(name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("the model is empty: write a hub id such as Qwen/Qwen3-8B, or a path")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise ConfigError(f"{shown(name)} has a control character (newline, tab, NUL) in it: no model id or path has")
    if without_tokens(name) != name:
        raise ConfigError(f"{shown(name)}: contains an access token or a login, not a model; it is not printed or sent")


def _is_path(name: str) -> bool:
    if name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or name in (".", ".."):
        return True
    if os.path.isdir(name):
        # A folder that merely shares its name with a hub id (org/name) is not a model.
        return not is_model_id(name) or _holds_model(name)
    return os.path.exists(name) or name.lower().endswith((".json", ".gguf", ".safetensors"))


def _holds_model(folder: str) -> bool:
    try:
        return any(entry == "config.json" or entry.endswith((".gguf", ".safetensors")) for entry in os.listdir(folder))
    except OSError:
        return False


def _from_path(name: str) -> Located:
    path = os.path.expanduser(name)
    if not os.path.exists(path):
        raise ConfigError(f"{shown(name)}: no such file or folder")
    if os.path.isdir(path):
        return _from_folder(path, path, "path", None)
    if not os.path.isfile(path):
        raise ConfigError(f"{shown(name)}: not a regular file: pipes and devices are not read")
    if path.endswith(".incomplete"):
        raise ConfigError(f"{shown(name)}: a download that stopped: fetch the file again")
    if path.lower().endswith(".gguf") or _starts_with(path, b"GGUF"):
        return _gguf(path, path, None)
    if path.lower().endswith((".safetensors", ".safetensors.index.json")):
        folder = os.path.dirname(path)
        beside = os.path.join(folder, "config.json")
        config = load(beside) if os.path.isfile(beside) else None
        return Located(config, path, "safetensors", path, None, _quant(folder))
    if path.lower().endswith((".bin", ".pt", ".pth", ".ckpt")):
        raise ConfigError(f"{path}: a pickle is not read; pass the config.json, a .safetensors or a .gguf file")
    return Located(load(path), path, "path", path, None, _quant(os.path.dirname(path)))


def _from_folder(folder: str, source: str, kind: str, repo: str | None) -> Located:
    """A folder with a config.json; else one with a single GGUF model, or safetensors files."""
    config = os.path.join(folder, "config.json")
    if os.path.isfile(config):
        return Located(load(config, config if kind == "path" else source), source, kind, folder, repo, _quant(folder))

    files = sorted(os.listdir(folder))
    first = gguf_models(files)
    if len(first) == 1:
        return _gguf(os.path.join(folder, first[0]), source if repo else os.path.join(folder, first[0]), repo)
    if first:
        raise ConfigError(f"{source}: has {len(first)} GGUF models; pass one of them: {', '.join(first[:8])}")
    if any(file.endswith((".safetensors", ".safetensors.index.json")) for file in files):
        return Located(None, source, "safetensors", folder, repo, _quant(folder))
    hint = "; adapter_config.json is a LoRA adapter's: pass the base model" if "adapter_config.json" in files else ""
    hint += unfinished(files)
    raise ConfigError(f"{source}: no config.json, .safetensors or .gguf file in it{hint}")


def _starts_with(path: str, magic: bytes) -> bool:
    """Ollama and llama.cpp keep GGUF files under names without a suffix."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(magic)) == magic
    except OSError:
        return False


def _gguf(path: str, source: str, repo: str | None) -> Located:
    try:
        checkpoint = read_path(path)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    return Located(config_of(checkpoint, source), source, "gguf", path, repo, None, checkpoint)


def _quant(folder: str, file: str = "hf_quant_config.json") -> dict[str, Any] | None:
    path = os.path.join(folder, file)
    if not os.path.exists(path):
        return None
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: not a regular file: pipes and devices are not read")
    try:
        if os.path.getsize(path) > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: too large for a hf_quant_config.json")
        with open(path, encoding="utf-8-sig") as stream:
            content = loads(stream.read())
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a hf_quant_config.json is a JSON object")
    return content


def _stems(folder: str) -> list[str]:
    return [
        file[:-5]
        for file in os.listdir(folder)
        if file.endswith(".json") and "--" in file and not file.endswith(_QUANT + ".json")
    ]


def _id(stem: str) -> str:
    return stem.replace("--", "/", 1)


def _from_fixtures(name: str) -> Located | None:
    try:
        folder = data_path("models")
    except FileNotFoundError:
        return None
    stem = name.replace("/", "--")
    path = os.path.join(folder, stem + ".json")
    if "/" not in name or not os.path.isfile(path):
        stems = {stem.casefold(): stem for stem in _stems(folder)}
        known = stems.get(stem.casefold()) or stems.get(_alias(folder, name).casefold()) or _short(name, stems.values())
        if known is None:
            return None
        stem, path = known, os.path.join(folder, known + ".json")
    source = f"{_id(stem)} (shipped config)"
    return Located(load(path, source), source, "fixture", path, _id(stem), _quant(folder, stem + _QUANT + ".json"))


def _short(name: str, stems: Iterable[str]) -> str | None:
    """The stem of the one shipped config whose id is ORG/`name`, in any case; `ConfigError` where there are several."""
    found = sorted(stem for stem in stems if stem.partition("--")[2].casefold() == name.casefold())
    if len(found) > 1:
        raise ConfigError(
            f"{shown(name)} is the name of several models: {', '.join(map(_id, found))}; write one of them"
        )
    return found[0] if found else None


def is_known(name: str) -> bool:
    """Whether this is a model without asking the hub: a path, a hub id with its organisation, a shipped short name."""
    if _is_path(name) or "/" in name:
        return True
    try:
        return _from_fixtures(name) is not None
    except ConfigError:
        return True


def _alias(folder: str, name: str) -> str:
    """The stem of the shipped config for an alias; other names come back unchanged."""
    path = os.path.join(folder, "ALIASES.json")
    if not os.path.isfile(path):
        return name
    with open(path, encoding="utf-8") as stream:
        aliases = {alias.casefold(): model for alias, model in loads(stream.read()).items() if isinstance(model, str)}
    return str(aliases.get(name.casefold(), name)).replace("/", "--")


def _from_cache(name: str, looked: list[str]) -> Located | None:
    looked.append(f"the cache at {cache_folder()}")
    folder = snapshot(name)
    if folder is None or not (_holds_model(folder) or _names_index(folder)):
        return None
    repo = os.path.basename(os.path.dirname(os.path.dirname(folder)))
    found = repo.removeprefix("models--").replace("--", "/", 1)
    return _from_folder(folder, f"{found} (Hugging Face cache)", "cache", found)


def _names_index(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "model.safetensors.index.json"))


def _from_hub(name: str, looked: list[str]) -> Located:
    """config.json (and hf_quant_config.json where there is one), through huggingface_hub."""
    try:
        import huggingface_hub  # noqa: F401
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise _not_found(name, looked, "not asked: pip install huggingface_hub", reachable=False) from None

    failed = unreachable()
    if failed:
        raise _not_found(name, looked, failed, reachable=False)
    try:
        path = bounded(lambda: _small(name, "config.json"), f"{name}/config.json", FILE_SECONDS)
        with suppress(EntryNotFoundError):  # most repositories have none
            bounded(lambda: _small(name, "hf_quant_config.json"), f"{name}/hf_quant_config.json", FILE_SECONDS)
    except LocalEntryNotFoundError as error:
        raise _not_found(name, looked, reason(error), reachable=False) from None
    except EntryNotFoundError:  # as in repositories that only hold GGUF files
        return _from_headers(name, False)
    except (HubTooSlow, HubBusy) as error:
        raise _not_found(name, looked, str(error), reachable=False) from None
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:  # its transport's exceptions differ between versions
        reachable = "NotFound" in type(error).__name__ or "Gated" in type(error).__name__
        raise _not_found(name, looked, reason(error), reachable) from None
    source = f"{name} (hub)"
    folder = os.path.dirname(path)
    return Located(load(path, source), source, "hub", folder, name, _quant(folder))


def _small(name: str, file: str) -> str:
    """The path of a small file in the cache, saved there once its size is known to be one."""
    from huggingface_hub import hf_hub_download

    within(name, file, MAX_CONFIG_BYTES)
    return str(hf_hub_download(name, file))


def _from_headers(name: str, offline: bool | None) -> Located:
    """A repository without a config.json, or one file of one: what the GGUF header says."""
    try:
        checkpoint = read_repo(name, offline=offline)
    except CheckpointError as error:
        raise ModelNotFound(
            f"{error} (an adapter's repository? name the base model)", reachable=getattr(error, "reachable", True)
        ) from None
    repo = name if is_model_id(name) else name.rpartition("/")[0]
    if checkpoint.kind == "gguf":
        return Located(config_of(checkpoint), f"{name} (hub)", "hub", checkpoint.source, repo, None, checkpoint)
    return Located(None, f"{name} (hub)", "safetensors", checkpoint.source, repo, None, checkpoint)


def _not_found(name: str, looked: list[str], hub: str, reachable: bool) -> ModelNotFound:
    try:
        ids = fixture_ids()
    except FileNotFoundError:
        ids = []
    by_fold = {known.casefold(): known for known in ids} | {known.split("/")[-1].casefold(): known for known in ids}
    near = list(dict.fromkeys(by_fold[match] for match in get_close_matches(name.casefold(), by_fold, 5, 0.5)))
    text = f"{shown(name)} was not found. Looked in {', '.join(looked)}; the hub ({hub})."
    if near:
        text += f" Near are: {', '.join(near[:3])}."
    if os.path.isdir(name):
        text += " The folder of that name that is here has no config.json, .safetensors or .gguf file in it."
    if not reachable:
        saves = f"`membudget fetch {name}` saves its config.json" if "/" in name else "write its hub id, ORG/NAME"
        text += f" On a connected machine {saves}; or pass a path to one."
    return ModelNotFound(text, reachable)
