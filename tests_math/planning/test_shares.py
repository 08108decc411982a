"""A gpu_memory_utilization that takes what the operating system is left does not fit: by hand on a DGX Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import formats, machines
from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, parse
from membudget.budgets.settings import Settings
from membudget.engines.share import room_beside
from membudget.machines import Machine
from membudget.model import Model
from membudget.planning.capacity import (
    engine_limit,
    fits,
    max_ctx,
    max_users,
    share_that_leaves,
    takes_the_systems,
)
from membudget.planning.check import check
from membudget.planning.ledger import predict
from membudget.planning.suggestions import Suggestion, applied, suggest
from membudget.report.failure import failure
from tests_math.planning.buckets import headroom, left_over, summed

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
Ask = Callable[..., tuple[int, Any]]
Run = Callable[..., tuple[int, str, str]]
#: MemTotal of a DGX Spark, and what is left to its system.
SPARK, SYSTEM = 130_663_165_952, 10 * 2**30
#: 0.95 x 130,663,165,952 = 124,130,007,654.4, rounded down: 115.61 GiB; 6,533,158,298 B are left, 6.08 GiB.
CLAIM = 124_130_007_654
LEFT = "leaves 6.08 GiB of the operating system's 10.00 GiB"
SENTENCE = f"gpu_memory_utilization 0.95 claims 115.61 GiB of 121.69 GiB and {LEFT}"


def spark(model: Model, share: float | None, ctx: int = 8192, users: int = 1, **more: Any) -> Budget:
    """A bf16 model on a DGX Spark under vLLM."""
    engine = Settings("arithmetic", gpu_memory_utilization=share)
    machine = more.pop("machine", machines.get("dgx-spark"))
    return summed("b", model, formats.get("bf16"), "bf16", ctx, users, machine, engine, **more)


def test_a_share_that_takes_the_systems(model: Get) -> None:
    """0.95 leaves 6.08 of 10 GiB, whatever the users: 4,204,259,942 B are missing, and 0.91 leaves them."""
    budget = spark(model("Qwen/Qwen3-8B"), 0.95)
    assert engine_limit(budget) == CLAIM
    missing = SPARK - SYSTEM - CLAIM
    assert missing == -4_204_259_942
    assert room_beside(budget.device, budget.engine) == missing
    ledger = predict(budget)
    assert (ledger.fits, ledger.headroom, ledger.limiting_bucket) == (False, missing, "gpu_memory_utilization")
    assert left_over(budget)(8192, 1) == left_over(budget)(1, 1) == missing
    assert (max_users(budget), max_ctx(budget), fits(budget)) == (0, 0, False)
    # (130,663,165,952 - 10,737,418,240) / 130,663,165,952 = 0.9178; 0.91 claims 118,903,481,016 B
    assert share_that_leaves(budget) == 0.91
    change = Suggestion(
        "gpu_memory_utilization 0.91 instead of 0.95", CLAIM - 118_903_481_016, {"gpu_memory_utilization": 0.91}
    )
    assert ledger.suggestions == suggest(budget) == [change]
    help_text = "it would fit with gpu_memory_utilization 0.91 instead of 0.95."
    assert ledger.verdict == f"does not fit: {SENTENCE}; {help_text}"
    assert predict(spark(budget.model, 0.91)).fits


def test_what_is_left_of_a_claim_is_as_before(model: Get) -> None:
    """Where the share leaves the system its part, the headroom is what is left of the claim: 0.87 and 0.91 fit."""
    for share in (0.5, 0.87, 0.91):
        budget = spark(model("Qwen/Qwen3-8B"), share)
        ledger = predict(budget)
        assert not takes_the_systems(budget)
        assert ledger.headroom == int(SPARK * share) - (ledger.total - SYSTEM)
        assert left_over(budget)(8192, 1) == ledger.headroom
        assert ledger.fits


def test_the_edge_to_the_byte(model: Get) -> None:
    """A system's part of exactly what the claim leaves fits; a byte more does not, and is the byte that is missing."""
    for extra, left in ((0, True), (1, False)):
        budget = spark(model("Qwen/Qwen3-8B"), 0.95, os_reserve=SPARK - CLAIM + extra)
        assert room_beside(budget.device, budget.engine) == -extra
        ledger = predict(budget)
        assert ledger.fits is left
        # a byte is missing, or what is left is left of the claim
        assert ledger.headroom == (CLAIM - (ledger.total - budget.os_bytes) if left else -1)
        assert left_over(budget)(8192, 1) == ledger.headroom


def test_only_where_a_system_shares_the_memory(model: Get) -> None:
    """A card of its own has no system on it, and without a share nothing is claimed: no bound."""
    card = spark(model("Qwen/Qwen3-8B"), 0.99, machine=machines.get("h100-80gb"))
    for free in (card, spark(card.model, None), spark(card.model, 0.99, os_reserve=0)):
        assert room_beside(free.device, free.engine) is None
        assert predict(free).fits


def test_more_than_the_share_is_too_much(model: Get) -> None:
    """0.95 and 200 users of 8,192 tokens: each change has the share and what else it takes, and makes it fit."""
    budget = spark(model("Qwen/Qwen3-8B"), 0.95, users=200)
    ledger = predict(budget)
    assert ledger.limiting_bucket == "gpu_memory_utilization"
    # what is missing of the memory is more than what is missing of the system's part
    assert ledger.headroom == SPARK - ledger.total < SPARK - SYSTEM - CLAIM
    # (118,903,481,016 - 16,381,470,720 of weights - 876,675,072 of a step - 1.5 GiB) / 1.125 GiB = 82.8
    texts = [change.text for change in ledger.suggestions]
    assert "gpu_memory_utilization 0.91 with 82 users instead of 200" in texts
    assert max_users(spark(budget.model, 0.91)) == 82
    for change in ledger.suggestions:
        assert fits(applied(budget, change)), change
        # freed: of the claim, and of what would lie in it
        assert change.frees > CLAIM - 118_903_481_016


def test_nothing_helps_where_the_model_is_too_large(model: Get) -> None:
    """A model that no known format makes small enough: the share that was tried is named with the weights."""
    box = Machine("box", 2**30, 2**30, True, 1, 2**29)
    ledger = predict(spark(model("meta-llama/Llama-3.1-70B"), 0.9, machine=box, overhead={}))
    assert ledger.suggestions == []
    # 1 GiB less 0.5 GiB are half of it
    assert "1 user with 1 token with gpu_memory_utilization 0.5 instead of 0.9 and " in ledger.verdict
    assert " and iq1_s weights (GGUF, for llama.cpp) fits box" in ledger.verdict
    assert "claims 921.60 MiB of 1.00 GiB and leaves 102.40 MiB of the operating system's 512.00 MiB" in ledger.verdict


def test_all_of_it(model: Get) -> None:
    """A share of 1 leaves nothing."""
    verdict = predict(spark(model("Qwen/Qwen3-8B"), 1.0)).verdict
    assert "gpu_memory_utilization 1.0 claims 121.69 GiB of 121.69 GiB and leaves 0 B of the operating" in verdict


def test_a_system_that_takes_it_all(model: Get) -> None:
    """Where less than a hundredth is beside the system's part, no share leaves it, and none is suggested."""
    box = Machine("box", 1000, 1000, True, 1, 991)
    budget = spark(model("Qwen/Qwen3-8B"), 0.5, machine=box, overhead={})
    assert share_that_leaves(budget) is None
    assert suggest(budget) == []
    assert "gpu_memory_utilization 0.5 claims 500 B of 1,000 B and leaves 500 B" in predict(budget).verdict


@given(
    st.integers(2**20, 2**42),
    st.integers(1, 2**40),
    st.floats(0.001, 1),
    st.one_of(st.none(), st.integers(2**19, 2**42)),
)
def test_the_share_that_leaves_is_the_largest(memory: int, reserve: int, share: float, cuda: int | None) -> None:
    """Of all hundredths it is the last that leaves the system its part; a share that takes it is above it."""
    from membudget.model import build

    tiny = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
            "intermediate_size": 64, "vocab_size": 10}  # fmt: skip
    box = Machine("box", memory, memory, True, 1, reserve, cuda)
    budget = spark(build(tiny), share, machine=box, overhead={})

    def leaves(hundredths: int) -> bool:
        return hundredths * (cuda or memory) <= 100 * (memory - reserve)

    most = max((hundredths for hundredths in range(1, 101) if leaves(hundredths)), default=None)
    found = share_that_leaves(budget)
    assert found == (None if most is None else most / 100)
    if found is not None:
        assert not takes_the_systems(replace(budget, engine=Settings("arithmetic", gpu_memory_utilization=found)))
        assert takes_the_systems(budget) is False or share > found
    total = 12_345
    assert headroom(budget, total) <= memory - total


def test_two_sparks(model: Get) -> None:
    """Each of two Sparks claims the share of its own memory."""
    budget = spark(
        model("meta-llama/Llama-3.1-70B"), 0.95, machines=2, tensor_parallel=2,
    )  # fmt: skip
    ledger = predict(budget)
    assert ledger.limiting_bucket == "gpu_memory_utilization"
    assert [change.values for change in ledger.suggestions] == [{"gpu_memory_utilization": 0.91}]
    assert SENTENCE in ledger.verdict


FILE = """\
model: Qwen/Qwen3-8B
format: bf16
kv_cache_dtype: bf16
ctx: 8Ki
users: 1
machine: dgx-spark
engine:
  arithmetic:
    gpu_memory_utilization: 0.95
"""

MESSAGE = f"""\
does not fit: {SENTENCE}

Qwen/Qwen3-8B · bf16 · 1 user x 8,192 tokens · dgx-spark (121.69 GiB, unified)

bucket        predicted  expected  off by  allowed
weights      15.256 GiB
kv_cache      1.125 GiB
activations   0.816 GiB
overhead     11.500 GiB
total        28.698 GiB
headroom     -3.916 GiB

smallest change: gpu_memory_utilization 0.91 instead of 0.95

budget   budgets/chat.yaml:9
rerun    pytest -k chat"""


def test_the_message_of_a_budget() -> None:
    """The headline is the sentence, the change is the share, and the line is that of the share."""
    (budget,), problems = parse(FILE.encode(), "budgets/chat.yaml", "chat", ".", Sources())
    assert not problems
    assert failure(check(budget), "pytest -k chat") == MESSAGE


def test_check_says_so(tmp_path: Path, run: Run) -> None:
    """`check` fails at the line of the share; with `fits: false` the budget is as expected."""
    path = tmp_path / "chat.yaml"
    path.write_text(FILE, encoding="utf-8")
    code, out, _ = run("check", str(path))
    assert code == 1
    assert f"chat.yaml:9: fits: false predicted, true expected: does not fit: {SENTENCE};" in " ".join(out.split())
    path.write_text(FILE + "expect: {fits: false}\n", encoding="utf-8")
    assert run("check", str(path))[0] == 0


def test_plan_says_so(ask: Ask, run: Run) -> None:
    """vLLM's own default of 0.92 leaves 9.74 of a Spark's 10 GiB and does not fit; 0.91 does, and a card with 0.99."""
    base = ("plan", "Qwen/Qwen3-8B", "--ctx", "8k", "--gpu-memory-utilization")
    code, plan = ask(*base, "0.92", "--machine", "dgx-spark")
    # 130,663,165,952 B x 0.08 = 9.735 GiB
    assert code == 1
    assert (plan["fits"], plan["broken_by"], plan["max_users"]) == (False, "gpu_memory_utilization", 0)
    assert "claims 111.95 GiB of 121.69 GiB and leaves 9.74 GiB of the operating system's 10.00" in plan["verdict"]
    (change,) = plan["changes"]
    assert change["values"] == {"gpu_memory_utilization": 0.91}
    assert not [note for note in plan["notes"] if "utilization" in note]
    for share, machine in (("0.91", "dgx-spark"), ("0.99", "h100")):
        assert ask(*base, share, "--machine", machine)[0] == 0
    _, out, _ = run(*base, "0.95", "--machine", "dgx-spark")
    assert "3.92 GiB of the system's claimed" in out
    assert "the claim is the same for any number of users and any context" in out


def test_pool_notes_it_and_answers_as_before(ask: Ask, run: Run) -> None:
    """vLLM starts with such a share, so `pool` does: a note says what it takes, and only there."""
    base = ("pool", "Qwen/Qwen3-8B", "--gpu-memory-utilization")
    code, said = ask(*base, "0.95", "--machine", "dgx-spark")
    assert code == 0
    (note,) = [each for each in said["notes"] if "claims" in each]
    assert note.startswith(f"dgx-spark: {SENTENCE}; 0.91 leaves it")
    _, out, _ = run(*base, "0.95", "--machine", "dgx-spark")
    assert SENTENCE in " ".join(out.split())
    for more in (["0.91", "--machine", "dgx-spark"], ["0.95", "--machine", "h100"], ["0.95", "--available-kv", "8GiB"]):
        assert not any("claims" in each for each in ask(*base, *more)[1]["notes"])
    # a pool of fixed size claims no share
    fixed = ask(*base, "0.95", "--machine", "dgx-spark", "--kv-cache-memory-bytes", "8GiB")[1]["notes"]
    assert not any("claims" in each for each in fixed)


def test_shipped_budgets_leave_the_system_its_part() -> None:
    """No budget that ships claims what a system is left."""
    folder = Path(__file__).parents[2] / "budgets"
    seen = 0
    for path in sorted(folder.glob("*.yaml")):
        found, _ = parse(path.read_bytes(), str(path), path.stem, str(folder), Sources())
        for budget in found:
            assert not takes_the_systems(budget), budget.id
            seen += budget.engine.gpu_memory_utilization is not None
    assert seen >= 3


def test_the_page_of_budgets_says_what_is_missing(tmp_path: Path, run: Run) -> None:
    """The report of such a budget has no free memory beside its failure."""
    path, page = tmp_path / "chat.yaml", tmp_path / "page.html"
    path.write_text(FILE, encoding="utf-8")
    run("report", str(path), "-o", str(page))
    text = page.read_text(encoding="utf-8")
    assert "<b>3.92 GiB over</b>" in text
    assert "leaves 6.08 GiB of the operating system" in text
