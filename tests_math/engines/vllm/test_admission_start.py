"""Whether vLLM starts: the words of vLLM's own functions, at the edge of each rule.

fixtures/oracle/start.json: tools/golden_start.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.engines.vllm.admission import RULES, Refusal, StartQuestion, StartRule, max_num_seqs, starts
from membudget.engines.vllm.oracle.asking import text_only
from membudget.engines.vllm.pool.plan import PoolRequest, plan_pool
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.versions import READ, rules
from membudget.model import Config, build

pytestmark = pytest.mark.math
FIXTURES = Path(__file__).parents[3] / "fixtures"
MODELS = FIXTURES.parent / "membudget" / "data" / "models"
ASKED = json.loads((FIXTURES / "oracle" / "start.json").read_text(encoding="utf-8"))
GIB = 2**30


def config(**values: Any) -> Config:
    """A config with these keys."""
    return Config({"model_type": "llama", "max_position_embeddings": 131_072, **values}, "config")


def pool_of(name: str, available: int, **settings: Any) -> Pool:
    """A real model's pool."""
    model = build(text_only(json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))), name)
    return plan_pool(
        PoolRequest(model, available, **{"max_model_len": 32_768, "max_num_batched_tokens": 8_192, **settings})
    )


QWEN = "Qwen--Qwen3.5-9B"


def asked_as(name: str, sizes: dict[str, Any]) -> tuple[StartQuestion, Pool | None]:
    """The question that stands for a call of vLLM's function."""
    if name == "scheduler":
        return StartQuestion(
            config(),
            max_model_len=sizes["max_model_len"],
            max_num_batched_tokens=sizes["max_num_batched_tokens"],
            max_num_seqs=sizes["max_num_seqs"],
            chunked_prefill=sizes["enable_chunked_prefill"],
            long_prefill=sizes.get("long_prefill_token_threshold", 0),
        ), None
    if name == "heads":
        known = config(num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"])
        return StartQuestion(known, tp=sizes["tp"], dcp=sizes["dcp"]), None
    if name == "experts":
        known = config(
            moe_intermediate_size=sizes["width"] * sizes["tp"],
            quantization_config={"quant_method": "fp8", "weight_block_size": sizes["block"]},
        )
        return StartQuestion(known, tp=sizes["tp"]), None
    if name == "linear":
        mine = sizes["input"] if sizes["cut"] == "input" else sizes["output"][0]
        # the other dimension's block divides, so that this one decides
        block = [1, sizes["block"][1]] if sizes["cut"] == "input" else [sizes["block"][0], 1]
        known = config(
            intermediate_size=mine * sizes["tp"],
            quantization_config={"quant_method": "fp8", "weight_block_size": block},
        )
        return StartQuestion(known, tp=sizes["tp"]), None
    if name == "memory":
        return StartQuestion(config(), total=sizes["total"], free=sizes["free"], utilization=sizes["utilization"]), None
    if name == "multimodal":
        return StartQuestion(
            config(),
            multimodal_item=sizes["item"],
            max_num_batched_tokens=sizes["batched"],
            disable_chunked_mm_input=sizes["whole"],
        ), None
    assert name == "mamba"
    pool = pool_of(QWEN, 24 * GIB)._replace(num_blocks=sizes["num_blocks"])
    return StartQuestion(config(), max_num_seqs=sizes["max_num_seqs"], full_graphs=not sizes["eager"]), pool


@pytest.mark.parametrize("row", ASKED["rows"], ids=lambda row: f"{row[0]}-{'-'.join(map(str, row[1].values()))}")
def test_says_what_vllm_says(row: list[Any]) -> None:
    """The same words, or none."""
    name, sizes, said = row
    question, pool = asked_as(name, sizes)
    found = starts(question, pool, rules(ASKED["version"]))
    assert [each.text for each in found] == ([said] if said else [])


@pytest.mark.parametrize("row", [row for row in ASKED["rows"] if row[2]], ids=lambda row: f"{row[0]}-{row[2][:40]}")
def test_a_remedy_starts(row: list[Any]) -> None:
    """Each remedy alone makes the refusal go away; every refusal of a setting has one."""
    question, pool = asked_as(row[0], row[1])
    (refusal,) = starts(question, pool, rules("0.32.0"))
    names = {
        "enable_chunked_prefill": "chunked_prefill",
        "tensor_parallel_size": "tp",
        "decode_context_parallel_size": "dcp",
        "long_prefill_token_threshold": "long_prefill",
        "gpu_memory_utilization": "utilization",
    }
    assert refusal.remedies
    for name, value in refusal.remedies:
        change: dict[str, Any] = {names.get(name, name): value}
        if name == "enforce_eager":
            change = {"full_graphs": False}
        other = replace(question, **change)
        assert refusal.rule not in [each.rule for each in starts(other, pool, rules("0.32.0"))], name


def asked(pool: Pool | None, version: str = "0.32.0", **settings: Any) -> list[StartRule]:
    """The rules that refuse."""
    return [each.rule for each in starts(StartQuestion(config(), **settings), pool, rules(version))]


def test_seqs_beyond_mamba_blocks_since_0_20() -> None:
    """Only with CUDA graphs, only where layers keep states, only since 0.20."""
    pool = pool_of(QWEN, 403 * pool_of(QWEN, GIB).bytes_per_block)
    assert (pool.num_blocks, pool.starts) == (403, True)
    assert asked(pool, max_num_seqs=1_024) == [StartRule.MAMBA_BLOCKS]
    assert asked(pool, max_num_seqs=1_024, version="0.19.1") == []
    assert asked(pool, max_num_seqs=1_024, full_graphs=False) == []
    assert asked(pool._replace(platform="cpu"), max_num_seqs=1_024) == []
    assert asked(pool_of("meta-llama--Llama-3.1-8B", 8 * GIB)._replace(num_blocks=300), max_num_seqs=1_024) == []


def test_a_mamba_block_longer_than_a_step_until_0_26() -> None:
    """Mode align needs a step of one block and more, from 0.17 to 0.26; later a chunk may be shorter."""
    pool = pool_of("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 24 * GIB)
    assert pool.block_size > 2_048
    assert asked(pool, "0.26.0", max_num_batched_tokens=2_048) == [StartRule.MAMBA_BLOCK]
    assert asked(pool, "0.27.0", max_num_batched_tokens=2_048) == []


def test_what_the_pool_refuses_has_its_code() -> None:
    """No memory, one request that does not fit, and nothing that fits."""
    llama = "meta-llama--Llama-3.1-8B"
    for available, settings, rule in (
        (0, {}, StartRule.NO_MEMORY),
        (-GIB, {}, StartRule.NO_MEMORY),
        (GIB, {}, StartRule.MODEL_LEN_BEYOND_POOL),
        (1_000, {"max_model_len": -1}, StartRule.NOTHING_FITS),
    ):
        pool = pool_of(llama, available, **settings)
        found = starts(StartQuestion(config()), pool, rules("0.32.0"))
        assert [(each.rule, each.text) for each in found] == [(rule, pool.error)]
    (refusal,) = starts(StartQuestion(config()), pool_of(llama, GIB), rules("0.32.0"))
    assert refusal.remedies == (("max_model_len", pool_of(llama, GIB).max_model_len),)


def test_longer_than_the_model() -> None:
    """max_model_len is at most what the config says."""
    assert asked(None, max_model_len=131_072) == []
    assert asked(None, max_model_len=131_073) == [StartRule.MODEL_LEN_BEYOND_MODEL]


def test_widths_and_groups_over_ranks() -> None:
    """A width must divide; a group of AWQ and GPTQ lies within a rank; expert parallelism leaves experts whole."""

    def found(tp: int, more: dict[str, Any], **values: Any) -> list[Refusal]:
        return list(starts(StartQuestion(config(**values), tp=tp, **more), None, rules("0.32.0")))

    assert [each.text for each in found(8, {}, intermediate_size=18_942)] == ["18942 is not divisible by 8"]
    awq = {"quant_method": "awq", "group_size": 128, "bits": 4}
    assert [each.rule for each in found(8, {}, intermediate_size=18_944, quantization_config=awq)] == [
        StartRule.GROUP_SIZE_INPUT
    ]
    assert found(4, {}, intermediate_size=18_944, quantization_config=awq) == []
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert found(8, {}, moe_intermediate_size=768, quantization_config=block)
    assert not found(8, {"expert_parallel": True}, moe_intermediate_size=768, quantization_config=block)


def test_default_of_max_num_seqs() -> None:
    """1,024 from 70 GiB on, but for an A100; 256 below; 128 a rank on the CPU (engine/arg_utils.py)."""
    assert max_num_seqs(None, "cuda", 80 * GIB, "NVIDIA H100 80GB HBM3", 1) == 1_024
    assert max_num_seqs(None, "cuda", 80 * GIB, "NVIDIA A100-SXM4-80GB", 1) == 256
    assert max_num_seqs(None, "cuda", 24 * GIB, "NVIDIA GeForce RTX 4090", 1) == 256
    assert max_num_seqs(None, "cpu", None, "", 2) == 256
    assert max_num_seqs(7, "cuda", 80 * GIB, "", 1) == 7


def test_every_rule_has_a_source_and_versions() -> None:
    """One row a rule, each with versions that were read."""
    assert set(RULES) == set(StartRule)
    for rule, source in RULES.items():
        assert source.where, rule
        assert any(source.holds(version) for version in READ), rule
