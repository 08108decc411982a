"""Activation peaks: closed forms against figures measured with fake tensors on transformers 5.24."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget.engines import activations
from membudget.model import Model, build
from tests_math.strategies import llama_configs

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
LLAMA = "meta-llama/Llama-3.1-8B"
#: Llama-3.1-8B's cache of 8,192 tokens, which the measured peaks include.
KV_8K = 2**30


def test_decode_step(model: Get) -> None:
    """(4h + 3I) x 2 bytes a user: about 120 KB for 8B, 64 users under 8 MB."""
    assert activations.decode(model(LLAMA), 1).bytes == (4 * 4096 + 3 * 14336) * 2 == 118_784
    assert activations.decode(model(LLAMA), 64).bytes < 8_000_000


@pytest.mark.parametrize(
    ("attention", "logits", "measured"),
    [("sdpa", "last", 2_051_080_192), ("sdpa", "every", 3_242_196_992), ("eager", "last", 23_089_709_056)],
)
def test_prefill_peak_of_8k(attention: str, logits: str, measured: int, model: Get) -> None:
    """The byte-exact peak of the real Llama-3.1-8B forward at 8,192 tokens, cache included."""
    peak = activations.prefill(model(LLAMA), 8192, attention=attention, logits=logits)
    assert peak.bytes + KV_8K == measured


def test_mlp_is_most_of_a_fused_prefill(model: Get) -> None:
    """At 8,192 tokens the MLP alone takes 3 x I x N x 2 = 0.70 GB of about 1 GB."""
    peak = activations.prefill(model(LLAMA), 8192)
    assert peak.moment == "mlp"
    assert 3 * 14336 * 8192 * 2 == 704_643_072 < peak.bytes < 1_000_000_000


def test_every_logit(model: Get) -> None:
    """32,768 positions x 128,256 x 2 bytes."""
    assert activations.logits_bytes(model(LLAMA), 32_768) == 8_405_385_216


def test_eager_scores_at_16k(model: Get) -> None:
    """16 GiB of bf16 scores before any copy; 10 bytes an element are alive at the peak."""
    scores = activations.eager_scores(model(LLAMA), 16_384)
    assert scores == 16 * 2**30
    peak = activations.prefill(model(LLAMA), 16_384, attention="eager")
    assert peak.moment == "eager attention"
    # 83.258 GiB measured, 2 GiB of it the cache
    assert round((peak.bytes + 2 * KV_8K) / 2**30, 3) == 83.258


def test_fused_peak_at_16k(model: Get) -> None:
    """Measured at 16,384 tokens: 3.820 GiB with the last logit, 6.039 with every one, 2 GiB of it the cache."""
    last = activations.prefill(model(LLAMA), 16_384).bytes + 2 * KV_8K
    every = activations.prefill(model(LLAMA), 16_384, logits="every").bytes + 2 * KV_8K
    assert (round(last / 2**30, 3), round(every / 2**30, 3)) == (3.820, 6.039)


def test_mixture_counts_the_experts_of_one_token(model: Get) -> None:
    """Qwen3-30B-A3B sends a token to 8 experts of 768: as wide as one MLP of 6,144."""
    widths = activations.widths(model("Qwen/Qwen3-30B-A3B"))
    assert (widths.up, widths.down) == (2 * 8 * 768, 8 * 768)


@given(llama_configs(), st.integers(1, 4096), st.integers(1, 8))
def test_more_tokens_never_take_less(config: dict[str, object], tokens: int, more: int) -> None:
    """Peaks are monotone in tokens, and eager attention or every logit never takes less."""
    model = build(config, "drawn")
    for attention in ("sdpa", "eager"):
        small = activations.prefill(model, tokens, attention=attention).bytes
        assert small <= activations.prefill(model, tokens + more, attention=attention).bytes
        assert small <= activations.prefill(model, tokens, attention=attention, logits="every").bytes
    assert activations.prefill(model, tokens).bytes <= activations.prefill(model, tokens, attention="eager").bytes
    assert activations.decode(model, more).bytes == more * activations.decode(model, 1).bytes
