"""Several machines: what every rank holds against vLLM's own classes, and what budgets make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.budgets.file import BudgetFile, Sources, parse
from membudget.budgets.settings import parallel_sizes, settings_of
from membudget.cli.main import main
from membudget.engines.vllm.parallel.ranks import KNOWN, RankError, layer_of, stages
from membudget.engines.vllm.parallel.sharding import split_bytes
from membudget.formats import Format
from membudget.model import Model, build
from membudget.planning.ledger import BUCKETS, predict
from membudget.planning.load import checked
from membudget.report.ranks import notes
from tests_hw.tiny_models import TINY

pytestmark = pytest.mark.math

FIXTURES = Path(__file__).parents[3] / "fixtures"
SHIPPED = FIXTURES.parent / "membudget" / "data" / "models"
#: tools/golden_ranks.py asked vLLM's classes on the meta device.
GOLDEN: dict[str, Any] = json.loads((FIXTURES / "oracle/ranks.json").read_text(encoding="utf-8"))["cases"]
#: Scalars that vLLM makes for a checkpoint's KV scales and drops after loading.
DROPPED = ("attn.k_scale", "attn.v_scale", "attn.q_scale", "attn.prob_scale")
#: What vLLM answers and is not restated here, by model and size (0: any): scales and experts cut by a kernel's needs.
NOT_KNOWN = {("Qwen--Qwen3-30B-A3B-FP8", 4): True, ("openai--gpt-oss-120b", 0): True}


def made(name: str) -> tuple[Model, Format]:
    """The model of a golden case, without other towers, and its format."""
    from membudget.engines.vllm.oracle.asking import text_only

    if name.startswith("tiny:"):
        config: dict[str, Any] = TINY[name.removeprefix("tiny:")]
    else:
        config = json.loads((SHIPPED / f"{name.partition('+')[0]}.json").read_text(encoding="utf-8"))
    changes = GOLDEN[name]["changes"]
    config = {key: value for key, value in {**config, **changes}.items() if key not in changes or value is not None}
    model = build(text_only(config), name)
    try:
        form = formats.of_config(model.config)
    except formats.FormatError:  # gpt-oss without its quantization names no dtype
        form = formats.get("bf16")
    return model, formats.get("bf16") if form.name == "fp32" else form  # vLLM runs fp32 checkpoints in 16 bits


def cases(answered: bool) -> list[Any]:
    """(model, tp, pp) of every golden case that vLLM answered, or refused."""
    out = []
    for name, case in sorted(GOLDEN.items()):
        for key, said in case["ranks"].items():
            if isinstance(said, list) == answered:
                tp, pp = (int(part[2:]) for part in key.split())
                out.append(pytest.param(name, tp, pp, id=f"{name.rpartition('--')[2]}-tp{tp}-pp{pp}"))
    return out


@pytest.mark.parametrize(("name", "tp", "pp"), cases(True))
def test_every_rank_holds_what_vllm_holds(name: str, tp: int, pp: int) -> None:
    """Layer by layer, and outside the layers, one rank's bytes are those of vLLM's own classes."""
    model, form = made(name)
    if (name, tp) in NOT_KNOWN or NOT_KNOWN.get((name, 0)):
        with pytest.raises(RankError, match="not supported"):
            stages(model, form, tp, pp)
        return
    said = GOLDEN[name]["ranks"][f"tp{tp} pp{pp}"]
    ours = stages(model, form, tp, pp)
    assert len(ours) == len(said) == pp
    for stage, theirs in zip(ours, said, strict=True):
        expected: dict[int | None, int] = {
            layer: sum(size for key, size in held.items() if not key.endswith(DROPPED))
            for layers, held in theirs["layers"]
            for layer in layers
        }
        expected[None] = sum(theirs["other"].values())
        found: dict[int | None, int] = {None: 0}
        for tensor in stage.model.tensors:
            layer = layer_of(tensor.name)
            found[layer] = found.get(layer, 0) + form.layout(tensor, stage.model).nbytes * tensor.copies
        if form.name.startswith("gptq"):
            # the file's order of groups (g_idx) is counted, and vLLM drops it where desc_act is false: an upper bound
            assert found.keys() == expected.keys()
            assert all(expected[key] <= found[key] <= expected[key] * 1.02 for key in expected)
        else:
            assert found == expected


@pytest.mark.parametrize(("name", "tp", "pp"), cases(True))
def test_every_rank_keeps_what_vllm_keeps(name: str, tp: int, pp: int) -> None:
    """One token's keys, values and latents on one rank are those of vLLM's own cache specs: heads replicate below 1."""
    model, form = made(name)
    if (name, tp) in NOT_KNOWN or NOT_KNOWN.get((name, 0)):
        pytest.skip("its weights are not known")
    for stage, theirs in zip(stages(model, form, tp, pp), GOLDEN[name]["ranks"][f"tp{tp} pp{pp}"], strict=True):
        # an indexer's keys are 128 of fp8 and an fp32 scale, whatever the cache's dtype
        ours = (2 * (spec.per_token - spec.index) + (132 if spec.index else 0) for spec in stage.model.caches)
        assert sum(ours) == sum(theirs["kv"].values())


@pytest.mark.parametrize(("name", "tp", "pp"), cases(False))
def test_what_vllm_refuses_is_refused(name: str, tp: int, pp: int) -> None:
    """A layout at which vLLM's classes raise is an error here, in vLLM's words where it has any."""
    if "fbgemm" in name or "405B" in name:
        pytest.skip("vLLM 0.32.0 refuses fbgemm_fp8 at any size")
    model, form = made(name)
    said = GOLDEN[name]["ranks"][f"tp{tp} pp{pp}"]
    with pytest.raises(RankError) as error:
        stages(model, form, tp, pp)
    if "must be divisible" in said or "SupportsPP" in said:
        assert str(error.value).split(": ")[-1] in said


def test_every_known_family_was_compared() -> None:
    """No family is called known without an answer of vLLM's classes for it."""
    assert {made(name)[0].read_as for name in GOLDEN} >= KNOWN


BUDGET = """\
model: meta-llama/Llama-3.1-70B
format: bf16
ctx: 16Ki
users: 4
machine: 2x dgx-spark
"""


def read(text: str) -> Any:
    """A budget file's budgets and problems."""
    file = checked(BudgetFile("b.yaml", "b", *parse(text.encode(), "b.yaml", "b", ".", Sources())))
    return file.budgets, file.problems


def one(text: str) -> Budget:
    """The only budget of a good file; of four buckets where it names no engine."""
    budgets, problems = read(text if "engine:" in text else text + "engine: {arithmetic: {}}\n")
    assert problems == ()
    (budget,) = budgets
    assert isinstance(budget, Budget)
    return budget


def test_several_machines_are_tensor_parallel_by_default() -> None:
    """Two machines without sizes are tensor parallel 2; every figure is of the tightest rank, and `ranks` has all."""
    budget = one(BUDGET)
    assert (budget.machines, budget.tensor_parallel, budget.pipeline_parallel) == (2, 2, 1)
    ledger = predict(budget)
    plan = ledger.as_json()
    assert plan["machine"] == "2x dgx-spark"
    assert plan["params"] == 70_553_706_496
    said = GOLDEN["meta-llama--Llama-3.1-70B"]["ranks"]["tp2 pp1"][0]
    held = sum(sum(layer.values()) * len(where) for where, layer in said["layers"]) + sum(said["other"].values())
    assert plan["weights"] == held
    assert plan["kv_cache"] == 4 * 16_384 * said["kv"]["FullAttentionSpec"]
    assert [rank["rank"] for rank in plan["ranks"]] == [0, 1]
    assert all(rank["total"] == plan["total"] == sum(rank[name] for name in BUCKETS) for rank in plan["ranks"])
    assert ledger.headroom == budget.capacity - ledger.total


def test_one_machine_says_nothing_of_ranks() -> None:
    """A plan for one machine has the keys that it always had."""
    plan = predict(one(BUDGET.replace("2x dgx-spark", "dgx-spark"))).as_json()
    assert not {"ranks", "machines", "tensor_parallel_size", "pipeline_parallel_size"} & set(plan)
    assert predict(one(BUDGET.replace("2x dgx-spark", "1x dgx-spark"))).as_json() == plan


def test_the_tightest_stage_decides() -> None:
    """Of uneven stages the one that holds more breaks first, and the verdict names its ranks and layers."""
    text = BUDGET.replace("meta-llama/Llama-3.1-70B", "google/gemma-2-27b").replace("2x dgx-spark", "3x rtx-4090")
    budget = one(text + "engine: {arithmetic: {pipeline_parallel_size: 3}}\n")
    ledger = predict(budget)
    totals = [rank.total for rank in ledger.ranks]
    assert len(set(totals)) > 1
    assert ledger.total == max(totals)
    tightest = totals.index(max(totals))
    first, stop = ledger.ranks[tightest].layers
    assert f"rank {tightest} (layers {first} to {stop - 1})" in ledger.verdict
    assert [rank.layers for rank in ledger.ranks] == [(0, 15), (15, 31), (31, 46)]


@pytest.mark.parametrize(
    ("machines", "sizes", "words"),
    [
        ("2x", "tensor_parallel_size: 2", "each of ranks 0 and 1"),
        ("4x", "tensor_parallel_size: 4", "each of ranks 0 to 3"),
        # the head is as large as the embedding, and the last norm lies beside it
        ("4x", "tensor_parallel_size: 2, pipeline_parallel_size: 2", "each of ranks 2 and 3 (layers 40 to 79)"),
    ],
)
def test_the_tightest_ranks_in_words(machines: str, sizes: str, words: str) -> None:
    """Ranks of one stage hold the same and are named together, with their layers where there are stages."""
    text = BUDGET.replace("2x dgx-spark", f"{machines} dgx-spark") + f"engine: {{arithmetic: {{{sizes}}}}}\n"
    ledger = predict(one(text.replace("users: 4", "users: 4_000")))
    assert f" on {words}, " in ledger.verdict
    first = ledger.as_json()["ranks"][0]
    assert (first["rank"], first["pipeline_stage"], first["tensor_parallel_rank"]) == (0, 0, 0)
    assert [rank["tensor_parallel_rank"] for rank in ledger.as_json()["ranks"]][:2] == [0, 1]


@given(users=st.integers(1, 64), ctx=st.integers(1, 131_072), pp=st.sampled_from([1, 2, 4]))
def test_the_most_that_fits_fits_on_every_rank(users: int, ctx: int, pp: int) -> None:
    """max_users and max_ctx hold on every rank, and one more breaks one."""
    sizes = f"{{tensor_parallel_size: {4 // pp}, pipeline_parallel_size: {pp}}}"
    text = BUDGET.replace("2x dgx-spark", "4x h100-80gb").replace("users: 4", f"users: {users}")
    budget = one(text.replace("16Ki", str(ctx)) + f"engine: {{arithmetic: {sizes}}}\n")
    ledger = predict(budget)
    assert ledger.fits == all(rank.fits for rank in ledger.ranks)
    most = ledger.max_users
    assert most == 0 or predict(replace(budget, users=most)).fits
    assert not predict(replace(budget, users=most + 1)).fits
    longest = ledger.max_ctx
    assert longest == 0 or predict(replace(budget, ctx=longest)).fits
    assert not predict(replace(budget, ctx=longest + 1)).fits


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("2x dgx-spark", "2x dgx-spark\nengine: {vllm: {tensor_parallel_size: 4}}", 6,
         "engine.vllm.tensor_parallel_size: tensor_parallel_size 4 does not divide the 2 that machine names"),
        ("2x dgx-spark", "2x dgx-spark\nengine: {vllm: {tensor_parallel_size: 2, pipeline_parallel_size: 2}}", 6,
         "make 4 ranks, and machine names 2; allowed: one rank for each machine, as `4x NAME`, or sizes whose product "
         "is 2: pipeline_parallel_size 1 with tensor_parallel_size 2, or tensor_parallel_size 1 with"),
        ("2x dgx-spark", "dgx-spark\nengine: {vllm: {tensor_parallel_size: 2}}", 6,
         "tensor_parallel_size 2 does not divide the 1 that machine names; allowed: one rank for each machine, as "
         "`2x NAME`, or tensor_parallel_size 1 (pipeline_parallel_size is then 1)"),
        ("2x dgx-spark", "6x h100", 5,
         "machine: Total number of attention heads (64) must be divisible by tensor parallel size (6)."),
        ("2x dgx-spark", "0x h100", 5, "0 machines are refused; allowed is 1 to 4,096"),
        ("2x dgx-spark", "99999x h100", 5, "99999 machines are refused"),
        ("2x dgx-spark", "2x nothing", 5, "no machine is called 'nothing'"),
        ("2x dgx-spark", "2x dgx-spark\nengine: {transformers: {attention: sdpa}}", 5,
         "2 machines need `engine: {vllm: ...}`"),
        ("2x dgx-spark", "2x dgx-spark\nengine: {vllm: {data_parallel_size: 3}}", 6,
         "data_parallel_size 3 does not divide the 2 that machine names"),
        ("2x dgx-spark", "99x h100\nengine: {vllm: {pipeline_parallel_size: 99}}", 6,
         "is more than the model's 80 layers; allowed: 1 to 80"),
        ("format: bf16", "format: q4_k_m", 5, "over 2 hosts: llama.cpp's --rpc is not planned"),
        ("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-VL-2B-Instruct", 5, "planning 'qwen3_vl_text' over several"),
        ("2x dgx-spark", "2x dgx-spark\nbreak: [{outcome: fits}]\nceiling: 1 GiB", 6, "provoked on one machine"),
    ],
)  # fmt: skip
def test_layouts_that_are_refused(old: str, new: str, line: int, text: str) -> None:
    """What vLLM would refuse, and what is not known here, is an error with its file and line when the file is read."""
    budgets, problems = read(BUDGET.replace(old, new))
    assert budgets == ()
    (problem,) = problems
    assert problem.line == line
    assert text in str(problem)


@pytest.mark.parametrize(
    ("machines", "tensor", "pipeline", "found"),
    [(8, None, None, (8, 1)), (8, None, 2, (4, 2)), (8, 4, None, (4, 2)), (8, 1, None, (1, 8)), (8, None, 1, (8, 1)),
     (8, 2, 4, (2, 4)), (1, 1, None, (1, 1)), (1, None, None, (1, 1))],
)  # fmt: skip
def test_the_size_that_is_not_given(
    machines: int, tensor: int | None, pipeline: int | None, found: tuple[int, int]
) -> None:
    """One size given: the other is the machines divided by it.  None given: all are tensor parallel."""
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    options = {name: size for name, size in sizes.items() if size is not None}
    assert parallel_sizes(machines, settings_of("vllm", options=options)) == found


def test_a_size_that_does_not_divide_names_the_other() -> None:
    """3 stages of 8 machines: the sizes that do divide, and what the option that was not given would be."""
    with pytest.raises(ValueError, match=r"pipeline_parallel_size 3 does not divide the 8 that machine names") as error:
        parallel_sizes(8, settings_of("vllm", options={"pipeline_parallel_size": 3}))
    assert "pipeline_parallel_size 1, 2, 4, 8 (tensor_parallel_size is then 8, 4, 2, 1)" in str(error.value)


def test_plan_infers_the_tensor_parallel_size(capsys: pytest.CaptureFixture[str]) -> None:
    """`--machine "8x h200" --pipeline-parallel-size 2` is tensor parallel 4."""
    command = ["plan", "meta-llama/Llama-3.1-70B", "--machine", "8x h200", "--pipeline-parallel-size", "2"]
    assert main([*command, "--offline"]) == 0
    assert "tensor parallel 4, pipeline parallel 2" in " ".join(capsys.readouterr().out.split())


def test_lists_of_machines_have_their_own_sizes() -> None:
    """A list of machines, one and several, is one budget each, named apart."""
    budgets, problems = read(BUDGET.replace("2x dgx-spark", "[dgx-spark, 2x dgx-spark, 4x dgx-spark]"))
    assert problems == ()
    assert [budget.id for budget in budgets] == ["b-dgx-spark", "b-2x-dgx-spark", "b-4x-dgx-spark"]
    assert [predict(budget).fits for budget in budgets] == [False, True, True]


def test_other_towers_are_an_upper_bound(tmp_path: Path) -> None:
    """A vision tower is counted whole on the first stage, and the plan says so."""
    budget = one(BUDGET.replace("meta-llama/Llama-3.1-70B", "google/gemma-3-27b-it"))
    tower = sum(2 * tensor.elements for tensor in budget.model.tensors if tensor.role == "vision")
    (stage,) = stages(budget.model, budget.format, 2, 1)
    assert stage.whole == tower > 0
    assert any("upper bound" in note for note in notes(predict(budget)))


def test_mla_keeps_its_down_projections_whole() -> None:
    """DeepSeek-V3's latent and its down-projections lie on every rank: doubling the ranks does not halve them."""
    model, form = made("deepseek-ai--DeepSeek-V3")
    names = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight")
    held = [
        sum(tensor.elements for tensor in stages(model, form, tp, 1)[0].model.tensors if tensor.name.endswith(names))
        for tp in (1, 2, 8)
    ]
    assert held[0] == held[1] == held[2] == 61 * 7168 * (1536 + 512 + 64)


def test_plan_of_two_sparks(capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows a line a rank; sizes that do not make the machines are wrong input."""
    command = ["plan", "meta-llama/Llama-3.1-70B", "--machine", "2x dgx-spark", "--pipeline-parallel-size", "2"]
    assert main([*command, "--offline"]) == 0
    text = capsys.readouterr().out
    assert "rank 0 (layers 0 to 39)" in text
    assert "rank 1 (layers 40 to 79)" in text
    assert main([*command, "--tensor-parallel-size", "2", "--offline"]) == 2
    assert "make 4 ranks, and machine names 2" in capsys.readouterr().err


def test_a_fleet_keeps_mla_down_projections_whole() -> None:
    """The fleet's estimate for 8 devices holds DeepSeek-V3's down-projections whole on each, as vLLM does."""
    model, form = made("deepseek-ai--DeepSeek-V3")
    _, whole = split_bytes(model, form)
    assert whole >= 2 * 61 * 7168 * (1536 + 512 + 64)
