"""`plan` and `count` of files: the headers' own bytes, and what differs from the config."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget.model import build

pytestmark = pytest.mark.suite

Run = Callable[..., tuple[int, str, str]]
Ask = Callable[..., tuple[int, Any]]
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "dtype": "bfloat16",
    "max_position_embeddings": 512,
}


def tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, by name."""
    return {name: shape for tensor in build(config).tensors for name, shape in tensor.expand()}


def write(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """A safetensors file of bf16 zeros; returns the bytes of its tensors."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))
    return offset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_plan_of_a_folder_weighs_its_files(folder: Path, ask: Ask) -> None:
    """A folder and its weight file give the same plan, with the bytes that lie there."""
    size = write(folder / "model.safetensors", tensors(CONFIG))
    for name in (folder, folder / "model.safetensors"):
        code, plan = ask("plan", str(name), "--machine", "l4", "--engine", "arithmetic")
        assert code == 0
        assert plan["weights"] == size
        assert plan["format"] == "stored BF16"
        assert any("headers" in note for note in plan["notes"])
    _, named = ask("plan", str(folder), "--machine", "l4", "--format", "fp32", "--engine", "arithmetic")
    assert named["weights"] == 2 * size


def test_active_experts_are_read_only(folder: Path, ask: Ask) -> None:
    """A decode step reads half of the experts, and one row of the embedding."""
    shapes = tensors(CONFIG)
    size = write(folder / "model.safetensors", shapes)
    experts = sum(2 * math.prod(shape) for name, shape in shapes.items() if ".experts." in name)
    embed = 2 * math.prod(shapes["model.embed_tokens.weight"])
    _, plan = ask("plan", str(folder), "--machine", "l4", "--ctx", "8", "--engine", "arithmetic")
    read = plan["decode_upper_bound"]["bytes_read"] - plan["kv_cache"]
    assert read == size - experts // 2 - embed + embed // 96


def test_a_stored_head_of_a_tied_model_is_not_loaded(folder: Path, ask: Ask) -> None:
    """It lies in the file, and the plan says that it is not weighed."""
    shapes = tensors(CONFIG)
    size = write(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    _, plan = ask("plan", str(folder), "--machine", "l4")
    assert plan["weights"] == size - 2 * math.prod(shapes["lm_head.weight"])
    assert any("tied_head" in note for note in plan["notes"])


def test_one_shard_stands_for_all(folder: Path, ask: Ask) -> None:
    """Naming one file of several plans the whole model."""
    names = list(shapes := tensors(CONFIG))
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    size = sum(write(folder / file, {n: shapes[n] for n in half}) for file, half in zip(files, halves, strict=True))
    _, plan = ask("plan", str(folder / files[0]), "--machine", "l4")
    assert plan["weights"] == size


def test_other_commands_take_the_folder_too(
    folder: Path, ask: Ask, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """fleet, pool and init go by the format that the config declares; the first budget checks."""
    size = write(folder / "model.safetensors", tensors(CONFIG))
    _, fleet = ask("fleet", str(folder), "--ctx", "64")
    assert fleet["weights"] == size
    assert ask("pool", str(folder), "--machine", "l4", "--max-model-len", "64")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert run("init", str(folder), "--machine", "l4", "--ctx", "64")[0] == 0
    code, document = ask("check")
    assert (code, document["passed"]) == (0, 1)


def test_count_compares(folder: Path, ask: Ask, run: Run) -> None:
    """A complete file is exit code 0; a missing, an extra and a misshapen tensor are named, exit code 1."""
    shapes = tensors(CONFIG)
    write(folder / "model.safetensors", shapes)
    code, count = ask("count", str(folder))
    assert (code, count["stored"]["differences"]["ok"]) == (0, True)
    assert count["stored"]["bits_per_weight"] == 16
    head = shapes.pop("lm_head.weight")
    shapes["model.norm.weight"] = (31,)
    shapes["model.surprise"] = (7,)
    write(folder / "model.safetensors", shapes)
    code, count = ask("count", str(folder))
    differ = count["stored"]["differences"]
    assert code == 1
    assert differ["missing"] == [{"name": "lm_head.weight", "shape": list(head)}]
    assert [item["name"] for item in differ["extra"]] == ["model.surprise"]
    assert differ["wrong_shape"] == [{"name": "model.norm.weight", "expected": [32], "found": [31]}]
    _, out, _ = run("count", str(folder))
    assert "model.surprise" in out
    _, out, _ = run("plan", str(folder), "--machine", "l4")
    assert "not what the config says" in out


def test_weights_without_a_config(tmp_path: Path, ask: Ask, run: Run) -> None:
    """`count` says what the headers say; `plan` says what is missing."""
    size = write(tmp_path / "model.safetensors", tensors(CONFIG))
    code, count = ask("count", str(tmp_path / "model.safetensors"))
    assert (code, count["params"], count["stored"]["bytes"]) == (0, None, size)
    code, _, err = run("plan", str(tmp_path / "model.safetensors"), "--machine", "l4")
    assert code == 2
    assert "config.json" in err


def test_a_broken_file_is_one_message(folder: Path, run: Run) -> None:
    """A truncated header ends in one clear error."""
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    code, out, err = run("plan", str(folder), "--machine", "l4")
    assert (code, out) == (2, "")
    assert "model.safetensors" in err
    assert "Traceback" not in err


def test_fetch_offline(run: Run, tmp_path: Path) -> None:
    """Without a network a shipped config is reported; an unknown one, or a copy, is not available here."""
    assert run("fetch", "Qwen/Qwen3-8B")[0] == 0
    assert run("fetch", "nobody/nothing")[0] == 3
    assert run("fetch", "Qwen/Qwen3-8B", "--to", str(tmp_path))[0] == 3
    assert run("fetch")[0] == 2
    assert run("fetch", "../etc/passwd")[0] == 2
