"""What the arithmetic tests share: real configs by hub id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from membudget.cli.main import main
from membudget.model import Model, build
from tests_math.collecting import ignored
from tests_math.doctor.doctor_machine import put, spark  # noqa: F401  (fixtures of the doctor's tests)

MODELS = Path(__file__).parents[1] / "membudget" / "data" / "models"

# No test fails because a machine is busy; the first draw of a text alone takes seconds in a new clone.
settings.register_profile("membudget", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("membudget")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of another tier than `-m` asks for are not imported."""
    return ignored(collection_path, config)


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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run one command line: exit code, stdout, stderr.  Never asks the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", "/nonexistent-cache")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(list(argv))
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


@pytest.fixture
def ask(run: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, Any]]:
    """Run one command line with --json: exit code and the one document on stdout."""

    def call(*argv: str) -> tuple[int, Any]:
        code, out, err = run(*argv, "--json")
        assert err == ""
        return code, json.loads(out)

    return call
