"""A log against its budget: settings, model, and the bytes for the pool, with a tolerance that real starts hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.engines.vllm.logs.against import Expected, against
from membudget.engines.vllm.logs.expected import of_budget
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
    """60.00 GiB printed where 0.83 x 121.69 = 101.0 are asked for and 14.99 held: more than 20 less, in no other line.

    The figures for tokens and concurrency are those of 60 GiB, so only the size itself can tell.
    """
    code, found = ask("log", log(spark("60.0")), "--budget", budget())
    assert code == 1
    (check,) = differences(found).values()
    assert check["name"] == "pool_bytes"
    assert check["line"] == 4
    assert -(0.83 * 121.69 - 14.99 - 60) < check["off"] / GIB < -20
    assert "printed 60.0 GiB: " in check["text"]
    assert "allowed is the range and 1.22 GiB (1% of the device) beside it" in check["text"]
    assert "GiB of it is in no line that this log prints" in check["text"]
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


def test_the_same_machine_and_share_agree(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """0.97 of an H100 with 14.99 GiB of weights: a real start left 60.0 GiB, and the budget says the same."""
    code, found = ask("log", log(start()), "--budget", budget("h100-80gb", "0.97"))
    assert code == 0
    (check,) = [check for check in found[0]["checks"] if check["name"] == "pool_bytes"]
    assert check["holds"] is True
    assert abs(check["off"]) / GIB < 0.7922
    assert "allowed is the range and 0.79 GiB (1% of the device) beside it" in check["text"]


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
    """Nothing to differ from; the prediction says whose share it is."""
    path = Path(budget())
    path.write_text(path.read_text(encoding="utf-8").replace("    gpu_memory_utilization: 0.83\n", ""))
    code, out, _ = run("log", log(spark("94.6", "0.92", "774,963", "94.60")), "--budget", str(path))
    assert code == 0
    assert "(0.92 (the log's) x 121.69 GiB - 14.99 GiB weights" in out


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
    """An 8B in fp8 takes about 8.5 GiB, the bf16 weights of the budget 14.99 as loaded."""
    lines = [line.replace("14.99", "8.49") for line in spark("89.9", tokens="736,480", times="89.90")]
    code, found = ask("log", log(lines), "--budget", budget())
    assert code == 1
    check = differences(found)["weights_predicted"]
    assert check["off"] / GIB == pytest.approx(8.49 - 14.99, abs=0.01)
    assert "printed 8.49 GiB (-6.50 GiB)" in check["text"]


def test_budgets_that_are_several_questions(ask: Ask, budget: Callable[..., str], log: Callable[..., str]) -> None:
    """Two machines, or another engine, are not what one log can be held against."""
    for change, named in (("[dgx-spark, h100-80gb]", "several of machine"), ("dgx-spark", "engine transformers")):
        path = Path(budget(change))
        if "engine" in named:
            path.write_text(path.read_text(encoding="utf-8").partition("engine:")[0] + "engine: {transformers: {}}\n")
        code, found = ask("log", log(start()), "--budget", str(path))
        assert code == 2
        assert named in found["error"]["message"]


#: Published starts whose model, device and settings are known: id, config, format, GiB of the device, step.
STARTS: list[tuple[Any, ...]] = [
    ("VL05", "google/gemma-4-26B-A4B", "bf16", "dgx-spark", 121.69, 8192),
    ("VL37", "openai/gpt-oss-20b", "mxfp4", "h100-80gb", 79.18, 8192),
    ("VL41", "Qwen/Qwen3-0.6B", "bf16", "h100-80gb", 79.18, 8192),
    ("VL43", "Qwen/Qwen3-32B", "bf16", "h100-80gb", 79.18, 8192),
]


def expected(asked: Budget, version: str = "0.32.0") -> Expected:
    """What a budget says of the start of a log that prints its version alone."""
    (log,) = parse([f"vLLM API server version {version}\n", "Model loading took 1.0 GiB memory and 5.1 seconds\n"])
    return of_budget(asked, (8192,), log)


@pytest.mark.parametrize("case", STARTS, ids=lambda case: str(case[0]))
def test_real_starts_agree(case: tuple[Any, ...], model: Callable[[str], Model]) -> None:
    """What real engines left for their pools, and loaded as weights, is what the budget predicts."""
    name, shipped, form, machine, total, step = case
    row = next(row for row in ROWS if row["id"] == name)
    figures = row["figures"]
    engine = Settings("vllm", step, gpu_memory_utilization=row["gpu_memory_utilization"])
    tp = row["tp"]
    more = {} if tp == 1 else {"machines": tp, "tensor_parallel": tp}
    asked = Budget("x", model(shipped), formats.get(form), "bf16", 8192, 1, get(machine), engine, **more)
    lines = [
        f"vLLM API server version {row['vllm_version']}\n",
        f"Model loading took {figures['weights_gib']} GiB memory and 5.1 seconds\n",
        f"Available KV cache memory: {figures['available_kv_gib']} GiB\n",
    ]
    (found,) = parse(lines)
    predicted = of_budget(asked, (8192,), found)
    assert predicted.total / GIB == pytest.approx(total, rel=0.01)
    checks = {check.name: check for check in against(found, predicted)}
    assert checks["weights_predicted"].holds is True
    assert checks["pool_bytes"].holds is True


@pytest.mark.parametrize(("beside", "holds"), [(-0.012, False), (-0.008, True), (0.008, True), (0.012, False)])
def test_a_hundredth_of_the_device_beside_the_range(beside: float, holds: bool, model: Callable[[str], Model]) -> None:
    """The tolerance is 1% of the device at each end of the predicted range, for the pool."""
    asked = Budget("x", model(LLAMA), formats.get("bf16"), "bf16", 8192, 8, get("h100-80gb"), Settings("vllm", 8192))
    found = expected(asked)
    printed = (found.low if beside < 0 else found.high) + beside * found.total
    (log,) = parse(["vLLM API server version 0.32.0\n", f"Available KV cache memory: {printed / GIB:.2f} GiB\n"])
    (check,) = [check for check in against(log, found) if check.name == "pool_bytes"]
    assert check.holds is holds


def test_the_fields_that_are_compared_are_the_plans(model: Callable[[str], Model], ask: Ask) -> None:
    """The budget's parts are those that `membudget plan` prints; the weights hold at least 8,030,261,248 in bf16."""
    asked = Budget("x", model(LLAMA), formats.get("bf16"), "bf16", 8192, 8, get("h100-80gb"), Settings("vllm", 8192))
    found = expected(asked)
    command = ["plan", LLAMA, "--machine", "h100-80gb", "--ctx", "8192", "--users", "8", "--format", "bf16"]
    _, plan = ask(*command, "--kv-cache-dtype", "bf16", "--max-num-batched-tokens", "8192")
    assert {part.name: part.bytes for part in found.parts} == {
        part["name"]: part["bytes"] for part in plan["pool"]["parts"]
    }
    assert found.part("weights")[1] >= 16_060_522_496
    assert found.total == get("h100-80gb").cuda_total
    assert found.utilization is None
