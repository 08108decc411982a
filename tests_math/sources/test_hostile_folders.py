"""Pipes, devices and half-loaded files where a model's files should be: named at once, never opened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.suite,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs"),
]

TINY = Path(__file__).parents[2] / "fixtures" / "tiny" / "llama.json"
Run = Callable[..., tuple[int, str, str]]
NOT_REGULAR = "not a regular file"


@pytest.mark.parametrize(
    ("pipe", "config", "said"),
    [
        ("config.json", False, "no config.json, .safetensors or .gguf file"),
        ("model.safetensors", False, NOT_REGULAR),
        ("model.safetensors", True, NOT_REGULAR),
        ("model.gguf", False, NOT_REGULAR),
        ("model.safetensors.index.json", True, NOT_REGULAR),
        ("hf_quant_config.json", True, NOT_REGULAR),
        ("other.safetensors.index.json", True, NOT_REGULAR),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device(run: Run, tmp_path: Path, kind: str, pipe: str, config: bool, said: str) -> None:
    """In place of any file of a model's folder; a pipe would wait for ever, /dev/zero never ends."""
    if config:
        shutil.copy(TINY, tmp_path / "config.json")
    if kind == "pipe":
        os.mkfifo(tmp_path / pipe)
    else:
        (tmp_path / pipe).symlink_to("/dev/zero")
    code, _, err = run("count", str(tmp_path))
    assert (code, said in err) == (2, True), err


@pytest.mark.parametrize(
    "name", ["model.safetensors.incomplete", "model-00001-of-00002.safetensors.incomplete", "m.gguf.part"]
)
def test_an_unfinished_download(run: Run, tmp_path: Path, name: str) -> None:
    """It is no weight file, and it is not passed over either."""
    (tmp_path / name).write_bytes(b"\0" * 100)
    code, _, err = run("count", str(tmp_path))
    assert (code, f"{name} is an unfinished download: finish it first" in err) == (2, True)
    shutil.copy(TINY, tmp_path / "config.json")
    code, _, err = run("count", str(tmp_path))
    assert (code, f"{name} is an unfinished download: finish it first" in err) == (2, True)
    assert run("count", str(tmp_path / "config.json"))[0] == 0


def test_a_pipe_in_the_cache(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """refs/main is read before anything else of a cached repository."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--model" / "refs").mkdir(parents=True)
    os.mkfifo(tmp_path / "models--org--model" / "refs" / "main")
    code, _, err = run("count", "org/model")
    assert (code, NOT_REGULAR in err) == (2, True)
