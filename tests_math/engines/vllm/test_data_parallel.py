"""Replicas and their experts: vLLM's own sizes, bytes by hand, users of all replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget import formats, machines
from membudget.budgets.budget import unfiled
from membudget.budgets.settings import parallel_sizes, settings_of
from membudget.engines.vllm.parallel.cut import Experts
from membudget.engines.vllm.parallel.ranks import stages
from membudget.errors import MembudgetError
from membudget.model import Model
from membudget.planning.ledger import Ledger, predict

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
#: Rank 0 as vLLM makes it, by sizes: its source stands in the file.
ROWS = json.loads((Path(__file__).parents[3] / "fixtures/oracle/expert_parallel.json").read_text(encoding="utf-8"))
MOE, LITE = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"


def asked(model: Model, many: int, users: int, **options: Any) -> Ledger:
    """A plan on so many H200s."""
    engine = settings_of("vllm", options=options)
    machine = machines.get("h200-141gb")
    return predict(unfiled(model, formats.get("bf16"), "bf16", 8192, users, machine, engine, many))


@pytest.mark.parametrize(("tp", "dp", "whole", "slices", "local", "shared"), ROWS["rows"])
def test_experts_on_a_rank(tp: int, dp: int, whole: bool, slices: int, local: list[int], shared: bool) -> None:
    """Slices of an expert, whole experts on the rank with the most, and whether shared experts are whole."""
    found = Experts.of(tp, dp, whole)
    assert (1 if found.whole else found.ranks) == slices
    assert [found.local(count) if found.whole else count for count in (60, 128, 256)] == local
    assert found.shared_whole == shared


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (1, 8), (2, 2), (4, 2), (8, 1)])
def test_experts_are_shared_by_all_ranks(model: Get, tp: int, dp: int, whole: bool) -> None:
    """Qwen3-30B-A3B: 48 layers x 128 experts x 3 x 2,048 x 768, over tp x dp; all else as without replicas."""
    build, form = model(MOE), formats.get("bf16")
    (found,) = stages(build, form, tp, 1, Experts.of(tp, dp, whole))
    (plain,) = stages(build, form, tp, 1)
    experts = sum(tensor.elements for tensor in found.model.tensors if tensor.role == "mlp.experts")
    assert experts * tp * dp == 48 * 128 * 3 * 2048 * 768
    rest, before = (
        sum(tensor.elements for tensor in each.model.tensors if tensor.role != "mlp.experts") for each in (found, plain)
    )
    assert rest == before
    assert found.model.caches == plain.model.caches


def test_shared_experts_are_whole_with_all_three_sizes(model: Get) -> None:
    """DeepSeek-V2-Lite: two shared experts of 1,408 in 26 layers; replicated only under TP x DP with EP."""
    build, form = model(LITE), formats.get("bf16")

    def shared(tp: int, dp: int, whole: bool) -> int:
        (stage,) = stages(build, form, tp, 1, Experts.of(tp, dp, whole))
        return sum(tensor.elements for tensor in stage.model.tensors if tensor.role == "mlp.shared")

    one = 26 * 3 * 2048 * 2 * 1408
    assert shared(2, 2, True) == one
    assert shared(2, 1, True) == shared(2, 2, False) == one // 2
    assert shared(1, 2, True) == one


def test_replicas_of_a_dense_model(model: Get) -> None:
    """Two replicas are two servers: twice the users, a device as with one, the same concurrency each."""
    one, two = asked(model("Qwen/Qwen3-8B"), 1, 8), asked(model("Qwen/Qwen3-8B"), 2, 16, data_parallel_size=2)
    assert two.answer.users == 2 * one.answer.users
    assert two.answer.concurrency == one.answer.concurrency
    assert [(line.bucket, line.bytes) for line in two.answer.lines] == [
        (line.bucket, line.bytes) for line in one.answer.lines
    ]
    odd = asked(model("Qwen/Qwen3-8B"), 2, 15, data_parallel_size=2)
    assert odd.answer.headroom == two.answer.headroom  # eight on one replica, seven on the other


def test_more_room_for_the_cache(model: Get) -> None:
    """Replicas that share the experts leave a pool that one device with all of them does not."""
    one = asked(model(MOE), 1, 1).answer
    four = asked(model(MOE), 4, 4, data_parallel_size=4, enable_expert_parallel=True).answer
    assert four.users > 4 * one.users
    assert {note.code for note in four.notes} >= {"data_parallel"}
    assert "--data-parallel-size 4 --enable-expert-parallel" in four.command


def test_expert_parallel_needs_experts(model: Get) -> None:
    """config/model.py _verify_with_expert_parallelism, in vLLM's words."""
    (refused,) = asked(model("Qwen/Qwen3-8B"), 2, 1, enable_expert_parallel=True).answer.starts
    assert refused.code == "expert_parallel_without_experts"
    assert refused.text.startswith("Number of experts in the model must be greater than 0")


def test_sizes_and_machines() -> None:
    """Ranks of all replicas are as many as the machines."""
    both = settings_of("vllm", options={"data_parallel_size": 2, "tensor_parallel_size": 4})
    assert parallel_sizes(8, both) == (4, 1)
    assert parallel_sizes(16, both) == (4, 2)
    with pytest.raises(MembudgetError, match="data_parallel_size 2 does not divide the 7"):
        parallel_sizes(7, both)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_experts_that_the_kernel_pads(model: Get, tp: int) -> None:
    """gpt-oss-20b: 2,880 columns are no whole blocks of 32 on 4 ranks; vLLM rounds a rank's share up, 720 to 768.

    models/gpt_oss.py (0.32.0:582) and fused_moe/oracle/mxfp4.py (834): a rank never holds less than its share of the
    file, 24 layers x 32 experts x 3 x 2,880 x 2,880 x 17 / 32 bytes, nor a fifth more.
    """
    built = model("openai/gpt-oss-20b")
    engine = settings_of("vllm", options={})
    form, machine = formats.of_config(built.config), machines.get("h100-80gb")
    found = predict(unfiled(built, form, "bf16", 8192, 1, machine, engine, tp)).answer
    assert not found.starts
    weights = sum(line.bytes for line in found.lines if line.bucket == "weights")
    share = 24 * 32 * 3 * 2880 * 2880 * 17 // 32 // tp
    rest = (2 * 201_088 * 2880 + 24 * 2880 * (4096 + 1024 + 4096)) * 2 // tp  # vocabulary, heads
    assert share + rest < weights < 1.2 * (share + rest)
