"""How much a budget takes and how much would fit, against arithmetic by hand on a model small enough for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.settings import Settings
from membudget.engines.search import largest
from membudget.machines import Machine
from membudget.model import Model, build
from membudget.planning.capacity import fits, kv_request, max_ctx, max_users, total_of
from membudget.planning.ledger import predict
from membudget.planning.words import limit_text
from tests_math.planning.buckets import activation_peak, headroom, held, kv_growth, left_over, summed

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
#: 16 layers, hidden 2,048, MLP 8,192, 32 heads of 64, 8 KV heads, vocabulary 128,256; 1,235,814,400 parameters.
LLAMA_1B = "meta-llama/Llama-3.2-1B"
OVERHEAD = {"cuda_context": 3 * 2**20, "allocator": 5 * 2**20}


def total(ctx: int, users: int, engine: Settings, width: int) -> int:
    """All bytes of Llama-3.2-1B beside overhead, as the docstring of `activations` has them."""
    tokens, sequences = (ctx * users, users) if engine.name == "transformers" else (8192, 1)
    rows = tokens if engine.logits == "every" else sequences
    mlp = tokens * (width * (3 * 8192 + 4 * 2048) + 2 * width * 64 + 8)
    head = width * (rows * 128_256 + tokens * 2048)
    eager = 0
    if engine.attention == "eager":
        length = -(-tokens // sequences)
        # 16 bits: the scores, their fp32 copy and the fp32 softmax; 32 bits: the scores and the softmax
        pair = {2: 10, 4: 8}[width]
        rest = 2 * width * 32 * 64 + 4 * width * 2048 + 2 * width * 64 + 8
        eager = sequences * (pair * 32 * length**2 + width * length**2 + rest * length)
    decode = users * (4 * 2048 + 3 * 8192) * width
    cache = 2 * 16 * 8 * 64 * 2 * ctx * users
    return 1_235_814_400 * width + cache + max(mlp, head, eager, decode)


def budgets(model: Model, ctx: int, users: int, memory: int) -> Iterator[tuple[Budget, int]]:
    """Every engine and width with its bytes by hand, on a machine whose system keeps 7 MiB."""
    machine = Machine("drawn", memory, memory, True, 1, 7 * 2**20)
    for name in ("arithmetic", "transformers"):
        for attention in ("sdpa", "eager"):
            for logits in ("last", "every"):
                for form, width in (("bf16", 2), ("fp32", 4)):
                    engine = Settings(name, 8192, attention, logits)
                    budget = summed("b", model, formats.get(form), "bf16", ctx, users, machine, engine, OVERHEAD)
                    yield budget, total(ctx, users, engine, width) + 15 * 2**20


@pytest.mark.parametrize(("ctx", "users"), [(1, 1), (333, 1), (2048, 3), (700, 200), (1, 9000)])
def test_totals_by_hand(ctx: int, users: int, model: Get) -> None:
    """Whatever the engine, its attention and logits, and however wide: the total, the headroom and the plan agree."""
    for budget, expected in budgets(model(LLAMA_1B), ctx, users, 2**40):
        assert total_of(budget) == predict(budget).total == expected
        assert left_over(budget)(ctx, users) == headroom(budget, expected) == 2**40 - expected


@pytest.mark.parametrize(("ctx", "users"), [(333, 1), (2048, 3), (700, 200)])
def test_the_last_byte_by_hand(ctx: int, users: int, model: Get) -> None:
    """Exactly those bytes fit these users and this context and no more; one byte less, and a user less."""
    for budget, expected in budgets(model(LLAMA_1B), ctx, users, 0):
        exact, less = (
            replace(budget, machine=replace(budget.machine, memory=size)) for size in (expected, expected - 1)
        )
        assert fits(exact)
        assert not fits(less)
        assert max_users(exact) == users
        assert max_ctx(exact) == ctx
        assert max_users(less) == users - 1


def test_an_engine_takes_its_own_chunk(model: Get) -> None:
    """max_num_batched_tokens is the prefill step of vLLM, however long the context: 65,800 bytes a token here."""
    budget = summed("b", model(LLAMA_1B), formats.get("bf16"), "bf16", 131_072, 4, machines.get("rtx-4090"))
    for chunk in (512, 2048, 16_384):
        peak = activation_peak(replace(budget, engine=Settings("arithmetic", max_num_batched_tokens=chunk)), 131_072, 4)
        assert peak.bytes == chunk * 65_800


def test_cache_of_windows(model: Get) -> None:
    """Gemma-3-27B keeps 1,024 tokens in 52 of 62 layers: 62 layers grow to the window, 10 after it."""
    budget = summed("b", model("google/gemma-3-27b-it"), formats.get("bf16"), "bf16", 1, 1, machines.get("rtx-4090"))
    layer = 2 * 16 * 128 * 2
    assert kv_request(budget, 5000) == (52 * 1024 + 10 * 5000) * layer
    assert [kv_growth(budget, position) for position in (1, 1024, 1025)] == [62 * layer, 62 * layer, 10 * layer]


def test_no_search_looks_beyond_its_limits(model: Get) -> None:
    """Memory without end: 2^24 users and 2^30 tokens are the most that are looked for."""
    machine = Machine("vast", 2**90, 2**90, False, 1)
    budget = summed("b", model(LLAMA_1B), formats.get("bf16"), "bf16", 8192, 4, machine)
    assert max_users(budget) == 16_777_216
    assert max_ctx(budget) == 1_073_741_824


def test_the_limit_of_an_engine(model: Get) -> None:
    """A share is of what CUDA reports, of the nominal size where that was asked for, and never above the memory."""
    # Linux sees 1,000 bytes, the box says 1,200, CUDA reports 900, and the system keeps 100
    machine = Machine("box", 1000, 1200, True, 1, 100, cuda_total=900)
    base = summed("b", model(LLAMA_1B), formats.get("bf16"), "bf16", 1, 1, machine, overhead={})
    half = replace(base, engine=Settings("arithmetic", gpu_memory_utilization=0.5))
    # 450 for the engine, and the system's 100 are not its own
    assert headroom(half, 550) == 0
    assert headroom(half, 551) == -1
    assert limit_text(half) == "the 450 B that gpu_memory_utilization 0.5 gives arithmetic on box"
    # 600 of the nominal 1,200
    assert headroom(replace(half, convention="nominal"), 700) == 0
    # 0.99 of 900 and the system's 100 are 991, 9 short of the memory
    assert headroom(replace(base, engine=Settings("arithmetic", gpu_memory_utilization=0.99)), 991) == 0
    # without CUDA's total a share is of the memory: 900 and the system's 100 are all of it
    whole = replace(
        base, engine=Settings("arithmetic", gpu_memory_utilization=0.9), machine=replace(machine, cuda_total=None)
    )
    assert headroom(whole, 1000) == 0
    assert limit_text(whole) == "the 1,000 B of box"
    assert limit_text(base) == "the 1,000 B of box"
    assert headroom(base, 400) == 600


def test_the_search_stays_below_the_limit_of_an_engine(model: Get) -> None:
    """Half of what CUDA has for three users: 1.5 users' caches beside everything else make one; with more, three."""
    request = 1024 * 32_768
    spent = total(1024, 0, Settings("arithmetic"), 2)
    limit = spent + request * 3 // 2
    machine = Machine("box", 10 * limit, 10 * limit, True, 1, 7 * 2**20, cuda_total=2 * limit)
    engine = Settings("arithmetic", gpu_memory_utilization=0.5)
    budget = summed("b", model(LLAMA_1B), formats.get("bf16"), "bf16", 1024, 3, machine, engine, {})
    # the system's part is not the engine's
    assert left_over(budget)(1024, 3) == limit - spent - 3 * request == predict(budget).headroom
    assert (max_users(budget), max_ctx(budget)) == (1, 512)
    # overhead is
    less = replace(budget, overhead={"cuda_context": request})
    assert (max_users(less), max_ctx(less)) == (0, 512 // 3)
    # with a smaller memory than the limit the memory counts
    tight = replace(budget, machine=replace(machine, memory=limit, cuda_total=10 * limit, os_reserve=0))
    assert left_over(tight)(1024, 3) == limit - spent - 3 * request


def test_a_rank_is_a_budget_of_one_machine(model: Get) -> None:
    """What a rank of three stages holds is planned as one machine; the tightest stage is not the first one."""
    budget = summed(
        "b", model("google/gemma-2-27b"), formats.get("bf16"), "bf16", 8192, 1, machines.get("rtx-4090"),
        machines=3, pipeline_parallel=3,
    )  # fmt: skip
    parts = held(budget)
    assert held(replace(budget, machines=1, pipeline_parallel=1))[0].model is budget.model
    # vLLM 0.32.0 cuts 46 layers into 15, 16 and 15
    assert [len(part.model.caches) for part in parts] == [15, 16, 15]
    both = replace(budget, machines=6, tensor_parallel=2)
    assert len(held(both)) == 3
    rooms = [budget.capacity - part.total(8192, 1) for part in parts]
    assert rooms[0] > min(rooms)
    assert left_over(budget)(8192, 1) == min(rooms)


#: However unevenly the headroom falls (windows, states).
drops = st.lists(st.integers(-20, 60), min_size=2, max_size=40)


@given(drops, st.integers(1, 60))
def test_the_search_finds_the_last_that_fits(drops: list[int], near: int) -> None:
    """Wherever it begins, it is the brute-force answer."""
    falling = sorted(drops, reverse=True)
    most = len(falling) - 1
    # past the end nothing is asked but the slope
    found = largest(lambda n: falling[min(n, most)] - max(0, n - most) * 100, most, near)
    assert found == max((n for n in range(1, most + 1) if falling[n] >= 0), default=0)


def test_every_small_search() -> None:
    """Every edge of every range up to 24, from everywhere: the edge is found, and nobody looks beyond the range."""
    for most in range(1, 25):
        for edge in range(most + 1):
            for near in range(1, most + 1):
                found, seen = asked(lambda number, edge=edge: 0 if number <= edge else -1, most, near)  # type: ignore[misc]
                assert found == edge
                assert max(seen) <= most + (near == most)


def asked(left: Callable[[int], int], most: int, near: int) -> tuple[int, list[int]]:
    """The answer of a search, and what it asked for."""
    seen: list[int] = []

    def noted(number: int) -> int:
        seen.append(number)
        return left(number)

    return largest(noted, most, near), seen


@given(st.integers(0, 2**50), st.integers(1, 2**20), st.integers(1, 2**20))
def test_a_straight_line_is_five_questions(room: int, slope: int, near: int) -> None:
    """One, two for the slope, the answer and the one beyond it: a plan asks twice, ten thousand times a second."""
    most = 2**30
    found, seen = asked(lambda number: room - slope * number, most, near)
    assert found == min(room // slope, most)
    assert len(seen) <= 5


@given(st.integers(1, 2**30), st.integers(1, 2**30), st.integers(0, 1))
def test_a_cliff_is_at_most_twice_its_digits(edge: int, near: int, slope: int) -> None:
    """Where the slope says nothing, steps double and halve: 2 x 30 questions of 2^30, and never beyond the most."""
    found, seen = asked(lambda number: (2**30 if number <= edge else -1) - slope * number, 2**30, near)
    assert found == edge
    assert len(seen) <= 66
    assert max(seen) <= max(2**30, near + 1)


@given(st.integers(-1000, 1000))
def test_a_small_step_beside_the_guess_is_soon_found(off: int) -> None:
    """An answer a little beside where the slope leads costs twice the digits of the difference, not of the most."""
    # flat but for a cliff: the slope is 0, so the search goes on from `near`
    found, seen = asked(lambda number: 1 if number <= 10**6 + off else -1, 2**30, 10**6)
    assert found == 10**6 + off
    assert len(seen) <= 4 + 2 * (abs(off) + 1).bit_length()


def test_a_config_without_a_cache_has_room_for_all() -> None:
    """A state-space model keeps a state a user and nothing a token: its context has no end of its own."""
    config: dict[str, Any] = {
        "model_type": "mamba", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "state_size": 16,
        "conv_kernel": 4, "time_step_rank": 4, "vocab_size": 100,
    }  # fmt: skip
    budget = summed("b", build(config, "m"), formats.get("bf16"), "bf16", 8, 1, Machine("m", 2**32, 2**32, False, 1))
    assert kv_request(budget, 1) == kv_request(budget, 2**20) > 0
    assert max_ctx(budget) == 2**30
