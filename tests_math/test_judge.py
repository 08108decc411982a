"""What a verdict compares: each number by a hand calculation on a model small enough to do it."""

from __future__ import annotations

import pytest

from membudget.budget import Budget
from membudget.budget_file import Sources, parse
from membudget.judge import Finding, Verdict, judge

pytestmark = pytest.mark.math

#: Llama-3.2-1B: 16 layers, hidden 2,048, 32 heads of 64, 8 KV heads, vocabulary 128,256.
BASE = "model: meta-llama/Llama-3.2-1B\nformat: bf16\nkv_cache_dtype: bf16\nctx: 8Ki\nusers: 4\nmachine: rtx-4090\n"
KV_TOKEN = 2 * 16 * 8 * 64 * 2


def _budget(text: str) -> Budget:
    budgets, problems = parse(text.encode(), "b.yaml", "b", ".", Sources())
    assert not problems
    return budgets[0]


def _verdict(text: str) -> Verdict:
    verdict = judge(_budget(text))
    assert verdict.error == ""
    return verdict


def _found(verdict: Verdict) -> dict[str, Finding]:
    return {finding.field: finding for finding in verdict.findings}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("params", 1_235_814_400),
        ("active", 1_235_814_400),
        ("checkpoint", 1_235_814_400),
        ("weights", 2 * 1_235_814_400),
        ("kv_per_token", KV_TOKEN),
        ("kv_per_request", 8192 * KV_TOKEN),
        ("kv_cache", 4 * 8192 * KV_TOKEN),
        # 8,192 tokens x (2 x (3 x 8,192 + 4 x 2,048) + 4 x 64 + 8)
        ("activations", 8192 * (2 * (3 * 8192 + 4 * 2048) + 4 * 64 + 8)),
        ("logits", 8192 * 128_256 * 2),
        ("overhead", 3 * 2**29),
        ("capacity", 24_564 * 2**20),
        # 24,564 MiB less everything but the caches, a user's 256 MiB at a time
        ("max_users", (24_564 * 2**20 - 3 * 2**29 - 2_471_628_800 - 8192 * 65_800) // (8192 * KV_TOKEN)),
        ("max_ctx", (24_564 * 2**20 - 3 * 2**29 - 2_471_628_800 - 8192 * 65_800) // (4 * KV_TOKEN)),
    ],
)
def test_every_expectation_is_held_against_its_number(field: str, value: int) -> None:
    """The right value passes, one more is a failure, and the field's own line is in the verdict."""
    verdict = _verdict(BASE + f"expect:\n  {field}: {value}\n")
    assert verdict.passed
    assert _found(verdict)[field].line == 8
    wrong = _verdict(BASE + f"expect:\n  {field}: {value + 1}\n")
    assert [finding.field for finding in wrong.broken] == [field]


def test_total_and_headroom_follow_from_the_buckets() -> None:
    """Four buckets make the total; capacity less the total is the headroom."""
    total = 2_471_628_800 + 4 * 8192 * KV_TOKEN + 8192 * 65_800 + 3 * 2**29
    assert _verdict(BASE + f"expect: {{total: {total}, headroom: {24_564 * 2**20 - total}}}\n").passed


def test_logits_are_as_wide_as_the_weights() -> None:
    """A model in fp32 has logits in fp32."""
    verdict = _verdict(BASE.replace("bf16\nkv", "fp32\nkv") + f"expect: {{logits: {8192 * 128_256 * 4}}}\n")
    assert verdict.passed


def test_a_breakage_counts_all_its_prompts() -> None:
    """Logits and cache of three prompts, scores of one layer, and the ceiling over weights, cache and step."""
    expect = f"{{logits: {3 * 2048 * 128_256 * 2}, scores: {32 * 2048**2 * 2}}}"
    # the head is the peak: 3 x 2,048 x (128,256 + 2,048) x 2
    needed = 2_471_628_800 + 3 * 2048 * KV_TOKEN + 3 * 2048 * (128_256 + 2048) * 2
    text = BASE + f"break: [{{logits: every, ctx: 2Ki, users: 3, expect: {expect}, outcome: fits}}]\n"
    assert _verdict(text + f"ceiling: {needed} B\n").passed
    verdict = _verdict(text + f"ceiling: {needed - 1} B\n")
    assert [(item.field, item.predicted) for item in verdict.broken] == [("break[0].outcome", "out_of_memory")]


def test_a_breakage_takes_the_budgets_context_and_one_prompt() -> None:
    """Left out, ctx is the budget's, users 1, attention fused and logits the last."""
    needed = 2_471_628_800 + 8192 * KV_TOKEN + 8192 * 65_800
    text = BASE + f"break: [{{outcome: fits}}]\nceiling: {needed} B\n"
    assert _verdict(text).passed
    assert not _verdict(text.replace(f"{needed}", f"{needed - 1}")).passed


def test_a_budget_must_fit_unless_it_says_otherwise() -> None:
    """Without `fits` it is true; `false` inverts it, and both point at a line."""
    crowd = BASE.replace("users: 4", "users: 4_000")
    assert _verdict(BASE).passed
    assert not _verdict(crowd).passed
    assert _verdict(crowd + "expect: {fits: false}\n").passed
    assert not _verdict(BASE + "expect: {fits: false}\n").passed
    assert _found(_verdict(crowd))["fits"].line == 1
    assert _found(_verdict(crowd + "expect:\n  fits: true\n"))["fits"].line == 8


def test_whether_it_fits_comes_first() -> None:
    """A message begins with what matters most."""
    verdict = _verdict(BASE.replace("users: 4", "users: 4_000") + "expect: {params: 1, weights: 1 B}\n")
    assert [finding.field for finding in verdict.broken] == ["fits", "params", "weights"]
