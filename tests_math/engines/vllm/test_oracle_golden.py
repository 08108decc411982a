"""The arithmetic equals vLLM's own answers for full-size models: fixtures/oracle, made by tools/golden_pool.py."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.oracle.asking import find_python, text_only
from membudget.engines.vllm.pool.plan import PoolError, PoolRequest, plan_pool
from membudget.model import Model, build

pytestmark = pytest.mark.math
FIXTURES = Path(__file__).parents[3] / "fixtures"
TABLES = sorted((FIXTURES / "oracle").glob("pool-*.json"))

#: vLLM's engine arguments by the names that `PoolRequest` gives them.
ARGUMENTS = {
    "block_size": "block_size",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "async_scheduling": "async_scheduling",
    "enable_prefix_caching": "prefix_caching",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
}


@cache
def table(path: Path) -> dict[str, Any]:
    """One version's answers."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@cache
def model_of(name: str) -> Model:
    """The text model that vLLM was asked about."""
    folders = (FIXTURES.parent / "membudget" / "data" / "models", FIXTURES / "oracle" / "configs")
    path = next(folder / f"{name}.json" for folder in folders if (folder / f"{name}.json").exists())
    return build(text_only(json.loads(path.read_text(encoding="utf-8"))), name)


def request(version: str, platform: str, asked: dict[str, Any], row: dict[str, Any]) -> PoolRequest:
    """The question of one row."""
    engine = dict(asked["engine"])
    off = engine.pop("disable_hybrid_kv_cache_manager", False)
    states = {"mamba_ssm_cache_dtype": asked["mamba_ssm_cache_dtype"]} if "mamba_ssm_cache_dtype" in asked else {}
    return PoolRequest(
        model_of(asked["model"]),
        asked["available"],
        row["max_model_len"],
        row["max_num_batched_tokens"],
        row["kv_cache_dtype"],
        tp=asked["tp"],
        pp=asked["pp"],
        version=version,
        platform=platform,
        hybrid_manager=False if off else None,
        encoder_tokens=asked.get("encoder_tokens"),
        **{ARGUMENTS[name]: value for name, value in {**states, **engine}.items()},
    )


def cases() -> list[Any]:
    """Every question of every table: one test a model, version and setting."""
    out = []
    for path in TABLES:
        content = table(path)
        for number, asked in enumerate(content["asked"]):
            settings = "".join(f" {name}={value}" for name, value in asked["engine"].items())
            size = asked["available"] / 2**30
            label = f"{content['version']} {asked['model']} tp{asked['tp']} pp{asked['pp']} {size:g}GiB{settings}"
            out.append(pytest.param(path, number, id=label.replace(" ", "-")))
    return out


@pytest.mark.parametrize(("path", "number"), cases())
def test_arithmetic_equals_vllm(path: Path, number: int) -> None:
    """Block size, groups, bytes a block, blocks, tokens, concurrency and refusals, row by row."""
    content = table(path)
    asked = content["asked"][number]
    assert asked["rows"]
    for values in asked["rows"]:
        row = dict(zip(content["columns"], values, strict=True))
        question = request(content["version"], content["platform"], asked, row)
        if row["error"] is not None and "NotImplementedError" in row["error"]:
            with pytest.raises(PoolError, match=r"fails to start|one page size"):
                plan_pool(question)
            continue
        pool = plan_pool(question)
        if row["error"] is not None:
            assert pool.error is not None, row
            assert pool.error in row["error"]
            continue
        ours = {
            "block_size": pool.block_size,
            "groups": len(pool.groups),
            "bytes_per_block": pool.bytes_per_block,
            "num_blocks": pool.num_blocks,
            "tokens": pool.tokens,
            "max_concurrency": pool.max_concurrency,
        }
        expected = {name: row[name] for name in ours if row[name] is not None}
        assert {name: ours[name] for name in expected} == expected, (row, pool.why)
        assert pool.starts


def test_tables_are_as_large_as_they_should_be() -> None:
    """20 and more full-size models on 0.32.0, each with 2 batched x 3 lengths x 2 dtypes, and two older versions."""
    newest = next(table(path) for path in TABLES if path.name == "pool-0.32.0.json")
    grids = [asked for asked in newest["asked"] if len(asked["rows"]) >= 12 and not asked["engine"]]
    assert len({asked["model"] for asked in grids}) >= 20
    older = {table(path)["version"] for path in TABLES} - {"0.32.0"}
    assert len(older) >= 2


def test_text_model_of_a_multimodal_config() -> None:
    """A wrapper's text model becomes a config of its own, with its dtype and architecture; others are unchanged."""
    wrapper = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {"model_type": "gemma3_text"}}
    assert text_only(wrapper) == {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "torch_dtype": "bfloat16",
    }
    plain = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert text_only(plain) == plain


def test_python_of_a_vllm_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--vllm takes a python, its environment, or a vllm command; else the variable counts; else there is none."""
    binary = tmp_path / "bin"
    binary.mkdir()
    for name in ("python", "vllm"):
        (binary / name).write_text("#!/bin/sh\n")
        (binary / name).chmod(0o755)
    monkeypatch.delenv("MEMBUDGET_VLLM", raising=False)
    assert find_python() is None
    assert find_python(str(tmp_path)) == str(binary / "python")
    assert find_python(str(binary / "python")) == str(binary / "python")
    assert find_python(str(binary / "vllm")) == str(binary / "python")
    assert find_python(str(tmp_path / "nothing")) is None
    monkeypatch.setenv("MEMBUDGET_VLLM", str(tmp_path))
    assert find_python() == str(binary / "python")
