"""The model that a log names: looked up on this machine, never on the hub."""

from __future__ import annotations

import re

from membudget.engines.vllm.logs.record import EngineLog
from membudget.errors import MembudgetError
from membudget.model import Model, build
from membudget.sources.locate import fixture_ids, locate

#: A folder of the hub's cache names its repository: ``models--Qwen--Qwen3-8B/snapshots/...``.
_CACHED = re.compile(r"(?:^|/)models--([\w.-]+?)--([\w.-]+?)(?:/|$)")


class NoConfig(MembudgetError):
    """A model whose config.json is not on this machine."""

    default_code = "no_config"


def named(name: str) -> Model:
    """The model of a name, path or folder of the hub's cache, without asking the hub.

    Raises `ConfigError` or `NoConfig` where it is not here, `OSError` where it cannot be read.
    """
    cached = _CACHED.search(name)
    name = f"{cached[1]}/{cached[2]}" if cached else name
    located = locate(name, offline=True)
    if located.config is None:
        raise NoConfig(f"{name} has no config.json here")
    return build(located.config, name)


def find_model(log: EngineLog) -> tuple[Model | None, str]:
    """The model that the log names, without asking the hub; and why it is not known."""
    name = log.model
    if name is None:
        return None, "the log does not name the model; pass --model"
    try:
        return named(name), ""
    except (MembudgetError, OSError) as error:
        first = str(error).split(". ")[0].splitlines()[0]
        return None, f"{first if name in first else f'{name}: {first}'}; pass --model{_near(name)}"


def _near(name: str) -> str:
    """A shipped model whose name the last part of a path begins with, as `` Qwen/Qwen3-8B``; "" for none."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    found = [model for model in fixture_ids() if last.startswith(model.rpartition("/")[2].lower())]
    return f" {max(found, key=len)}" if found and last else ""


def another_model(log: EngineLog, model: Model) -> bool:
    """Whether the log names a model that is known here and takes other bytes than `model`."""
    if not log.model or log.model == model.name:
        return False
    mine, _ = find_model(log)
    return mine is not None and (mine.count.params, mine.caches) != (model.count.params, model.caches)
