"""What would make a budget fit: every change, its bytes and its words, by hand for Llama-3.2-1B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from membudget import formats, machines
from membudget.budgets.budget import Budget, unfiled
from membudget.budgets.settings import Settings, kind_of, settings_of
from membudget.machines import Machine
from membudget.model import Model, build
from membudget.planning.capacity import fits, total_of
from membudget.planning.suggestions import Suggestion, applied, foreign_formats, nothing_helps, suggest, users_text
from tests_math.planning.buckets import summed

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
LLAMA_1B = "meta-llama/Llama-3.2-1B"
#: 1,235,814,400 parameters of 2 bytes.
BF16 = 2_471_628_800
#: 973,078,528 in 112 matrices of the layers: a byte each and an fp32 scale a matrix; embedding and norms stay bf16.
FP8 = 973_078_528 + 112 * 4 + 2 * 262_735_872
#: A block of 32 takes 34 bytes, the embedding as well; 67,584 of norms and 32 rope factors are fp32.
Q8_0 = (973_078_528 + 262_668_288) * 34 // 32 + 4 * (67_584 + 32)
#: Layers in groups of 128: 64 bytes of 4 bits, an fp16 scale and half a byte of zero point.
AWQ = 973_078_528 * 133 // 256 + 2 * 262_735_872
#: A step of 8,192 tokens: 2 x (3 x 8,192 + 4 x 2,048) + 4 x 64 + 8 bytes each; more than a token for 8,000 users.
STEP = 8192 * 65_800
#: 16 layers x 2 x 8 KV heads x 64 x 2 bytes.
TOKEN = 32_768


def budget(model: Model, memory: int, ctx: int, users: int, **more: Any) -> Budget:
    """Llama-3.2-1B on a machine of that many bytes, with nothing beside weights, cache and step."""
    machine = Machine("drawn", memory, memory, False, 1)
    form = formats.get(more.pop("form", "bf16"))
    kv = more.pop("kv", "bf16")
    return summed("b", model, form, kv, ctx, users, machine, overhead={}, **more)


def test_each_change_alone(model: Get) -> None:
    """8 users of 8,192 tokens where 5.5 fit: users, context, an fp8 cache and fp8 weights, the least freed first."""
    request = 8192 * TOKEN
    short = budget(model(LLAMA_1B), BF16 + STEP + 5 * request + request // 2, 8192, 8)
    assert suggest(short) == [
        # 8,192 x 5.5 / 8 tokens each
        Suggestion("5,632 tokens of context instead of 8,192", (8192 - 5632) * TOKEN * 8, {"ctx": 5632}),
        Suggestion("5 users instead of 8", 3 * request, {"users": 5}),
        Suggestion("fp8 weights", BF16 - FP8, {"format": "fp8"}),
        Suggestion("an fp8 KV cache", 4 * request, {"kv_cache_dtype": "fp8"}),
    ]


def test_one_user_instead_of_many(model: Get) -> None:
    """One user is one user, and thousands have commas."""
    short = budget(model(LLAMA_1B), BF16 + STEP + 1024 * TOKEN, 1024, 8000)
    assert suggest(short) == [Suggestion("1 user instead of 8,000", 7999 * 1024 * TOKEN, {"users": 1})]
    assert [users_text(number) for number in (1, 2, 8000)] == ["1 user", "2 users", "8,000 users"]


def test_one_token_instead_of_many(model: Get) -> None:
    """Room for a token of each of three users is a change; one byte less is none, and two users are."""
    room = BF16 + STEP + 3 * TOKEN
    one, none = (budget(model(LLAMA_1B), size, 8192, 3, kv="fp8") for size in (room - 3 * TOKEN // 2, room - 2 * TOKEN))
    small_step: dict[str, Any] = {"max_num_batched_tokens": 512}
    assert [change.values for change in suggest(one)] == [{"ctx": 1}, small_step, {"format": "fp8"}]
    assert [change.values for change in suggest(none)] == [small_step, {"format": "fp8"}]


@pytest.mark.parametrize(
    ("size", "engine", "name"),
    [
        (FP8, "arithmetic", "fp8"),
        (FP8 - 1, "arithmetic", "awq"),
        (AWQ, "arithmetic", "awq"),
        (AWQ, "transformers", "awq"),
    ],
)
def test_the_least_compressed_weights_that_fit(size: int, engine: str, name: str, model: Get) -> None:
    """The first of the engine's own formats whose bytes fit is named, to the byte, and no other."""
    sizes = {"fp8": FP8, "q8_0": Q8_0, "awq": AWQ}
    short = budget(model(LLAMA_1B), size + STEP + 4 * 512 * TOKEN, 512, 4, engine=Settings(engine))
    if engine == "transformers":  # a forward takes what there is: 4 x 512 tokens, less than STEP
        short = budget(model(LLAMA_1B), size + STEP // 4 + 4 * 512 * TOKEN, 512, 4, engine=Settings(engine))
    assert suggest(short) == [Suggestion(f"{name} weights", BF16 - sizes[name], {"format": name})]


def test_weights_that_another_engine_reads(model: Get) -> None:
    """Less than awq and no 8-bit cache that helps: a GGUF is named with who reads it."""
    short = budget(model(LLAMA_1B), AWQ - 1 + STEP + 4 * 512 * TOKEN, 512, 4, kv="fp8")
    (change,) = [change for change in suggest(short) if "format" in change.values]
    assert change.values == {"format": "awq"}  # an fp8 cache leaves that room
    shorter = budget(model(LLAMA_1B), 806_000_000 + STEP + 512 * TOKEN // 2, 512, 1, kv="fp8")
    assert [change.text for change in suggest(shorter)] == ["q4_k_m weights (GGUF, for llama.cpp)"]


@pytest.mark.parametrize("engine", ["vllm", "transformers", "llama_cpp"])
@pytest.mark.parametrize("memory", [*range(10**8, 10**9, 10**8), 2 * 10**9])
@pytest.mark.parametrize("id", [LLAMA_1B, "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it"])
def test_every_change_fits_and_nothing_means_nothing(id: str, memory: int, engine: str, model: Get) -> None:
    """Each change makes it fit; where there is none, no known format does with one user, one token, 8-bit cache."""
    memory = memory if id == LLAMA_1B else memory * 20
    form = "gguf-bf16" if engine == "llama_cpp" else "bf16"
    short = budget(model(id), memory, 4096, 4, form=form, engine=settings_of(engine))
    if fits(short):
        return
    changes = suggest(short)
    for change in changes:
        assert fits(applied(short, change)), change
        assert ("for llama.cpp" in change.text) == (
            engine != "llama_cpp" and change.values.get("format") in foreign_formats()
        )
    if changes or engine == "transformers":
        return
    for name in formats.names():
        if kind_of(engine).refuses(formats.get(name)):
            continue
        least = replace(short, users=1, ctx=1, format=formats.get(name), engine=Settings(engine, 512))
        try:
            least.format.weigh(least.model)
        except formats.FormatError:
            continue
        cache = "q8_0" if engine == "llama_cpp" else "fp8"
        assert not fits(replace(least, kv_cache_dtype=cache)), name
    assert "iq1_s weights" in nothing_helps(short)


def test_an_fp8_cache_with_fewer_users(model: Get) -> None:
    """Room for 0.6 of one user's cache: no single change is enough for 8,000, and an fp8 cache for one is."""
    request = 8192 * TOKEN
    short = budget(model(LLAMA_1B), BF16 + STEP + request * 3 // 5, 8192, 8000)
    frees = 8000 * request - request // 2
    values: dict[str, str | int] = {"kv_cache_dtype": "fp8", "users": 1}
    assert suggest(short) == [Suggestion("an fp8 KV cache and 1 user together", frees, values)]


@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_smaller_weights_with_an_fp8_cache_and_fewer_users(form: str, model: Get) -> None:
    """Weights that are too large become the next smaller ones; weights that are small enough stay."""
    request = 8192 * TOKEN
    # 2.5 users' caches of one byte an element beside fp8 weights, and no room for bf16 weights
    memory = FP8 + STEP + 5 * request // 4
    short = budget(model(LLAMA_1B), memory, 8192, 8000, form=form, kv="fp8")
    if form == "fp8":
        # 2.5 x 8,192 tokens are 2.56 for each of 8,000
        assert [change.values for change in suggest(short)] == [{"users": 2}, {"ctx": 2}]
    else:
        frees = BF16 - FP8 + 7998 * request // 2
        values: dict[str, str | int] = {"users": 2, "format": "fp8"}
        assert suggest(short) == [Suggestion("fp8 weights and 2 users together", frees, values)]


def test_never_more_users_than_asked_for(model: Get) -> None:
    """fp8 weights and cache have room for 9 users, and 8 were asked for."""
    request = 6408 * TOKEN
    # bf16 weights do not fit, and the smallest weights do not with a bf16 cache: 799,862,912 + STEP + 8 x request
    memory = 3_000_000_000
    assert FP8 + STEP + 9 * request // 2 <= memory < min(BF16 + STEP, 799_862_912 + STEP + 8 * request)
    short = budget(model(LLAMA_1B), memory, 6408, 8)
    values: dict[str, str | int] = {"kv_cache_dtype": "fp8", "users": 8, "format": "fp8"}
    frees = BF16 - FP8 + 4 * request
    assert suggest(short) == [Suggestion("fp8 weights, an fp8 KV cache and 8 users together", frees, values)]


def test_nothing_helps(model: Get) -> None:
    """Where not even one token of the smallest weights fits, there is no change."""
    assert suggest(budget(model(LLAMA_1B), 2**28, 8192, 4)) == []


def test_a_published_format_stays_what_it_is(model: Get) -> None:
    """A checkpoint in a format of its own (modelopt): with fewer users only the cache changes."""
    own = model("Qwen/Qwen3-32B-FP8-Static-PerTensor")
    form = formats.of_config(own.config)
    with pytest.raises(formats.UnknownFormat):
        formats.get(form.name)
    vast = Machine("vast", 2**50, 2**50, False, 1)
    many = summed("b", own, form, "bf16", 2**12, 2**16, vast, Settings("arithmetic", max_num_batched_tokens=2**17), {})
    # as much as one user with an fp8 cache needs
    one = replace(many, kv_cache_dtype="fp8", users=1)
    short = replace(many, machine=Machine("tight", total_of(one), total_of(one), False, 1))
    (change,) = suggest(short)
    assert change.values == {"kv_cache_dtype": "fp8", "users": 1}
    values: dict[str, Any] = dict(change.values)
    assert fits(replace(short, **values))


@pytest.mark.parametrize("memory", range(3 * 10**8, 18 * 10**8, 10**8))
def test_formats_that_cannot_be_split_are_passed_over(memory: int, model: Get) -> None:
    """GGUF weights are not split over two machines: they are never named, whatever else fits or does not."""
    short = budget(model(LLAMA_1B), memory, 64, 1, machines=2, tensor_parallel=2)
    for change in suggest(short):
        form = str(change.values.get("format", "bf16"))
        assert form in ("bf16", "fp8", "awq")
        assert fits(applied(short, change))


def test_formats_that_do_not_apply_are_passed_over() -> None:
    """AWQ packs 8 outputs in a word, which 300 are not: the search goes on to q4_k_m, and nothing is raised."""
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 300, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
    }  # fmt: skip
    odd = build(config, "odd")
    with pytest.raises(formats.FormatError):
        formats.get("awq").weigh(odd)
    assert suggest(budget(odd, 1000, 8, 2)) == []
    # as much as one user with q4_k_m weights needs; llama.cpp, which reads those, has no fp8 cache
    vast = budget(odd, 2**40, 8, 10**6)
    one = replace(vast, format=formats.get("q4_k_m"), users=1)
    (change,) = suggest(replace(vast, machine=Machine("tight", total_of(one), total_of(one), False, 1)))
    assert change.values == {"users": 1, "format": "q4_k_m"}
    assert change.text == "q4_k_m weights (GGUF, for llama.cpp) and 1 user together"


@pytest.mark.parametrize("model_id", [LLAMA_1B, "google/gemma-3-27b-it"])
@pytest.mark.parametrize("share", [None, 0.3, 0.9])
@pytest.mark.parametrize("memory", [2, 8, 24])
def test_no_setting_of_the_engine_is_forgotten(model_id: str, share: float | None, memory: int, model: Get) -> None:
    """Eager attention, every logit, a large step and a small share: each change fits, and none only where none does."""
    engine = Settings("vllm", 8192, "eager", "every", share)
    short = budget(model(model_id), memory * 2**30, 8192, 4, engine=engine)
    changes = suggest(short)
    for change in changes:
        assert fits(applied(short, change)), change
    if changes or fits(short):
        return
    for name in formats.names():
        light = Settings("vllm", 512, gpu_memory_utilization=None if share is None else 0.95)
        least = replace(short, users=1, ctx=1, format=formats.get(name), kv_cache_dtype="fp8", engine=light)
        try:
            least.format.weigh(least.model)
        except formats.FormatError:
            continue
        assert not fits(least), name
    assert "sdpa attention instead of eager and logits of the last position" in nothing_helps(short)


def test_a_larger_share_is_a_change(model: Get) -> None:
    """Half of the machine is not enough: the smallest hundredth that is, which frees nothing and comes first."""
    needs = BF16 + STEP + 4 * 8192 * TOKEN
    total = needs * 100 // 61 + 1
    short = budget(model(LLAMA_1B), total, 8192, 4, engine=Settings("arithmetic", gpu_memory_utilization=0.5))
    first, *others = suggest(short)
    share = float(first.values["gpu_memory_utilization"])
    assert (first.text, first.frees) == (f"gpu_memory_utilization {share} instead of 0.5", 0)
    assert int(total * share) >= needs > int(total * (share - 0.01))
    assert others


def test_a_spark_is_not_asked_for_more_than_an_idle_one_gives(model: Get) -> None:
    """70 users of 8,192 tokens take 0.72; for 90 the arithmetic has 0.89, and what is suggested stops at 0.83."""
    spark = machines.get("dgx-spark")
    many = summed("b", model("meta-llama/Llama-3.1-8B"), formats.get("bf16"), "bf16", 8192, 70, spark,
                  Settings("arithmetic", gpu_memory_utilization=0.5))  # fmt: skip
    assert suggest(many)[0].values == {"gpu_memory_utilization": 0.72}
    more = replace(many, users=90)
    assert not [change for change in suggest(more) if "gpu_memory_utilization" in change.values]
    assert fits(replace(more, engine=Settings("arithmetic", gpu_memory_utilization=0.91)))


@pytest.mark.parametrize(
    ("name", "machine", "ctx", "users", "many"),
    [("zai-org/GLM-4.5-Air", "h100-80gb", 32_768, 4, 4), ("meta-llama/Llama-3.1-70B", "h200-141gb", 8192, 1, 2)],
)
def test_more_of_the_same_device(model: Get, name: str, machine: str, ctx: int, users: int, many: int) -> None:
    """213.8 GB of weights are on four H100s, not on two; what needs another purchase comes last, and it fits."""
    short = unfiled(model(name), formats.get("bf16"), "bf16", ctx, users, machines.get(machine), Settings())
    *_, last = suggest(short)
    assert (last.text, last.values) == (f"{many}x {machine}", {"machines": many})
    assert fits(applied(short, last))
    half = applied(short, last._replace(values={"machines": many // 2})) if many > 2 else short
    assert not fits(half)
