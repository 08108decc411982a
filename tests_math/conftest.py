"""What the arithmetic tests share: real configs by hub id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.model import Model, build

MODELS = Path(__file__).parents[1] / "fixtures" / "models"


@pytest.fixture(scope="session")
def raw_config() -> Callable[[str], dict[str, Any]]:
    """The content of a shipped config.json, by hub id."""

    def read(name: str) -> dict[str, Any]:
        content = json.loads((MODELS / f"{name.replace('/', '--')}.json").read_text(encoding="utf-8"))
        assert isinstance(content, dict)
        return content

    return read


@pytest.fixture(scope="session")
def model(raw_config: Callable[[str], dict[str, Any]]) -> Callable[[str], Model]:
    """A shipped model, by hub id; built once a session."""
    built: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in built:
            built[name] = build(raw_config(name), name)
        return built[name]

    return get
