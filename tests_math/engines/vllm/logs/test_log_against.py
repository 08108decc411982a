"""A log against its budget: settings, model, and the bytes for the pool, with a tolerance that real starts hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.cli.commands.log import _expected
from membudget.engines.vllm.logs.against import ASSUMED_OFF, WEIGHTS_OVER_PERCENT, Expected, against
from membudget.engines.vllm.logs.checks import Check
from membudget.engines.vllm.logs.log import parse
from membudget.machines import get
from membudget.model import Model
from tests_math.engines.vllm.logs.test_log_explain import start
from tests_math.engines.vllm.logs.test_log_public import ROWS

pytestmark = pytest.mark.suite

GIB = 2**30
LLAMA = "meta-llama/Llama-3.1-8B"
Ask = Callable[..., tuple[int, Any]]
Run = Callable[..., tuple[int, str, str]]

BUDGET = """\
model: {model}
format: bf16
kv_cache_dtype: auto
ctx: 8Ki
users: 8
machine: {machine}
engine:
  vllm:
    gpu_memory_utilization: {util}
    max_num_batched_tokens: 8192
{more}"""


@pytest.fixture
def budget(tmp_path: Path) -> Callable[..., str]:
    """Write a budget; its path."""

    def write(machine: str = "dgx-spark", util: str = "0.83", more: str = "", model: str = LLAMA) -> str:
        path = tmp_path / "l8.yaml"
        path.write_text(BUDGET.format(machine=machine, util=util, more=more, model=model), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def log(tmp_path: Path) -> Callable[[list[str]], str]:
    """Write a log; its path."""

    def write(lines: list[str]) -> str:
        path = tmp_path / "server.log"
        path.write_text("".join(lines), encoding="utf-8")
        return str(path)

    return write


def spark(kv: str, util: str = "0.83", tokens: str = "491,520", times: str = "60.00", args: str = "") -> list[str]:
    """A start on a DGX Spark that prints only its weights and its pool."""
    core = "(EngineCore pid=97) INFO 05-04 09:12:13"
    return [
        "(APIServer pid=1) INFO 05-04 09:12:11 [api_utils.py:347] vLLM API server version 0.32.0\n",
        f"(APIServer pid=1) INFO 05-04 09:12:11 [api_utils.py:286] non-default args: {{'model': '{LLAMA}', "
        f"'max_model_len': 8192, 'gpu_memory_utilization': {util}{args}}}\n",
        f"{core} [gpu_model_runner.py:4000] Model loading took 14.99 GiB memory and 5.100000 seconds\n",
        f"{core} [gpu_worker.py:760] Available KV cache memory: {kv} GiB\n",
        f"{core} [kv_cache_utils.py:2327] GPU KV cache size: {tokens} tokens, Maximum concurrency for 8,192 tokens per "
        f"request: {times}x\n",
        f"{core} [core.py:402] init engine (profile, create kv cache, warmup model) took 30.70 s\n",
    ]


def differences(document: Any) -> dict[str, dict[str, Any]]:
    """The checks of the one engine that do not hold, by name."""
    (engine,) = document
    return {check["name"]: check for check in engine["differences"]}


def test_a_pool_of_another_size_is_not_a_yes(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """60.00 GiB printed where 0.83 x 121.69 - 14.96 - 0.91 - 1.5 = 83.63 are predicted: 23.6 less, in no other line.

    The figures for tokens and concurrency are those of 60 GiB, so only the size itself can tell.
    """
    code, found = ask("log", log(spark("60.0")), "--budget", budget())
    assert code == 1
    (check,) = differences(found).values()
    assert check["name"] == "pool_bytes"
    assert check["line"] == 4
    weights, activations = 8_030_261_248 * 2 / GIB, 0.910
    assert check["off"] / GIB == pytest.approx(60 - (0.83 * 121.68955612 - weights - activations - 1.5), abs=0.01)
    assert "printed 60.0 GiB: 23.63 GiB less, allowed 12.17 GiB (10% of the device" in check["text"]
    assert "-23.60 GiB of it is in no line that this log prints" in check["text"]
    alike = log(spark("83.5", tokens="684,032", times="83.50"))
    assert ask("log", alike, "--budget", budget())[0] == 0


def test_the_line_that_the_difference_is_in(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """A start at 0.97 of 79.18 GiB beside a budget of 0.83 of 121.69: the line of what was requested, 24.2 less."""
    code, found = ask("log", log(start()), "--budget", budget())
    assert code == 1
    named = differences(found)
    assert named.keys() == {"setting.gpu_memory_utilization", "device", "pool_bytes"}
    text = named["pool_bytes"]["text"]
    assert "it is in line 9, requested: 101.00 GiB by the budget, 76.8 GiB in the log (-24.20 GiB)" in text
    assert "79.18 GiB, dgx-spark has 121.69 GiB" in named["device"]["text"]


def test_the_same_machine_and_share_agree(run: Run, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """0.97 x 79.22 - 14.96 - 0.91 - 1.5 = 59.5 beside 60.0 printed: within 10% of the device, and it says so."""
    code, out, _ = run("log", log(start()), "--budget", budget("h100-80gb", "0.97"))
    assert code == 0
    assert "predicted 59.48 GiB" in out
    assert "0.52 GiB more, allowed 7.92 GiB (10% of the device" in out


def test_every_setting_that_differs_is_named(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Share, length, cache dtype, ranks and step, each with both values and both places."""
    args = ", 'kv_cache_dtype': 'fp8', 'tensor_parallel_size': 2, 'pipeline_parallel_size': 2"
    lines = spark("83.5", "0.92", args=f"{args}, 'max_num_batched_tokens': 2048, 'block_size': 32")
    path = budget(more="    max_model_len: 16Ki\n    block_size: 16\n")
    code, found = ask("log", log(lines), "--budget", path)
    assert code == 1
    texts = {name: check["text"] for name, check in differences(found).items() if name.startswith("setting.")}
    assert texts == {
        "setting.gpu_memory_utilization": f"gpu_memory_utilization is 0.92 in the log, 0.83 in the budget ({path}:9)",
        "setting.max_model_len": f"max_model_len is 8,192 in the log, 16,384 in the budget ({path}:11)",
        "setting.kv_cache_dtype": f"kv_cache_dtype is fp8 in the log, bf16 in the budget ({path}:3)",
        "setting.tensor_parallel_size": f"tensor_parallel_size is 2 in the log, 1 in the budget ({path})",
        "setting.pipeline_parallel_size": f"pipeline_parallel_size is 2 in the log, 1 in the budget ({path})",
        "setting.max_num_batched_tokens": "max_num_batched_tokens is 2,048 in the log, 8,192 in the budget "
        f"({path}:10)",
        "setting.block_size": f"block_size is 32 in the log, 16 in the budget ({path}:12)",
    }
    assert differences(found)["setting.gpu_memory_utilization"]["line"] == 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (", 'kv_cache_memory_bytes': 64424509440", "kv_cache_memory_bytes is 64,424,509,440 in the log, not set in"),
        (", 'num_gpu_blocks_override': 100", "num_gpu_blocks_override is 100 in the log, not set in the budget"),
        (", 'decode_context_parallel_size': 1, 'cpu_offload_gb': 0", ""),
        (", 'kv_cache_dtype': 'auto'", ""),
        (", 'kv_cache_dtype': 'bfloat16'", ""),
    ],
)
def test_what_sets_the_pool_by_hand(
    ask: Ask, budget: Callable[..., str], log: Callable[..., str], args: str, named: str
) -> None:
    """A pool that the log sets and the budget does not is named; values that say the default are no difference."""
    _, found = ask("log", log(spark("83.5", args=args)), "--budget", budget())
    texts = [check["text"] for name, check in differences(found).items() if name.startswith("setting.")]
    assert [text[: len(named)] for text in texts] == ([named] if named else [])


def test_a_share_that_nobody_set_is_the_versions(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Arguments that are not the default are listed, the share is not among them: it is 0.92 in vLLM 0.32.0."""
    lines = [line.replace(", 'gpu_memory_utilization': 0.83", "") for line in spark("94.6")]
    code, found = ask("log", log(lines), "--budget", budget())
    assert code == 1
    text = differences(found)["setting.gpu_memory_utilization"]["text"]
    assert text.startswith("gpu_memory_utilization is 0.92 (the default) in the log, 0.83 in the budget")


def test_a_budget_without_a_share_takes_the_logs(run: Run, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Nothing to differ from; the prediction says whose share it is: 0.92 x 121.69 - 14.96 - 0.91 - 1.5 = 94.59."""
    path = Path(budget())
    path.write_text(path.read_text(encoding="utf-8").replace("    gpu_memory_utilization: 0.83\n", ""))
    code, out, _ = run("log", log(spark("94.6", "0.92", "774,963", "94.60")), "--budget", str(path))
    assert code == 0
    assert "predicted 94.59 GiB (0.92 (the log's) x 121.69 GiB" in out


@pytest.mark.parametrize(("more", "named"), [("    kv_cache_memory_bytes: 256 MiB\n", "0.25 GiB"), ("", "not set")])
def test_a_pool_that_the_worker_says_was_set(
    ask: Ask, budget: Callable[..., str], log: Callable[..., str], more: str, named: str
) -> None:
    """vLLM prints that it reserved what it was told; the budget says another size, or none."""
    lines = spark("1.0", tokens="8,192", times="1.00")
    lines[3] = (
        "(EngineCore pid=97) INFO 05-04 09:12:13 [gpu_worker.py:1] Initial free memory 110.2 GiB, reserved 1.0 GiB "
        "memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. This does not "
        "respect the gpu_memory_utilization config. Only use kv_cache_memory_bytes config when you want manual control "
        "of KV cache memory size. If OOM'ed, check the difference of initial free memory between the current run and "
        "the previous run where kv_cache_memory_bytes is suggested and update it correspondingly.\n"
    )
    code, found = ask("log", log(lines), "--budget", budget(more=more))
    assert code == 1
    text = differences(found)["setting.kv_cache_memory_bytes"]["text"]
    assert text.startswith(f"kv_cache_memory_bytes is 1.0 GiB in the log, {named} in the budget")


def test_a_smaller_pool_beside_a_drafter(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """A drafter's weights and graphs are in no budget: less than predicted is said, and is no difference."""
    lines = spark("60.0", args=", 'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}")
    _, found = ask("log", log(lines), "--budget", budget())
    assert "pool_bytes" not in differences(found)
    check = next(check for check in found[0]["checks"] if check["name"] == "pool_bytes")
    assert check["holds"] is None
    assert "the drafter takes some of it" in check["text"]


def test_a_length_the_budget_does_not_say(run: Run, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Longer requests than the budget's context are named and no difference; shorter ones are refused to its users."""
    lines = [line.replace("8,192", "131,072").replace("8192", "131072") for line in spark("83.5", times="5.22")]
    lines = [line.replace("491,520", "684,195") for line in lines]
    code, out, _ = run("log", log(lines), "--budget", budget())
    assert "max_model_len is 131,072 in the log, not set in the budget, whose ctx is 8,192" in out
    short = [line.replace("8,192", "4,096").replace("8192", "4096") for line in spark("83.5")]
    code, out, _ = run("log", log(short), "--budget", budget())
    assert code == 1
    assert "max_model_len is 4,096 in the log: requests of ctx 8,192 in the budget" in out


def test_a_log_of_a_known_other_model(run: Run, ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """One sentence and exit code 1, and no arithmetic of the wrong model."""
    path = budget(model="google/gemma-2-9b")
    code, found = ask("log", log(start()), "--budget", path)
    assert code == 1
    (check,) = differences(found).values()
    assert (check["name"], check["holds"]) == ("model", False)
    assert found[0]["arithmetic"] is None
    assert run("log", log(start()), "--budget", path)[1].count("gemma") == 1
    # a copy in a folder, or a served name, may be the budget's own
    assert ask("log", log(start("/models/mine")), "--budget", budget("h100-80gb", "0.97"))[0] == 0


def test_a_log_that_ends_early_is_not_a_yes(run: Run, log: Callable[..., str]) -> None:
    """All its figures agree, and whether the engine started is not in it: exit code 1."""
    code, out, _ = run("log", log(start()[:7]))
    assert code == 1
    assert "truncated: the log ends after sizing the pool, neither ready nor refused; give it to its end" in out
    assert run("log", log(start()))[0] == 0


def test_weights_of_another_format(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """An 8B in fp8 takes about 8.5 GiB: never less than the bf16 weights of the budget, 14.96 GiB."""
    lines = [line.replace("14.99", "8.49") for line in spark("89.9", tokens="736,480", times="89.90")]
    code, found = ask("log", log(lines), "--budget", budget())
    assert code == 1
    assert (
        "weights: predicted 14.96 GiB; printed 8.49 GiB (-6.47 GiB)" in differences(found)["weights_predicted"]["text"]
    )


def test_budgets_that_are_several_questions(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Two machines, or another engine, are not what one log can be held against."""
    for change, named in (("[dgx-spark, h100-80gb]", "several of machine"), ("dgx-spark", "engine transformers")):
        path = Path(budget(change))
        if "engine" in named:
            path.write_text(path.read_text(encoding="utf-8").partition("engine:")[0] + "engine: {transformers: {}}\n")
        code, found = ask("log", log(start()), "--budget", str(path))
        assert code == 2
        assert named in found["error"]["message"]


#: Published starts without a drafter whose model and device are known: id, config, format, GiB of the device, step.
STARTS: list[tuple[Any, ...]] = [
    ("VL05", "google/gemma-4-26B-A4B", "bf16", "dgx-spark", 121.69, 8192),
    ("VL37", "openai/gpt-oss-20b", "mxfp4", "h100-80gb", 79.18, 8192),
    ("VL41", "Qwen/Qwen3-0.6B", "bf16", "h100-80gb", 79.18, 8192),
    ("VL43", "Qwen/Qwen3-32B", "bf16", "h100-80gb", 79.18, 8192),
    ("VL47", "Qwen/Qwen2-7B", "bf16", "a100-80gb", 79.25, 2048),
    ("VL52", LLAMA, "bf16", "rtx-4090", 23.54, 2048),
    ("VL55", LLAMA, "bf16", "rtx-4090", 23.54, 2048),
    ("VL56", LLAMA, "bf16", "rtx-4090", 23.54, 2048),
    ("VL57", LLAMA, "bf16", "rtx-4090", 23.54, 2048),
    ("VL60", "Qwen/Qwen2.5-7B", "bf16", "rtx-4090", 23.54, 2048),
]


def published(row: dict[str, Any], shipped: Model, form: str, machine: str, total: float, step: int) -> list[Check]:
    """The figures of a row as lines, held against a budget of its model on its device."""
    figures, tp = row["figures"], row["tp"]
    engine = Settings("vllm", step, gpu_memory_utilization=row["gpu_memory_utilization"])
    more = {} if tp == 1 else {"machines": tp, "tensor_parallel": tp}
    asked = Budget("x", shipped, formats.get(form), "bf16", 8192, 1, get(machine), engine, **more)
    expected = replace(_expected(asked, (8192,)), total=round(total * GIB))
    lines = [
        f"vLLM API server version {'0.20.0' if row['id'] == 'VL05' else '0.11.0'}\n",
        f"Model loading took {figures['weights_gib']} GiB memory and 5.1 seconds\n",
        f"Available KV cache memory: {figures['available_kv_gib']} GiB\n",
    ]
    (found,) = parse(lines)
    return against(found, expected)


@pytest.mark.parametrize("case", STARTS, ids=lambda case: str(case[0]))
def test_real_starts_are_within_the_tolerance(case: tuple[Any, ...], model: Callable[[str], Model]) -> None:
    """What real engines left for their pools, and loaded as weights, agrees with the prediction."""
    row = next(row for row in ROWS if row["id"] == case[0])
    checks = {check.name: check for check in published(row, model(case[1]), *case[2:])}
    assert checks["weights_predicted"].holds is True
    assert checks["pool_bytes"].holds is True


def test_the_tolerances_are_the_widest_that_was_seen(model: Callable[[str], Model]) -> None:
    """10% of the device and 6% of the weights: the farthest of the published starts, and not much more."""
    pools, weights = [], []
    for name, shipped, *more in STARTS:
        row = next(row for row in ROWS if row["id"] == name)
        checks = {check.name: check for check in published(row, model(shipped), *more)}
        pools.append(checks["pool_bytes"].off / (more[2] * GIB) * 100)
        weights.append((checks["weights_predicted"].off / GIB / row["figures"]["weights_gib"]) * 100)
    assert ASSUMED_OFF - 2 <= -min(pools) <= ASSUMED_OFF
    assert max(pools) <= ASSUMED_OFF
    assert WEIGHTS_OVER_PERCENT - 2 <= max(weights) <= WEIGHTS_OVER_PERCENT
    assert min(weights) >= 0


def test_the_fields_that_are_compared_are_the_arithmetics(model: Callable[[str], Model]) -> None:
    """What `Expected` takes from a budget: 8,030,261,248 bf16 weights, 1 GiB beside graphs of 0.5, CUDA's total."""
    asked = Budget("x", model(LLAMA), formats.get("bf16"), "bf16", 8192, 8, get("h100-80gb"), Settings("vllm", 8192))
    found: Expected = _expected(asked, (8192,))
    assert (found.weights, found.non_torch, found.graphs) == (16_060_522_496, GIB, GIB // 2)
    assert found.total == get("h100-80gb").cuda_total
    assert found.utilization is None
