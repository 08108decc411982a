"""vLLM's answer at every door: users as its scheduler runs them, concurrency as its own code has it, one code path."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from membudget.cli.main import main

pytestmark = pytest.mark.math
ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]
#: model, machine, ctx, max_num_batched_tokens, bytes for the pool, concurrency, users.
ROWS = json.loads((ROOT / "fixtures" / "oracle" / "answers.json").read_text(encoding="utf-8"))["rows"]
MODELS = (
    "Qwen/Qwen3-8B", "google/gemma-3-27b-it", "google/gemma-2-9b", "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3.5-9B", "mistralai/Mistral-7B-v0.1", "microsoft/phi-2",
)  # fmt: skip
MACHINES = ("h100-80gb", "rtx-4090", "h200-141gb", "a100-80gb", "b200", "dgx-spark", "l4")


def place(model: str) -> str:
    """A hub id whose config ships, or the path of one among the fixtures."""
    path = ROOT / "fixtures" / "oracle" / "configs" / f"{model.replace('/', '--')}.json"
    return str(path) if path.exists() else model


def said(capsys: Capture, *words: object) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command."""
    code = main([*map(str, words), "--offline", "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0].rpartition('/')[2]}-{row[3]}")
def test_users_and_concurrency_are_vllms_own(row: list[Any], capsys: Capture) -> None:
    """With the pool's bytes fixed, `plan` says what the scheduler ran and what the start prints."""
    model, machine, ctx, batched, size, concurrency, users = row
    code, plan = said(
        capsys, "plan", place(model), "--machine", machine, "--ctx", ctx, "--users", users, "--language-model-only",
        "--kv-cache-memory-bytes", size, "--max-num-batched-tokens", batched,
        "--max-num-seqs", "256",
    )  # fmt: skip
    assert (code, plan["starts"], plan["max_users"]) == (0, True, users)
    assert plan["concurrency"] == pytest.approx(concurrency, abs=1e-9)


def question(rng: random.Random) -> list[str]:
    """One random start."""
    words = ["--machine", rng.choice(MACHINES), "--max-model-len", str(rng.choice([1000, 4096, 8192, 32_768]))]
    if rng.random() < 0.3:
        words += ["--gpu-memory-utilization", f"{rng.uniform(0.4, 0.95):.2f}"]
    if rng.random() < 0.3:
        words += ["--max-num-batched-tokens", str(rng.choice([1024, 4096, 16_384]))]
    if rng.random() < 0.3:
        words += ["--max-num-seqs", str(rng.choice([8, 64, 300]))]
    if rng.random() < 0.2:
        words += ["--kv-cache-memory-bytes", str(rng.randint(10**8, 2 * 10**10))]
    if rng.random() < 0.2:
        words += ["--kv-cache-dtype", "fp8"]
    if rng.random() < 0.2:
        words += ["--vllm-version", rng.choice(["0.20.2", "0.24.0", "0.28.0"])]
    if rng.random() < 0.2:
        words += [rng.choice(["--enforce-eager", "--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager"])]
    if rng.random() < 0.2:
        words += ["--tensor-parallel-size", "2"]
    return words


#: 500 questions in all; a fifth of them where nobody asks for `slow`.
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_pool_and_plan_are_one_answer(seed: int, capsys: Capture) -> None:
    """25 random questions a seed: the same start, pool, users and concurrency, or the same refusal."""
    rng = random.Random(seed)
    for _ in range(25):
        model, words = rng.choice(MODELS), question(rng)
        ctx = words[words.index("--max-model-len") + 1]
        _, plan = said(capsys, "plan", model, "--ctx", ctx, "--engine", "vllm", *words)
        _, pool = said(capsys, "pool", model, *words)
        if "starts" not in plan or "starts" not in pool:
            assert plan["error"] == pool["error"], (model, words)
            continue
        assert plan["starts"] == pool["starts"], (model, words)
        assert plan["refusals"] == pool["refusals"], (model, words)
        assert plan["max_users"] == pool["users"], (model, words)
        for name in ("num_blocks", "tokens", "max_concurrency", "block_size", "groups", "available"):
            assert plan["pool"][name] == pool[name], (model, words)


def test_a_window_serves_fewer_than_its_tokens_say(capsys: Capture) -> None:
    """gemma-3-27b at 32k on an H100: the four buckets fit 8, vLLM's scheduler runs 3 at once."""
    asked = ("plan", "google/gemma-3-27b-it", "--machine", "h100-80gb", "--ctx", "32k", "--users", "8")
    _, vllm = said(capsys, *asked)
    assert (vllm["fits"], vllm["max_users"], vllm["limiting_bucket"]) == (False, 3, "kv_cache")
    _, sums = said(capsys, *asked, "--engine", "arithmetic")
    assert sums["max_users"] == 8


def test_weights_above_the_share_are_refused(capsys: Capture) -> None:
    """Llama-3.1-70B on an H200: its weights fit the device and not 0.92 of it, so vLLM does not start."""
    code, plan = said(capsys, "plan", "meta-llama/Llama-3.1-70B", "--machine", "h200-141gb", "--ctx", "8k")
    assert (code, plan["starts"], plan["fits"], plan["max_users"]) == (1, False, False, 0)
    assert plan["limiting_bucket"] == "weights"
    assert plan["limit"] == -(-143_073 * 2**20 * 92 // 100)
    assert plan["refusals"]


def test_more_sequences_than_states_are_refused(capsys: Capture) -> None:
    """Qwen3.5-27B at 32k on an H100: fewer state blocks than the default max_num_seqs of 1024."""
    asked = ("plan", "Qwen/Qwen3.5-27B", "--machine", "h100-80gb", "--ctx", "32k", "--users", "4")
    _, plan = said(capsys, *asked)
    assert (plan["starts"], plan["limiting_bucket"]) == (False, "start")
    assert "max_num_seqs (1024) exceeds available Mamba cache blocks" in plan["refusals"][0]["text"]
    values = next(change["values"] for change in plan["suggestions"] if "max_num_seqs" in change["values"])
    code, fewer = said(capsys, *asked, "--max-num-seqs", values["max_num_seqs"])
    assert (code, fewer["starts"], fewer["fits"]) == (0, True, True)


@pytest.mark.parametrize(
    ("model", "size"), [("zai-org/GLM-5", 100_152), ("deepseek-ai/DeepSeek-V3.2", 78_324)]
)  # 78 and 61 layers x (576 latent elements of 2 bytes, and 132 of the indexer)
def test_a_sparse_models_token(model: str, size: int, capsys: Capture) -> None:
    """The indexer's keys are fp8 with an fp32 scale for 128, whatever the cache's dtype."""
    asked = ("plan", model, "--machine", "8x h200-141gb", "--ctx", "8k", "--tp", "8")
    _, plan = said(capsys, *asked)
    assert plan["kv_per_token"] == size


def test_a_state_is_in_the_models_dtype(capsys: Capture) -> None:
    """mamba2-2.7b: 64 layers of state in bf16, 85,950,464 bytes a user."""
    path = place("state-spaces/mamba2-2.7b")
    _, plan = said(capsys, "plan", path, "--machine", "h100-80gb", "--ctx", "8k", "--max-num-seqs", "256")
    assert (plan["kv_per_request"], plan["kv_per_token"]) == (85_950_464, 0)


def test_the_command_says_what_was_assumed(capsys: Capture) -> None:
    """Under a plan that starts: vLLM's own line, alone with --command; none where it does not start."""
    asked = ["plan", "Qwen/Qwen3-8B", "--machine", "2x h100-80gb", "--ctx", "16k", "--kv-cache-dtype", "fp8",
             "--max-num-seqs", "64", "--no-enable-prefix-caching", "--offline"]  # fmt: skip
    assert main([*asked, "--command"]) == 0
    assert capsys.readouterr().out == (
        "vllm serve Qwen/Qwen3-8B --max-model-len 16384 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 "
        "--tensor-parallel-size 2 --max-num-seqs 64 --no-enable-prefix-caching\n"
    )
    assert main(["plan", "meta-llama/Llama-3.1-70B", "--machine", "l4", "--offline", "--command"]) == 1
    assert capsys.readouterr().out.strip() == ""


def test_one_refused_machine_hides_no_other(capsys: Capture) -> None:
    """A machine that the layout does not divide is said, and the others are planned."""
    asked = ("plan", "Qwen/Qwen2.5-7B", "--machine", "h100-80gb", "--machine", "3x h100-80gb", "--engine", "vllm")
    code, plans = said(capsys, *asked)
    assert code == 1
    assert [plan["machine"] for plan in plans["plans"]] == ["h100-80gb", "3x h100-80gb"]
    assert plans["plans"][0]["fits"]
    assert plans["plans"][1]["error"]["code"] == "refused_layout"


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (("--machine", "h100-80gb", "--format", "q4_k_m"), "llama_cpp"),
        (("--machine", "apple-m4-max-128gb"), "llama_cpp"),
        (("--machine", "h100-80gb"), "vllm"),
        (("--machine", "h100-80gb", "--engine", "llama.cpp"), "llama_cpp"),
    ],
)
def test_which_engine(words: tuple[str, ...], engine: str, capsys: Capture) -> None:
    """GGUF and a Mac are llama.cpp's unless told otherwise; its name may be written as its users do."""
    _, plan = said(capsys, "plan", "Qwen/Qwen3-8B", *words)
    assert plan["engine"] == engine


def test_an_upgrade_without_a_machine(capsys: Capture) -> None:
    """Nemotron-H-56B, 20 GiB, 8k: 15.88x in 0.27.1 and 6.35x in 0.32.0, whose prefix caching keeps more states."""
    asked = ("upgrade", "0.27.1", "0.32.0", "nvidia/Nemotron-H-56B-Base-8K", "--machine", "h200-141gb")
    code, said_ = said(
        capsys, *asked, "--ctx", "8k", "--kv-cache-memory-bytes", "20GiB", "--max-num-seqs", "32",
        "--max-num-batched-tokens", "8192",
    )  # fmt: skip
    (only,) = said_["budgets"]
    assert code == (1 if only["worse"] else 0)
    assert (round(only["before"]["concurrency"], 2), round(only["after"]["concurrency"], 2)) == (15.88, 6.35)
    assert any("prefix caching is on by default" in reason for reason in only["reasons"])


def test_a_start_that_fewer_sequences_mend_says_what_its_pool_serves(capsys: Capture) -> None:
    """Nemotron-3-Nano on 12,823,163,705 bytes: 995 state blocks for 1,024 sequences; vLLM runs 49."""
    asked = ("plan", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "--machine", "h100-80gb", "--ctx", "32k")
    _, plan = said(capsys, *asked, "--users", "4", "--kv-cache-memory-bytes", "12823163705")
    assert (plan["starts"], plan["fits"], plan["limiting_bucket"]) == (False, False, "start")
    assert (plan["max_users"], plan["concurrency"]) == (49, pytest.approx(35.535714285714285))
    assert all("users" not in change["values"] and "ctx" not in change["values"] for change in plan["suggestions"])
