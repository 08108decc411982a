"""Inputs that once gave a wrong value, no end or a crash, on the command line: the right value or one clear error."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.suite

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "fixtures" / "hostile"
TINY = ROOT / "fixtures" / "tiny"
Run = Callable[..., tuple[int, str, str]]
#: What count or plan says of each; the values are other witnesses' (the folder's README).
SAID = {
    "longcat-flash-chat.config.json": "560,664,958,976",
    "falcon-mamba-7b.config.json": "7,272,665,088",
    "bloom-560m.config.json": "559,214,592",
    "doge-moe.config.json": "1,417,880,704",
    "hunyuan-a13b.config.json": "80,393,183,232",
    "glm5-index_topk_pattern.config.json": "743,189,562,624",
    "santacoder.config.json": "1,124,886,528",
    "mlx-4bit.config.json": "4.52 GB",
    "gptq-subset.config.json": "15.27 GB",
    "auto-round-extra-config.config.json": "14.08 GB",
    "gguf-block-count-2e31-llama.gguf": "block_count is 2,147,483,648",
    "gguf-block-count-2e31-gemma3.gguf": "block_count is 2,147,483,648",
    "gguf-block-count-2e31-gemma3-mem.gguf": "block_count is 2,147,483,648",
    "gguf-block-count-2e63-gemma3.gguf": "block_count is 9,223,372,036,854,775,808",
    "gguf-block-count-2e63-gemma3-mem.gguf": "block_count is 9,223,372,036,854,775,808",
    "gguf-lfm2-zero-heads.gguf": "block_count is 2, and the file has tensors of 0 layers",
    "gguf-qwen35-zero-interval.gguf": "block_count is 2, and the file has tensors of 0 layers",
}


def test_every_file_is_asked() -> None:
    """The folders of records have tests of their own (tests_math/history/test_hostile_records.py)."""
    assert {path.name for path in HOSTILE.iterdir() if path.is_file()} == {*SAID, "README.md"}


@pytest.mark.parametrize("name", SAID)
def test_right_value_or_one_error(run: Run, name: str) -> None:
    """In less than a second of this process."""
    weights = SAID[name].endswith("GB")
    command = ["formats", str(HOSTILE / name), "--json"] if weights else ["count", str(HOSTILE / name)]
    before = time.process_time()
    code, out, err = run(*command)
    assert time.process_time() - before < 1
    if weights:
        document = json.loads(out)
        sizes = {row["format"]: row["weights"] for row in document["formats"]}
        assert f"{sizes[document['declared'] + ' (declared)'] / 1e9:.2f} GB" == SAID[name]
    elif name.endswith(".gguf"):
        assert (code, SAID[name] in err, err.count("\n")) == (2, True, 1)
    else:
        assert (code, SAID[name] in out) == (0, True)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ():
        yield from _places(value[key], (*at, key))


#: A value of every kind and size that JSON has.
BAD: list[Any] = [
    None, [], {}, "x", "", -1, 0, 1.5, True, False, 10**40, 2**31, 2**63, 1e300, float("nan"), float("inf"), "9" * 5000,
    [None], [{}], [0], [[1]], [10**9], ["x"] * 1000, {"a": None}, {"": {}}, "bfloat16", 1_000_003,
]  # fmt: skip
MODELS = [
    *sorted(TINY.glob("*.json")),
    *sorted(HOSTILE.glob("*.config.json")),
    *sorted((ROOT / "membudget" / "data" / "models").glob("*--*.json"))[::7],
]


def _ends_well(run: Run, folder: Path, seed: int, many: int) -> None:
    """Every key of a config at random with a value of another kind: an answer or one short error, soon."""
    rng, path = random.Random(seed), folder / "config.json"
    for _ in range(many):
        source = rng.choice(MODELS)
        raw = json.loads(source.read_text(encoding="utf-8"))
        changes = []
        for at in rng.sample(list(_places(raw)), 2):
            inner, value = raw, rng.choice(BAD)
            for key in at[:-1]:
                inner = inner[key] if isinstance(inner, dict) and key in inner else {}
            if isinstance(inner, dict) and at[-1] in inner:
                inner[at[-1]] = value
                changes.append((at, value))
        path.write_text(json.dumps(raw), encoding="utf-8")
        engine = rng.choice(["vllm", "llama_cpp", "transformers"])
        words = ["plan", str(path), "--machine", "h100", "--engine", engine, "--ctx", "4096"]
        before = time.process_time()
        code, _, err = run(*words, *(["--format", "q4_k_m"] if engine == "llama_cpp" else []))
        said = (source.name, engine, changes)
        assert code in (0, 1, 2, 3), said
        assert time.process_time() - before < 4, said
        assert len(err) < 3000, said


def test_any_key_of_any_kind(run: Run, tmp_path: Path) -> None:
    """A sample; the slow test draws more."""
    _ends_well(run, tmp_path, 20, 40)


@pytest.mark.slow
def test_many_keys_of_any_kind(run: Run, tmp_path: Path) -> None:
    """Thousands of configs, others every day."""
    _ends_well(run, tmp_path, int(time.time()) // 86_400, 3000)
