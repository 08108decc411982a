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


@pytest.mark.parametrize(
    ("name", "width"),
    [
        # U + F by the config's own sizes: gate and up put out two widths, down takes one
        ("Qwen/Qwen3-30B-A3B", 3 * 8 * 768),
        ("mistralai/Mixtral-8x7B-v0.1", 3 * 2 * 14_336),
        ("deepseek-ai/DeepSeek-V3", 3 * 18_432),  # its first layers are dense, and as wide as 8 experts and one shared
        # experts stacked as (in, out), and as wide as the hidden size
        ("openai/gpt-oss-20b", 3 * 4 * 2880),
        # (in, out), one expert and a shared one
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 3 * (8192 + 8192)),
        # (out, in), under the same names as gpt-oss's
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 3 * 8 * 768),
        # (out, in), beside a dense MLP in the same layer
        ("google/gemma-4-26B-A4B", 3 * (2112 + 8 * 704)),
        # gated by matrices called w1 and w2, with c_proj behind them
        ("Qwen/Qwen-7B", 3 * 11_008),
        # a wide dense layer before narrower ones would count, but 8 experts and a shared one are wider
        ("zai-org/GLM-4.5-Air", max(3 * 10_944, 3 * 9 * 1408)),
        # experts not gated and between latents of 1,024, a shared one beside them, and the latents' own projections
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 2 * 22 * 2688 + 2 * 5376 + 2 * 1024),
        # not gated, and stored as (in, out)
        ("openai-community/gpt2-medium", 2 * 4096),
    ],
)
def test_width_of_an_mlp(name: str, width: int, model: Get) -> None:
    """What one token is wide in the MLP, whatever its matrices are called and whichever way they are stored."""
    assert activations.widths(model(name)).mlp == width


def test_an_mlp_as_wide_as_the_model() -> None:
    """Where the MLP is as wide as the hidden size, up and down look alike, and all three count."""
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 10}  # fmt: skip
    assert activations.widths(build(config, "square")) == activations.Widths(64, 3 * 64, 4, 16, 10)


def test_a_low_rank_side_path_counts_by_its_half_beside_the_model() -> None:
    """Zamba2's adapters: (8, 64) touches the hidden size and counts its 8, (192, 8) touches none and does not."""
    config = {"model_type": "zamba2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
              "num_attention_heads": 4, "vocab_size": 50, "adapter_rank": 8, "use_shared_mlp_adapter": True,
              "hybrid_layer_ids": [2, 5], "num_mem_blocks": 1, "mamba_ngroups": 1, "n_mamba_heads": 8,
              "mamba_expand": 2}  # fmt: skip
    model = build(config, "adapters")
    shapes = {tensor.shape for tensor in model.tensors if tensor.role.startswith("mlp")}
    assert (192, 8) in shapes
    # gate and up as one, down, and the first half of each of two adapters
    assert activations.widths(model).mlp == 3 * 96 + 2 * 8


def test_the_words_of_a_peak(model: Get) -> None:
    """Each moment's formula, with its numbers: they multiply out to its bytes."""
    llama = model(LLAMA)
    decode = activations.decode(llama, 2)
    assert (decode.phase, decode.moment) == ("decode", "mlp")
    assert decode.why == "2 users x (4 x 4,096 + 43,008) x 2 bytes"
    mlp = activations.prefill(llama, 8192)
    assert (mlp.phase, mlp.moment) == ("prefill", "mlp")
    assert mlp.why == "8,192 tokens x (2 x (43,008 + 4 x 4,096) + 4 x 128 + 8) bytes"
    assert mlp.bytes == 8192 * (2 * (43_008 + 4 * 4096) + 4 * 128 + 8)
    head = activations.prefill(llama, 8192, sequences=2, logits="every")
    assert (head.phase, head.moment) == ("prefill", "logits")
    wide = activations.prefill(llama, 8192, width=4)
    assert wide.why == "8,192 tokens x (4 x (43,008 + 4 x 4,096) + 8 x 128 + 8) bytes"
    assert head.why == "8,192 logits rows x 128,256 x 2 + 8,192 tokens x 4,096 x 2 bytes"
    # two rows of logits are more than the MLP of four tokens
    last = activations.prefill(llama, 4, sequences=2)
    assert last.bytes == 2 * (2 * 128_256 + 4 * 4096)
    assert last.why == "2 logits rows x 128,256 x 2 + 4 tokens x 4,096 x 2 bytes"
    eager = activations.prefill(llama, 8192, sequences=2, attention="eager")
    assert (eager.phase, eager.moment) == ("prefill", "eager attention")
    # the rest: 4 x 32 x 128 + 8 x 4,096 + 4 x 128 + 8 bytes a position
    assert eager.why == f"2 x (32 heads x 4,096^2 x 10 + 4,096^2 x 2 + {4096 * 49_672:,}) bytes"
    assert eager.bytes == 2 * (322 * 4096**2 + 4096 * 49_672)
    wide = activations.prefill(llama, 8192, attention="eager", width=4)
    assert (
        wide.why == f"1 x (32 heads x 8,192^2 x 8 + 8,192^2 x 4 + {8192 * (8 * 4096 + 16 * 4096 + 1024 + 8):,}) bytes"
    )


@given(llama_configs(), st.integers(1, 300), st.integers(1, 5), st.sampled_from([2, 4]))
def test_coefficients_are_the_same_arithmetic(config: dict[str, object], tokens: int, users: int, width: int) -> None:
    """A page that multiplies coefficients has every peak to the byte."""
    model = build(config, "drawn")
    length = -(-tokens // users)
    wide = activations.widths(model)
    for logits, rows in (("last", users), ("every", tokens)):
        known = {
            "users": users, "tokens": tokens, "rows": rows, "squares": users * length**2, "padded": users * length,
        }  # fmt: skip
        moments = {
            name: sum(number * known[quantity] for quantity, number in sums.items())
            for name, sums in activations.coefficients(wide, width).items()
        }
        assert moments["decode"] == activations.decode(model, users, width).bytes
        for attention, names in (("sdpa", ("mlp", "logits")), ("eager", ("mlp", "logits", "eager attention"))):
            peak = activations.prefill(model, tokens, sequences=users, attention=attention, logits=logits, width=width)
            assert peak.bytes == max(moments[name] for name in names)


def test_a_latent_is_as_wide_as_its_key(model: Get) -> None:
    """MLA keeps kv_lora_rank 512 and a RoPE key of 64: the widest key of a token; no cache is no width."""
    assert activations.widths(model("deepseek-ai/DeepSeek-V3")).head_dim == 576
    # Gemma-4 has heads of 256 in its windows and of 512 in full layers
    assert activations.widths(model("google/gemma-4-26B-A4B")).head_dim == 512
    config = {
        "model_type": "mamba", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "state_size": 16,
        "conv_kernel": 4, "time_step_rank": 4, "vocab_size": 100,
    }  # fmt: skip
    assert activations.widths(build(config, "states")) == activations.Widths(64, 0, 1, 0, 100)


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
