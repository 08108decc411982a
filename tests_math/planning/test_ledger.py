"""The plan: known answers, its laws, and the sentence it ends in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import formats, machines
from membudget.budgets.settings import Settings
from membudget.machines import Machine
from membudget.model import Model, build
from membudget.planning.capacity import fits, total_of
from membudget.planning.ledger import BUCKETS, Ledger, predict
from membudget.planning.suggestions import applied
from membudget.units import GIB
from tests_math.planning.buckets import summed
from tests_math.strategies import contexts, llama_configs, user_counts

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
LLAMA_8B, LLAMA_70B, QWEN_30B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"


def plan(model: Model, machine: str | Machine, ctx: int, users: int = 1, fmt: str = "bf16", **more: Any) -> Ledger:
    """A plan with a bf16 cache and an 8,192-token prefill chunk."""
    where = machines.get(machine) if isinstance(machine, str) else machine
    return predict(summed("test", model, formats.get(fmt), more.pop("kv", "bf16"), ctx, users, where, **more))


def test_cache_of_llama(model: Get) -> None:
    """8B: 2 x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB a token, 1 GiB at 8,192; fp8 halves it."""
    ledger = plan(model(LLAMA_8B), "h100-80gb", 8192)
    assert ledger.kv_per_token == ledger.kv_per_token_at_ctx == 2 * 32 * 8 * 128 * 2 == 131_072
    assert ledger.kv_per_request == ledger.kv_cache == GIB
    assert plan(model(LLAMA_8B), "h100-80gb", 8192, users=5).kv_cache == 5 * GIB
    assert plan(model(LLAMA_8B), "h100-80gb", 8192, kv="fp8").kv_per_token == 65_536


def test_cache_of_70b_and_of_its_mha_twin(model: Get, raw_config: Callable[[str], dict[str, Any]]) -> None:
    """70B: 327,680 bytes a token; with 64 KV heads it would be 2,621,440, 8 times as much."""
    assert plan(model(LLAMA_70B), "h100-80gb", 8192).kv_per_token == 327_680
    twin = build({**raw_config(LLAMA_70B), "num_key_value_heads": 64}, "mha")
    assert plan(twin, "h100-80gb", 8192).kv_per_token == 2_621_440


# The figures of the planning literature: 10 GiB for the Spark's system, 1.5 GiB overhead and the
# peak of an 8K chunk.  "nominal" takes the label's GB as GiB (128, 80, 24), "reported" what
# nvidia-smi or Linux says.  About 100 users on a Spark is the nominal figure; 94 fit for real.
USERS = [
    (LLAMA_8B, "bf16", 8192, "dgx-spark", "nominal", 100),
    (LLAMA_8B, "bf16", 8192, "dgx-spark", "reported", 94),
    (LLAMA_8B, "bf16", 8192, "h100-80gb", "nominal", 62),
    (LLAMA_8B, "bf16", 8192, "h100-80gb", "reported", 62),
    (LLAMA_8B, "bf16", 8192, "rtx-4090", "nominal", 6),
    (LLAMA_8B, "bf16", 8192, "rtx-4090", "reported", 6),
    (LLAMA_8B, "bf16", 131_072, "rtx-4090", "reported", 0),
    (LLAMA_8B, "bf16", 131_072, "h100-80gb", "nominal", 3),
    (LLAMA_8B, "bf16", 131_072, "h100-80gb", "reported", 3),
    (LLAMA_70B, "bf16", 8192, "dgx-spark", "nominal", 0),
    (LLAMA_70B, "bf16", 8192, "h100-80gb", "nominal", 0),
    (LLAMA_70B, "bf16", 8192, "rtx-4090", "nominal", 0),
    (LLAMA_70B, "q4_k_m", 32_768, "dgx-spark", "nominal", 7),
    (LLAMA_70B, "q4_k_m", 32_768, "h100-80gb", "nominal", 3),
    (LLAMA_70B, "q4_k_m", 32_768, "h100-80gb", "reported", 3),
    (QWEN_30B, "bf16", 8192, "h100-80gb", "reported", 27),
    (QWEN_30B, "bf16", 8192, "rtx-4090", "nominal", 0),
]


@pytest.mark.parametrize(("name", "fmt", "ctx", "machine", "convention", "users"), USERS)
def test_users_that_fit(name: str, fmt: str, ctx: int, machine: str, convention: str, users: int, model: Get) -> None:
    """The known answers, each under the convention that gives it."""
    ledger = plan(model(name), machine, ctx, fmt=fmt, convention=convention)
    assert ledger.max_users == users


def test_70b_is_131_gib_and_30b_is_57(model: Get) -> None:
    """Weights alone: 131 GiB breaks every machine at weights; 57 GiB cannot be loaded on 24."""
    big, mixture = plan(model(LLAMA_70B), "dgx-spark", 8192), plan(model(QWEN_30B), "rtx-4090", 8192)
    assert round(big.weights / GIB) == 131
    assert round(mixture.weights / GIB) == 57
    assert big.limiting_bucket == mixture.limiting_bucket == "weights"


def test_4090_misses_eight_users(model: Get) -> None:
    """8B at 8K for 8 users misses a nominal 24 GiB by about 1.4 GiB, and the cache breaks it."""
    ledger = plan(model(LLAMA_8B), "rtx-4090", 8192, users=8, convention="nominal")
    assert not ledger.fits
    assert ledger.limiting_bucket == "kv_cache"
    assert round(-ledger.headroom / GIB, 1) == 1.4
    assert "1.37 GiB over" in ledger.verdict
    assert [list(change.values) for change in ledger.suggestions] == [
        ["ctx"],
        ["users"],
        ["kv_cache_dtype"],
        ["format"],
    ]


def test_decode_step_on_a_spark(model: Get) -> None:
    """8B, 100 users x 8K: (16 GB + 107 GB) / 273 GB/s is about 0.45 s, about 2 tokens/s each."""
    ledger = plan(model(LLAMA_8B), "dgx-spark", 8192, users=100)
    assert ledger.step_seconds is not None
    assert round(ledger.step_seconds, 2) == 0.45
    assert round(1 / ledger.step_seconds) == 2


def test_mixture_reads_active_experts_only(model: Get) -> None:
    """A decode step of Qwen3-30B-A3B reads its 8 active experts, a tenth of its weights."""
    ledger = plan(model(QWEN_30B), "h100-80gb", 8192)
    inactive = 48 * (128 - 8) * 3 * 2048 * 768 * 2
    assert ledger.bytes_read - ledger.kv_cache <= ledger.weights - inactive


def test_utilization_limits_the_engine(model: Get) -> None:
    """gpu_memory_utilization 0.40 of a Spark leaves vLLM 48.7 GiB, whatever the machine has."""
    engine = Settings("arithmetic", gpu_memory_utilization=0.40)
    ledger = plan(model(LLAMA_8B), "dgx-spark", 8192, users=40, engine=engine)
    assert not ledger.fits
    assert "gpu_memory_utilization 0.4" in ledger.verdict
    assert plan(model(LLAMA_8B), "dgx-spark", 8192, users=30, engine=engine).fits


@pytest.mark.parametrize(("field", "value"), [("ctx", 0), ("ctx", -1), ("users", 0), ("users", -3)])
def test_nonpositive_is_refused(field: str, value: int, model: Get) -> None:
    """ctx and users are whole numbers >= 1, and the error names the field."""
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        plan(model(LLAMA_8B), "h100-80gb", **{"ctx": 8192, "users": 1, field: value})


machines_drawn = st.builds(
    Machine,
    st.just("drawn"),
    st.integers(2**20, 2**40),
    st.integers(2**20, 2**40),
    st.booleans(),
    st.just(10**11),
    st.integers(0, 2**33),
)


@given(llama_configs(), contexts, user_counts, machines_drawn)
def test_laws_of_a_plan(config: dict[str, Any], ctx: int, users: int, machine: Machine) -> None:
    """Parts sum to the total; more of anything never takes less; users add up; fits means it fits."""
    model = build(config, "drawn")
    ledger = plan(model, machine, ctx, users)
    assert sum(ledger.sums.values()) == ledger.total == sum(line.bytes for line in ledger.lines)
    assert set(ledger.sums) == set(BUCKETS)
    assert ledger.headroom == machine.memory - ledger.total
    assert ledger.fits == (ledger.total <= machine.memory)
    assert ledger.kv_cache == users * plan(model, machine, ctx).kv_cache
    assert plan(model, machine, ctx + 1, users).total >= ledger.total
    assert plan(model, machine, ctx, users + 1).total > ledger.total
    assert plan(model, machine, ctx, users, fmt="fp32").weights == 2 * ledger.weights
    assert 2 * plan(model, machine, ctx, users, kv="fp8").kv_cache == ledger.kv_cache


@given(llama_configs(), contexts, user_counts)
def test_the_last_byte_decides(config: dict[str, Any], ctx: int, users: int) -> None:
    """A machine with exactly the bytes fits and leaves 0; with one byte less it does not, and a byte more is spare."""
    model = build(config, "drawn")
    total = plan(model, Machine("any", 2**50, 2**50, False, 1), ctx, users).total
    exact, less, more = (
        plan(model, Machine("drawn", total + spare, total + spare, False, 1), ctx, users) for spare in (0, -1, 1)
    )
    assert (exact.fits, exact.headroom, exact.max_users, exact.max_ctx) == (True, 0, users, ctx)
    assert (less.fits, less.headroom, less.limiting_bucket) == (False, -1, "kv_cache")
    assert (more.fits, more.headroom, more.suggestions) == (True, 1, [])
    # what the search for changes takes for fitting is what a plan takes for fitting
    assert fits(exact.budget)
    assert not fits(less.budget)
    assert total_of(exact.budget) == total


@given(llama_configs(), contexts, user_counts, machines_drawn)
def test_most_is_the_most(config: dict[str, Any], ctx: int, users: int, machine: Machine) -> None:
    """max_users and max_ctx fit, and one more of either does not."""
    model = build(config, "drawn")
    ledger = plan(model, machine, ctx, users)
    assert ledger.fits == (users <= ledger.max_users)
    if ledger.max_users:
        assert plan(model, machine, ctx, ledger.max_users).fits
    if ledger.max_users < 2**24:
        assert not plan(model, machine, ctx, ledger.max_users + 1).fits
    if ledger.max_ctx:
        assert plan(model, machine, ledger.max_ctx, users).fits
    if ledger.max_ctx < 2**30:
        assert not plan(model, machine, ledger.max_ctx + 1, users).fits


@given(llama_configs(), st.integers(1, 600), st.integers(1, 2000), st.integers(1, 64))
def test_most_context_beyond_a_window(config: dict[str, Any], window: int, ctx: int, users: int) -> None:
    """With layers that stop growing the longest context still fits, and one token more does not."""
    model = build({**config, "model_type": "olmo3", "sliding_window": window}, "drawn")
    total = plan(model, Machine("any", 2**50, 2**50, False, 1), ctx, users).total
    ledger = plan(model, Machine("drawn", total, total, False, 1), 1, users)
    assert ledger.max_ctx >= ctx
    assert plan(model, ledger.budget.machine, ledger.max_ctx, users).fits
    if ledger.max_ctx < 2**30:
        assert not plan(model, ledger.budget.machine, ledger.max_ctx + 1, users).fits


@given(llama_configs(), contexts, user_counts, machines_drawn)
def test_suggested_changes_fit(config: dict[str, Any], ctx: int, users: int, machine: Machine) -> None:
    """Every change that a failing plan names makes it fit, and the smallest comes first."""
    model = build(config, "drawn")
    ledger = plan(model, machine, ctx, users)
    assert (ledger.limiting_bucket is None) == ledger.fits
    freed = [change.frees for change in ledger.suggestions]
    assert freed == sorted(freed)
    for change in ledger.suggestions:
        assert predict(applied(ledger.budget, change)).fits


@pytest.mark.parametrize("name", ["vllm", "transformers"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("logits", ["last", "every"])
@pytest.mark.parametrize("share", [None, 0.4, 0.9])
@pytest.mark.parametrize("machine", ["dgx-spark", "h100-80gb"])
def test_most_is_the_edge(
    name: str, attention: str, logits: str, share: float | None, machine: str, model: Get
) -> None:
    """Whatever the engine: the most users and the longest context fit, and one more does not."""
    engine = Settings(name, 8192, attention, logits, share)
    ledger = plan(model("meta-llama/Llama-3.2-1B"), machine, 2048, users=2, engine=engine)
    budget, users, ctx = ledger.budget, ledger.max_users, ledger.max_ctx
    assert predict(replace(budget, users=users)).fits
    assert not predict(replace(budget, users=users + 1)).fits
    assert predict(replace(budget, ctx=ctx)).fits
    assert not predict(replace(budget, ctx=ctx + 1)).fits


def test_the_reason_of_overhead(model: Get) -> None:
    """What nobody measured says so; what a budget names is its own word; a system's part is named."""
    assumed = plan(model(LLAMA_8B), "dgx-spark", 8192)
    why = {line.part: line.why for line in assumed.lines if line.bucket == "overhead"}
    parts = ("cuda_context", "allocator", "cuda_graphs")
    assert {why[part] for part in parts} == {"512.00 MiB (536.87 MB) assumed until measured"}
    assert why["os_reserve"] == "10.00 GiB (10.74 GB) left to the operating system"
    said = plan(model(LLAMA_8B), "h100-80gb", 8192, overhead={"cuda_context": 2**29})
    assert [(line.part, line.why) for line in said.lines if line.bucket == "overhead"] == [
        ("cuda_context", "512.00 MiB (536.87 MB) as the budget says")
    ]


@pytest.mark.parametrize(
    ("memory", "bucket"),
    [(100, "overhead"), (3 * 2**29, "weights"), (17_671_135_232, "activations"), (18_662_000_000, "kv_cache")],
)
def test_the_bucket_that_breaks_it(memory: int, bucket: str, model: Get) -> None:
    """Overhead of 1.5 GiB, weights of 16,060,522,496 bytes, a step of 8,192 tokens, the cache: the first too many."""
    ledger = plan(model(LLAMA_8B), Machine("drawn", memory, memory, False, 1), 8192)
    assert (ledger.overhead, ledger.weights, ledger.activations) == (3 * 2**29, 16_060_522_496, 977_338_368)
    assert ledger.limiting_bucket == bucket


def test_a_plan_as_json(model: Get) -> None:
    """Every documented key, bytes as integers; what follows from the bandwidth only where it is known."""
    plan_json = plan(model(LLAMA_8B), "h100-80gb", 8192, users=3).as_json()
    assert set(plan_json) == {
        "model", "model_type", "params", "unknown", "unproven", "assumed", "format", "kv_cache_dtype", "ctx", "users",
        "machine", "engine", "convention", "weights", "kv_cache", "activations", "overhead", "total", "capacity",
        "limit", "headroom", "fits", "max_users", "max_ctx", "kv_per_token", "kv_per_token_at_ctx", "kv_per_request",
        "limiting_bucket", "suggestions", "starts", "pool",
        "max_users_low", "engine_notes", "headroom_low", "refusals", "concurrency", "command",
        "broken_by", "changes", "verdict", "decode_upper_bound", "lines",
    }  # fmt: skip
    assert (plan_json["kv_per_request"], plan_json["kv_cache"]) == (2**30, 3 * 2**30)
    assert set(plan_json["decode_upper_bound"]) == {
        "bytes_read", "bandwidth", "step_seconds", "tokens_per_second_per_user"
    }  # fmt: skip
    unknown = Machine("drawn", 2**40, 2**40, False, 0)
    assert plan(model(LLAMA_8B), unknown, 8192).as_json()["decode_upper_bound"] is None
