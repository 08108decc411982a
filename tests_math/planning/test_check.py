"""What a verdict compares: each number by a hand calculation on a model small enough to do it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, parse
from membudget.model import build
from membudget.planning.check import Finding, Verdict, check

pytestmark = pytest.mark.math

#: Llama-3.2-1B: 16 layers, hidden 2,048, 32 heads of 64, 8 KV heads, vocabulary 128,256.
BASE = "model: meta-llama/Llama-3.2-1B\nformat: bf16\nkv_cache_dtype: bf16\nctx: 8Ki\nusers: 4\nmachine: rtx-4090\n"
KV_TOKEN = 2 * 16 * 8 * 64 * 2


def _budget(text: str) -> Budget:
    budgets, problems = parse(text.encode(), "b.yaml", "b", ".", Sources())
    assert not problems
    return budgets[0]


def _verdict(text: str) -> Verdict:
    verdict = check(_budget(text if "engine:" in text else text + "engine: {arithmetic: {}}\n"))
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


def test_a_wrong_expectation_of_a_breakage_fails_by_itself() -> None:
    """Logits, scores and activations are held against their numbers, and point at their lines."""
    # the last position of three prompts; their MLP is the peak, 3 x 2,048 x 65,800
    right = {"logits": 3 * 2048 * 128_256 * 2, "scores": 32 * 2048**2 * 2, "activations": 3 * 2048 * 65_800}
    for field, value in right.items():
        expect = f"      expect:\n        {field}: "
        text = BASE + f"ceiling: 8 GiB\nbreak:\n    - outcome: fits\n      ctx: 2Ki\n      users: 3\n{expect}"
        assert _verdict(f"{text}{value}\n").passed
        broken = _verdict(f"{text}{value + 1}\n").broken
        assert [(item.field, item.predicted, item.line) for item in broken] == [(f"break[0].{field}", value, 13)]


def test_a_breakage_in_fp32_and_of_last_logits() -> None:
    """fp32 has temporaries of 4 bytes; a forward that keeps one row a prompt keeps as many rows as prompts."""
    text = BASE + "ceiling: 40 GiB\nbreak: [{outcome: fits, ctx: 2Ki, users: 3, expect: {activations: %d}}]\n"
    # 6,144 tokens x (4 x (3 x 8,192 + 4 x 2,048) + 8 x 64 + 8)
    assert _verdict(text.replace("bf16\nkv", "fp32\nkv") % (6144 * (4 * 32_768 + 520))).passed
    # one token for each of three: three rows of logits are more than their MLP, and one row would not be
    one = text.replace("2Ki", "1") % (3 * 2 * (128_256 + 2048))
    assert _verdict(one).passed


def test_a_breakage_with_eager_attention() -> None:
    """Eager attention is what was asked for: 10 x 32 x N^2 + 2 N^2 + rest bytes a prompt."""
    # the rest: 2 x 2 x 32 x 64 + 4 x 2 x 2,048 + 2 x 2 x 64 + 8 bytes a token
    peak = 3 * (322 * 2048**2 + 2048 * (4 * 2048 + 8 * 2048 + 256 + 8))
    breakage = f"{{attention: eager, outcome: fits, ctx: 2Ki, users: 3, expect: {{activations: {peak}}}}}"
    assert _verdict(BASE + f"ceiling: 40 GiB\nbreak: [{breakage}]\n").passed


def test_a_breakage_without_a_ceiling_is_an_error() -> None:
    """A file must name one; a budget made without a file has the same answer."""
    budget = _budget(BASE + "ceiling: 8 GiB\nbreak: [{outcome: fits}]\n")
    verdict = check(replace(budget, ceiling=None))
    assert not verdict.passed
    assert "break needs a ceiling" in verdict.error


def test_a_verdict_has_all_that_a_message_needs() -> None:
    """The budget, its ledger, and of each finding what was predicted, what was expected, why, and the line."""
    budget = _budget(BASE + "expect:\n  params: 7\n")
    verdict = check(budget)
    assert verdict.budget is budget
    assert verdict.ledger is not None
    assert verdict.ledger.budget is budget
    fits, params = verdict.findings
    assert fits == Finding("fits", True, True, True, verdict.ledger.verdict, 1)
    assert (params.predicted, str(params.expected), params.holds, params.line) == (1_235_814_400, "7", False, 8)
    # made without a file there are no lines of fields: the budget's own counts
    bare = check(replace(budget, where={}, line=5))
    assert [finding.line for finding in bare.findings] == [5, 5]


def test_every_breakage_is_found_with_its_reason() -> None:
    """Two breakages, the second one wrong: sums in words, outcomes as predicted and as expected, and their lines."""
    text = BASE + "ceiling: 4 GiB\nbreak:\n  - outcome: fits\n  - outcome: fits\n    users: 9\n"
    verdict = _verdict(text)
    first, second = verdict.findings[1:]
    # 8,192 tokens: 2.30 GiB of weights, 256 MiB of cache and a step of 65,800 bytes a token
    why = (
        "weights 2.30 GiB + cache 256.00 MiB + mlp 514.06 MiB = 3.05 GiB under a ceiling of 4.00 GiB; 8,192 tokens x ("
    )
    assert (first.field, first.predicted, first.expected, first.line) == ("break[0].outcome", "fits", "fits", 9)
    assert first.why.startswith(why)
    assert (second.field, second.predicted, second.expected) == ("break[1].outcome", "out_of_memory", "fits")
    assert (second.holds, second.line) == (False, 10)
    assert [finding.line for finding in check(replace(verdict.budget, where={}, line=5)).findings] == [5, 5, 5]


def test_expectations_of_a_breakage_share_its_reason() -> None:
    """Its numbers come from one forward: 32 heads of scores and every logit, in fp32."""
    values = f"{{scores: {32 * 2048**2 * 4}, logits: {2048 * 128_256 * 4}}}"
    text = BASE.replace("bf16\nkv", "fp32\nkv") + "ceiling: 8 GiB\n"
    verdict = _verdict(text + f"break: [{{outcome: fits, ctx: 2Ki, expect: {values}}}]\n")
    assert verdict.passed
    assert len({finding.why for finding in verdict.findings[1:]}) == 1
    assert [str(finding.expected) for finding in verdict.findings[2:]] == ["512 MiB", "1002 MiB"]


def test_what_cannot_be_predicted_is_an_error_with_its_budget() -> None:
    """A context of nothing: no ledger, no finding, the reason."""
    budget = replace(_budget(BASE), ctx=0)
    assert check(budget) == Verdict(budget, None, (), "ctx is 0; allowed is a whole number >= 1")


def _why(text: str, field: str) -> str:
    return _found(_verdict(text + f"expect: {{{field}: 1}}\n"))[field].why


def test_the_reasons_are_sums_that_can_be_done_by_hand() -> None:
    """Each reason has the numbers of the model's card in it."""
    assert _why(BASE, "logits") == "8,192 positions x 128,256 words x 2 bytes"
    roles = "embed 262,668,288 + attn 167,772,160 + mlp 805,306,368 + norms 67,584"
    assert _why(BASE, "params") == _why(BASE, "checkpoint") == roles
    assert _why(BASE, "active") == f"what one token reads of {roles}"
    assert _why(BASE, "overhead") == "cuda_context 512.00 MiB + allocator 512.00 MiB + cuda_graphs 512.00 MiB"
    assert "4 users x 268,435,456 bytes at 8,192 tokens" in _why(BASE, "kv_per_request")
    assert _why(BASE, "capacity") == "rtx-4090, reported"
    # 2,471,628,800 and 539,033,600 bytes
    parts = "weights 2.30 GiB + kv_cache 1.00 GiB + activations 514.06 MiB + overhead 1.50 GiB"
    assert _why(BASE, "total") == parts
    assert _why(BASE, "headroom") == f"23.99 GiB less {parts}"
    assert _why(BASE, "max_users") == f"256.00 MiB of cache a user; {parts}; 23.99 GiB in all"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("meta-llama/Llama-3.2-1B", "16 full layers x 8 KV heads x (64 + 64)"),
        (
            "google/gemma-3-27b-it",
            "52 sliding layers x 16 KV heads x (128 + 128) + 10 full layers x 16 KV heads x (128 + 128)",
        ),
        # kv_lora_rank 512, qk_rope_head_dim 64, index_head_dim 128
        ("deepseek-ai/DeepSeek-V3", "61 latent layers x (512 + 64)"),
        ("deepseek-ai/DeepSeek-V3.2", "61 latent layers x ((512 + 64) + 128 of the indexer)"),
        # 30 of 40 layers have a state and keep nothing of a token
        ("Qwen/Qwen3.5-35B-A3B", "10 full layers x 2 KV heads x (256 + 256)"),
    ],
)
def test_what_a_token_keeps_in_words(name: str, why: str) -> None:
    """Alike layers are counted together; states are no part of a token."""
    assert _why(BASE.replace("meta-llama/Llama-3.2-1B", name), "kv_per_token") == f"{why} elements of bf16"


def test_a_model_of_states_keeps_no_tokens() -> None:
    """Where no layer keeps tokens, the reason says so."""
    config = {
        "model_type": "mamba", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "state_size": 16,
        "conv_kernel": 4, "time_step_rank": 4, "vocab_size": 100,
    }  # fmt: skip
    budget = replace(_budget(BASE + "expect: {kv_per_token: 0}\n"), model=build(config, "states"))
    assert _found(check(budget))["kv_per_token"].why == "no layer keeps tokens"


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
