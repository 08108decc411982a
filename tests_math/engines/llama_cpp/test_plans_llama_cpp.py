"""A plan for llama.cpp pays for its cells: one slot a user, against what servers printed and arithmetic by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membudget import formats
from membudget.budgets.budget import Budget
from membudget.budgets.file import Sources, parse
from membudget.budgets.settings import settings_of
from membudget.engines.llama_cpp.cells import cache_bytes, cache_parts, slot
from membudget.formats import FormatError, kv
from membudget.machines import Machine
from membudget.model import ConfigError, Model, build
from membudget.planning.capacity import fits, kv_request, max_ctx, max_users
from membudget.planning.check import check
from membudget.planning.ledger import predict
from membudget.planning.suggestions import applied, nothing_helps, suggest
from tests_math.conftest import MODELS
from tests_math.planning.buckets import left_over

pytestmark = pytest.mark.math

Get = Callable[[str], Model]
MIB = 2**20
GEMMA, MISTRAL, GPT_OSS = "google/gemma-3-27b-it", "mistralai/Mistral-7B-v0.1", "openai/gpt-oss-20b"

#: Six layers, five with a window of 512 and one that sees all: a cell takes 2 x 2 heads x 32 x 2 = 256 bytes a layer.
SMALL: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000, "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip
BUILT = build(SMALL)
#: 18 layers of one head of 256, every sixth sees all, a window of 512.
GEMMA_270M: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
}  # fmt: skip


def budget(model: Model, ctx: int, users: int = 1, memory: int = 2**50, **more: Any) -> Budget:
    """A budget for llama.cpp on a machine of that many bytes, with nothing beside weights, cache and step."""
    engine = settings_of("llama_cpp", more.pop("ubatch", None))
    form, cache = formats.get(more.pop("form", "gguf-bf16")), more.pop("kv", "fp16")
    machine = Machine("drawn", memory, memory, False, 10**11)
    return Budget("b", model, form, cache, ctx, users, machine, engine, {}, **more)


def test_gemma_3_by_hand(model: Get) -> None:
    """16 heads of 128, keys and values of 2 bytes, are 8,192 bytes a cell and layer; 10 layers see all, 52 do not.

    A window of 1,024 has pad(1,024 + 512) = 1,536 cells.
    """
    layer = 2 * 16 * 128 * 2
    gemma = budget(model(GEMMA), 8192)
    assert kv_request(gemma, 8192) == layer * (10 * 8192 + 52 * 1536) == 1_325_400_064
    # before the window and its step are full every layer has as many cells
    assert kv_request(gemma, 1) == kv_request(gemma, 256) == layer * 62 * 256
    assert kv_request(gemma, 257) == layer * 62 * 512
    assert kv_request(gemma, 1536) == layer * 62 * 1536
    assert kv_request(gemma, 1537) == layer * (10 * 1792 + 52 * 1536)
    # a step of 2,048: pad(1,024 + 2,048) cells
    assert kv_request(budget(model(GEMMA), 8192, ubatch=2048), 8192) == layer * (10 * 8192 + 52 * 3072)
    assert predict(gemma).kv_per_token == 62 * layer
    assert [predict(replace(gemma, ctx=ctx)).kv_per_token_at_ctx for ctx in (1, 1535, 1536)] == [
        62 * layer, 62 * layer, 10 * layer,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ctx", "size"),
    [
        # 3072.00 MiB in 131,072 cells and 18.00 MiB in 768, twelve layers each: llama-server 6115, kv_unified = false
        (GPT_OSS, 131_072, 3090 * MIB),
        # 12 layers x 2 x 8 heads x 64 x 2 bytes, x (ctx + pad(128 + 512))
        (GPT_OSS, 8192, 12 * 2048 * (8192 + 768)),
        # llama.cpp has no window for Mistral: 32 layers x 2 x 8 heads x 128 x 2 bytes of every token
        (MISTRAL, 32_768, 4_294_967_296),
        # 21 layers see all and 21 have pad(4,096 + 512) cells, of 2 x 8 heads x 256 x 2 bytes
        ("google/gemma-2-9b", 8192, 21 * 8192 * (8192 + 4608)),
        # below its window every layer has every token
        ("google/gemma-2-9b", 4096, 42 * 8192 * 4096),
        # 8 of 32 layers x 2 x 4 heads x 256 x 2 bytes; 24 fp32 states of 32 x 128 x 128 and 3 columns of 8,192
        ("Qwen/Qwen3.5-9B", 8192, 8 * 4096 * 8192 + 24 * 4 * (32 * 128 * 128 + 3 * 8192)),
        # one row of 512 + 64 in 61 layers, no values
        ("deepseek-ai/DeepSeek-V3", 32_768, 61 * 576 * 2 * 32_768),
    ],
)
def test_one_user_by_hand(name: str, ctx: int, size: int, model: Get) -> None:
    """What the plan says is what was printed or is worked out here, for one user and for seven."""
    assert predict(budget(model(name), ctx)).kv_cache == size
    many = predict(budget(model(name), ctx, 7))
    assert (many.kv_per_request, many.kv_cache) == (size, 7 * size)


def test_slots_that_a_server_printed() -> None:
    """Gemma-3-270M, ``-c 1024``: 27.0 MiB in 3 slots of 512 cells, 18.0 MiB in 4 of 256 (unslothai/unsloth#7530)."""
    small = build(GEMMA_270M)
    for slots, size in ((3, 27 * MIB), (4, 18 * MIB)):
        assert cache_bytes(small, 1024, slots=slots) == size
        # a plan asks for the tokens that a slot has: 1,024 / 3 are 341
        assert predict(budget(small, 1024 // slots, slots)).kv_cache == size


def _shipped() -> list[str]:
    return [path.stem.replace("--", "/", 1) for path in sorted(MODELS.glob("*--*.json"))]


def test_every_shipped_model_is_planned_as_it_is_allocated(model: Get) -> None:
    """Plan == `cache_parts` of ``-c ctx x users -np users``, from a header and from a config; else it is refused."""
    planned = refused = 0
    for place, name in enumerate(_shipped()):
        try:
            built = model(name)
        except ConfigError:
            continue  # a model without a recipe
        if "minimax_m3" in built.model_type:
            continue  # its indexer's cells are in the header alone
        ctx, users, ubatch = 1 + 977 * place % 40_000, 1 + place % 13, (512, 64, 2048, 300)[place % 4]
        asked = budget(built, ctx, users, form="bf16", ubatch=ubatch)
        try:
            parts = cache_parts(built, ctx * users, slots=users, unified=False, ubatch=ubatch)
            each = kv_request(asked, ctx)
        except (FormatError, ConfigError):
            refused += 1
            continue
        assert users * each == sum(part.bytes for part in parts), name
        planned += 1
    assert planned > 100
    assert refused > 5


@given(st.integers(1, 40_000), st.integers(1, 40), st.integers(1, 2048))
def test_users_are_slots(ctx: int, users: int, ubatch: int) -> None:
    """However the total is padded and divided, so many slots take so many times one: cells of a cell by hand."""
    small = BUILT
    cells = -(-ctx // 256) * 256
    window = -(-min(cells, 512 + ubatch) // 256) * 256
    size = 256 * (cells + 5 * window)
    assert kv_request(budget(small, ctx, ubatch=ubatch), ctx) == size
    assert cache_bytes(small, ctx * users, slots=users, ubatch=ubatch) == users * size


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("room", [0, 1, 1_000_000, 1_572_864, 5_000_000])
def test_the_longest_context_by_brute_force(room: int, users: int) -> None:
    """Whatever the room beside weights and step: the largest context that a scan by 256 finds."""
    small = build(SMALL)
    bare = predict(budget(small, 256, users))
    memory = bare.total + room
    left = left_over(budget(small, 256, users, memory))
    scanned = max((ctx for ctx in range(256, 14_336, 256) if left(ctx, users) >= 0), default=0)
    for near in (1, 257, 2000):
        asked = budget(small, near, users, memory)
        assert max_ctx(asked) == scanned
        assert fits(asked) == (near <= scanned)


@pytest.mark.parametrize("ctx", [1, 256, 300, 4000])
def test_the_most_users_by_brute_force(ctx: int) -> None:
    """A slot more does not fit; a scan of users finds the same."""
    small = build(SMALL)
    for room in (0, 393_216, 3_000_000, 20_000_000):
        bare = predict(budget(small, ctx, 1))
        asked = budget(small, ctx, 2, bare.total - bare.kv_cache + room)
        left = left_over(asked)
        scanned = max((users for users in range(1, 60) if left(ctx, users) >= 0), default=0)
        assert max_users(asked) == scanned


def test_a_state_alone_has_no_longest_context() -> None:
    """A model without cells fits at any context: the search ends at its limit, a multiple of 256."""
    config = {
        "model_type": "mamba", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "state_size": 16,
        "conv_kernel": 4, "time_step_rank": 4, "vocab_size": 100,
    }  # fmt: skip
    asked = budget(build(config, "m"), 8)
    # 2 layers x (128 x 16 + 3 columns of 128), fp32
    assert kv_request(asked, 1) == kv_request(asked, 10**6) == 2 * 4 * (128 * 16 + 3 * 128)
    assert repr(max_ctx(asked)) == "1073741824"


def test_the_reason_is_cells(model: Get) -> None:
    """The formula names slots, cells, what padding made of the tokens, and the step beside a window."""
    ledger = predict(budget(model(GEMMA), 5000, 3, kv="q8_0"))
    whys = {line.part: line.why for line in ledger.lines if line.bucket == "kv_cache"}
    # 10 and 52 layers x 2 x 16 heads x 128 x 34 / 32 bytes
    assert whys["full"] == "3 slots x 5,120 cells x 43,520 bytes"
    assert whys["window"].startswith("3 slots x 1,536 cells x 226,304 bytes: window 1,024 + ubatch 512")
    assert (ledger.kv_per_token, ledger.kv_per_token_at_ctx) == (62 * 4352, 10 * 4352)
    states = predict(budget(model("Qwen/Qwen3.5-9B"), 256))
    whys = {line.part: line.why for line in states.lines if line.bucket == "kv_cache"}
    assert whys["full"] == "1 slots x 256 cells x 32,768 bytes"
    assert whys["recurrent"] == "1 slots x 52,690,944 bytes of fp32 states"


def test_changes_are_in_steps_of_cells(model: Get) -> None:
    """Fewer tokens, in steps of 256, or fewer users, or layers in RAM, or a second card: each change fits."""
    llama = model("meta-llama/Llama-3.2-1B")
    whole = predict(budget(llama, 8192, 8))
    request = 8192 * 32_768
    short = budget(llama, 8192, 8, whole.total - 2 * request - request // 2)
    changes = suggest(short)
    assert {*changes[0].values} == {"ctx"}
    assert int(changes[0].values["ctx"]) % 256 == 0
    assert changes[0].frees == (8192 - int(changes[0].values["ctx"])) * 32_768 * 8
    assert {"users", "ctx", "n_gpu_layers", "machines", "format"} <= {
        name for change in changes for name in change.values
    }
    for change in changes:
        assert predict(applied(short, change)).fits


@pytest.mark.parametrize("name", ["EleutherAI/gpt-j-6b"])
def test_a_model_whose_cells_are_not_known_is_refused(name: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Exit code 2 and the reason, never a guess; the sum of its parts is planned."""
    code, out, err = run("plan", name, "--machine", "dgx-spark", "--engine", "llama_cpp", "--format", "bf16")
    assert (code, out) == (2, "")
    assert "llama.cpp has no architecture for model_type 'gptj'" in err
    assert run("plan", name, "--machine", "dgx-spark", "--format", "bf16", "--engine", "arithmetic")[0] == 0


def test_check_refuses_it_too(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """A budget for it fails with the reason and its file."""
    path = tmp_path / "v4.yaml"
    path.write_text(
        "model: EleutherAI/gpt-j-6b\nformat: bf16\nkv_cache_dtype: fp16\nctx: 8Ki\nusers: 1\n"
        "machine: apple-m4-max-128gb\nengine: {llama_cpp: {}}\n",
        encoding="utf-8",
    )
    code, out, _ = run("check", str(path))
    assert code == 1
    assert "llama.cpp has no architecture" in " ".join(out.split())


def test_formats_names_what_is_not_known(ask: Callable[..., tuple[int, Any]]) -> None:
    """GGUF rows of a model whose cells are not known are refused with the reason; the others are weighed."""
    _, said = ask("formats", "deepseek-ai/deepseek-vl2-tiny", "--machine", "h200")
    assert "llama.cpp's converter writes no file" in said["refused"]["q4_k_m"]
    assert "bf16" in {row["format"] for row in said["formats"]}


def test_plan_says_cells_where_tokens_would_lie(run: Callable[..., tuple[int, str, str]]) -> None:
    """The header has bytes a user and bytes a cell; without windows and padding the bytes a token are the cell's."""
    words = ("--machine", "apple-m4-max-128gb", "--engine", "llama_cpp", "--format", "q8_0")
    _, out, _ = run("plan", GEMMA, *words, "--ctx", "8k")
    assert "1.23 GiB (1.33 GB) a user, 80.00 KiB (81.92 kB) a cell more" in out
    _, out, _ = run("plan", "Qwen/Qwen3-8B", *words, "--ctx", "8k")
    assert "144.00 KiB (147.46 kB) a token" in out
    _, out, _ = run("plan", "Qwen/Qwen3-8B", *words, "--ctx", "8193")
    assert "a user, 144.00 KiB (147.46 kB) a cell more" in out


def test_a_quantized_cache_divides_heads() -> None:
    """A head of 48 has no q8_0 cache (llama.cpp: "block size 32 does not divide n_embd_head_k=48"), nor does a plan."""
    config = {**SMALL, "head_dim": 48, "hidden_size": 192}
    odd = build(config)
    for refused in (lambda: slot(odd, "q8_0"), lambda: cache_parts(odd, 4096, type_k="q8_0", type_v="q8_0")):
        with pytest.raises(FormatError, match="rows of 48"):
            refused()
    # 2 heads x 48 x 2 (keys, values) x 2 bytes
    assert slot(odd, "fp16").bytes(256) == 6 * 384 * 256


def test_auto_is_llama_cpps_own(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """A checkpoint that declares an fp8 cache has it in vLLM; llama.cpp's `-ctk` is 16 bits unless told otherwise."""
    raw = raw_config("meta-llama/Llama-3.2-1B")
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    raw["quantization_config"] = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    config = build(raw, "m").config
    assert kv.auto(config).name == "fp8"
    assert kv.auto(config, engine="vllm").name == "fp8"
    assert kv.auto(config, engine="llama.cpp").name == "fp16"


def test_nothing_helps_where_ram_is_the_devices(model: Get) -> None:
    """On one memory nothing can be moved: what was tried is the smallest format with the 8-bit cache."""
    llama = model("meta-llama/Llama-3.2-1B")
    tried = "no known change fits: not even 1 user with 1 token"
    small = budget(llama, 512, memory=2**27)
    small = replace(small, machine=Machine("drawn", 2**27, 2**27, True, 1))
    assert suggest(small) == []
    assert nothing_helps(small) == f"{tried} with iq1_s weights and a q8_0 KV cache"


def test_decode_reads_tokens_and_not_empty_cells(model: Get) -> None:
    """The upper bound of the speed counts what must be read: 5,000 tokens and windows of 1,024, of 5,120 and 1,536."""
    ledger = predict(budget(model(GEMMA), 5000, 3))
    assert ledger.bytes_read - ledger.budget.format.weigh(ledger.budget.model).active == 3 * 8192 * (
        10 * 5000 + 52 * 1024
    )
    assert ledger.kv_cache == 3 * 8192 * (10 * 5120 + 52 * 1536)
    # 52,690,944 bytes of states are read whole: 24 x 4 x (32 x 128 x 128 + 3 x 8,192)
    hybrid = predict(budget(model("Qwen/Qwen3.5-9B"), 100))
    assert hybrid.bytes_read - hybrid.budget.format.weigh(hybrid.budget.model).active == 100 * 32_768 + 52_690_944


def test_vllm_dtypes_are_refused(model: Get) -> None:
    """llama.cpp has no fp8 cache."""
    with pytest.raises(FormatError, match=r"fp8 is vllm's; llama\.cpp has"):
        predict(budget(model(GEMMA), 4096, kv="fp8"))


def test_a_breakage_is_a_plain_forward(raw_config: Callable[[str], dict[str, Any]]) -> None:
    """Whatever the engine, `break` is a forward that keeps 1,000 tokens, not cells.

    16 layers x 2 x 8 x 64 x 2 bytes are 32,768 a token: 31.25 MiB.
    """
    text = (
        "model: meta-llama/Llama-3.2-1B\nformat: bf16\nkv_cache_dtype: fp16\nctx: 1000\nusers: 1\nmachine: h100\n"
        "engine: {llama_cpp: {}}\nceiling: 40 GiB\nbreak: [{attention: eager, outcome: fits}]\n"
    )
    (asked,), problems = parse(text.encode(), "b.yaml", "b", ".", Sources())
    assert not problems
    (found,) = [item for item in check(asked).findings if item.field == "break[0].outcome"]
    assert "cache 31.25 MiB" in found.why
