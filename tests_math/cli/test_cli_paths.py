"""Paths of Windows and macOS, as far as they can be tried anywhere: drives, backslashes, cache folders."""

from __future__ import annotations

import ntpath
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.budgets import file as budget_file
from membudget.cli.commands import init
from membudget.cli.commands.arguments import parse
from membudget.cli.commands.check import options
from membudget.sources.cache import cache_folder
from membudget.sources.names import is_model_id

pytestmark = pytest.mark.math

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "path", ["C:\\budgets\\mine.yaml", "C:/budgets/mine.yaml", "\\\\server\\share\\mine.yaml", ".\\mine.yaml"]
)
def test_a_drive_is_part_of_the_value(path: str) -> None:
    """--machines=C:\\...: only the first equals sign divides, colons and backslashes stay."""
    for words in ([f"--machines={path}"], ["--machines", path]):
        found = parse("check", "", options, [*words, path])
        assert (found.machines, found.paths) == ([path], [path])


@pytest.mark.parametrize("name", ["C:\\models\\qwen", "C:/models/qwen", "..\\qwen", "D:", "a\\b"])
def test_a_windows_path_is_no_hub_id(name: str) -> None:
    """What has a drive or a backslash is never looked up on the hub."""
    assert not is_model_id(name)


def test_a_drive_makes_a_budgets_model_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are drives, `model: D:/models/qwen` is a folder."""
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "isabs", ntpath.isabs)
        assert budget_file._is_path("D:/models/qwen")
        assert budget_file._is_path("D:\\models\\qwen")
        assert not budget_file._is_path("Qwen/Qwen3-8B")


def test_init_on_another_drive(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_config: Callable[[str], dict[str, Any]]
) -> None:
    """No relative way leads from C: to D: the budget names the model by its whole path, and can be checked."""
    import json

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(raw_config("Qwen/Qwen3-8B")))
    monkeypatch.chdir(tmp_path)

    def refuse(path: str, start: str = "") -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    with monkeypatch.context() as patch:
        patch.setattr(init.os.path, "relpath", refuse)
        assert run("init", "./model", "--machine", "h100")[0] == 0
    (path,) = (tmp_path / "budgets").glob("*.yaml")
    assert f"model: {tmp_path / 'model'}".replace(os.sep, "/") in path.read_text().replace('"', "")
    assert run("check")[0] == 0


def test_the_next_command_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """cmd.exe has double quotes only."""
    words = ["membudget", "check", "my budgets\\a.yaml"]
    assert init._command(words) == "membudget check 'my budgets\\a.yaml'"
    monkeypatch.setattr(init.os, "name", "nt")
    assert init._command(words) == 'membudget check "my budgets\\a.yaml"'


def test_cache_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, then ~/.cache: as huggingface_hub does it on every system."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", "C:\\Users\\me"))
    assert ntpath.normpath(cache_folder()) == "C:\\Users\\me\\.cache\\huggingface\\hub"
    monkeypatch.setenv("HF_HOME", "D:\\hf")
    assert ntpath.normpath(cache_folder()) == "D:\\hf\\hub"
    monkeypatch.setenv("HF_HUB_CACHE", "E:\\hub")
    assert cache_folder() == "E:\\hub"
