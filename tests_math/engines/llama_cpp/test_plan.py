"""Where things go, and what fits: -ngl, -ts, --n-cpu-moe, -ot, --no-kv-offload, a draft's states, a projector."""

from __future__ import annotations

from dataclasses import replace

import pytest

from membudget.engines.llama_cpp.memory import caches
from membudget.engines.llama_cpp.offload import device_of, places, weights
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.llama_cpp.projector import Projector
from membudget.engines.llama_cpp.settings import FlashAttention, Settings
from membudget.formats.gguf import gguf
from membudget.model import build

pytestmark = pytest.mark.math
MIB, GIB = 2**20, 2**30
MODELS = "membudget/data/models"


def server(name: str) -> Server:
    """A Q4_K_M file of a published model."""
    return Server.written(build(f"{MODELS}/{name}.json"), gguf("q4_k_m", "Q4_K_M"))


LLAMA = server("meta-llama--Llama-3.1-8B")
QWEN = server("Qwen--Qwen3-30B-A3B")


def test_layers_by_ngl() -> None:
    """The last layers go to devices first, and the head counts as one."""
    some = Settings(512, n_gpu_layers=3)
    assert [device_of(layer, 4, some, 1) for layer in range(5)] == ["host", "host", "0", "0", "0"]
    assert {device_of(layer, 4, Settings(512, n_gpu_layers=0), 1) for layer in range(5)} == {"host"}


def test_layers_by_ts() -> None:
    """Shares of -ts."""
    two = Settings(512, tensor_split=(3, 1))
    assert [device_of(layer, 7, two, 2) for layer in range(8)] == ["0"] * 6 + ["1"] * 2


def test_all_bytes_of_a_file_are_somewhere() -> None:
    """The embedding table is the host's; all else is the device's."""
    placed = weights(LLAMA.sizes, 32, Settings(512), 1)
    assert sum(placed.values()) == sum(LLAMA.sizes.values())
    assert placed["host"] == LLAMA.sizes["token_embd.weight"]


def test_a_tied_head_is_copied() -> None:
    """A model without a head of its own has its table on both sides."""
    tied = server("Qwen--Qwen3-0.6B")
    placed = weights(tied.sizes, 28, Settings(512), 1)
    assert sum(placed.values()) == sum(tied.sizes.values()) + tied.sizes["token_embd.weight"]


def test_experts_of_first_layers_stay_on_the_host() -> None:
    """--n-cpu-moe 2 and the pattern it stands for."""
    two = places(QWEN.sizes, 48, Settings(512, n_cpu_moe=2), 1)
    pattern = places(QWEN.sizes, 48, Settings(512, override_tensor=((r"blk\.[01]\.ffn_.*_exps", "CPU"),)), 1)
    assert two == pattern
    assert sum(place == "host" for place in two.values()) == 2 * 3 + 1


def test_caches_follow_their_layers() -> None:
    """Halves on two devices; all on the host with --no-kv-offload."""
    two = replace(LLAMA, devices=2).ask(Settings(8192, 1, tensor_split=(1, 1)))
    by_place = {line.place: line.bytes for line in two.lines if line.bucket == "kv_cache"}
    assert by_place == {"0": 17 * 32 * MIB, "1": 15 * 32 * MIB}
    kept = LLAMA.ask(Settings(8192, 1, kv_offload=False))
    assert {line.place for line in kept.lines if line.bucket == "kv_cache"} == {"host"}


def test_a_projector_lies_on_the_first_device() -> None:
    """--mmproj: the file's bytes."""
    with_one = replace(LLAMA, projector=Projector(800 * MIB)).ask(Settings(8192))
    assert with_one.total("0") - LLAMA.ask(Settings(8192)).total("0") == 800 * MIB


def test_what_fits_is_the_largest_that_does() -> None:
    """-c, -ngl and --n-cpu-moe: one step more does not fit."""
    small = replace(LLAMA, limits={"0": 8 * GIB})
    longest = small.longest(Settings(parallel=1))
    assert small.ask(Settings(longest, 1)).fits()
    assert not small.ask(Settings(longest + 256, 1)).fits()
    tiny = replace(LLAMA, limits={"0": 4 * GIB})
    most = tiny.most_layers(Settings(8192, 1))
    assert 0 < most < 33
    assert not tiny.ask(Settings(8192, 1, n_gpu_layers=most + 1)).fits()
    experts = replace(QWEN, limits={"0": 12 * GIB})
    least = experts.least_cpu_moe(Settings(8192, 1))
    assert experts.ask(Settings(8192, 1, n_cpu_moe=least)).fits()
    assert not experts.ask(Settings(8192, 1, n_cpu_moe=least - 1)).fits()


def test_ranges_hold_their_figures() -> None:
    """Low, figure and high in order, on every line of every setting."""
    for settings in (Settings(8192), Settings(8192, n_gpu_layers=5), Settings(8192, n_gpu_layers=0)):
        for line in (*QWEN.ask(settings).lines, *replace(QWEN, devices=2).ask(settings).lines):
            assert line.low <= line.bytes <= line.high, line


@pytest.mark.parametrize(
    ("settings", "device", "host"),
    [
        (Settings(4096, 1), 92.51, 20.01),
        (Settings(4096, 1, n_gpu_layers=2), 109.19, 28.01),
        (Settings(4096, 1, n_gpu_layers=1), 109.19, 28.01),
        (Settings(4096, 1, kv_offload=False), 105.50, 28.01),
        (Settings(4096, 1, n_gpu_layers=0), 175.31, 28.01),
    ],
)
def test_ranges_hold_what_a_vulkan_build_says(settings: Settings, device: float, host: float) -> None:
    """libllama v0.4.0 with lavapipe, four layers of a Llama-2-7B: prints of the compute buffers."""
    model = build({"model_type": "llama", "num_hidden_layers": 4})
    lines = Server.written(model, gguf("q4_k_m", "Q4_K_M")).ask(settings).lines
    for place, said in (("0", device), ("host", host)):
        line = next(line for line in lines if line.part == "compute" and line.place == place)
        assert line.low - 0.01 * MIB <= said * MIB <= line.high + 0.01 * MIB, place


def test_states_of_a_draft() -> None:
    """One recurrent state a slot, and one more a drafted token: Qwen3.5-9B's public 150.75 MiB with two."""
    header = server("Qwen--Qwen3.5-9B").header
    plain, drafted = (
        next(part.bytes for part in caches(header, settings) if part.name == "recurrent")
        for settings in (Settings(8192, 1), Settings(8192, 1, draft_max=2))
    )
    assert (plain / MIB, drafted / MIB) == pytest.approx((50.25, 150.75), abs=0.01)


def test_a_deepseek_file_without_mla_tensors_caches_heads() -> None:
    """An old file has attn_kv_b only: 128 heads of 192 + 128, not 576 columns a token."""
    model = build({"model_type": "deepseek_v3", "num_hidden_layers": 4})
    new = Server.written(model, gguf("q4_k_m", "Q4_K_M"))
    shapes = {name: shape for name, shape in new.header.shapes.items() if "attn_k_b" not in name and "v_b" not in name}
    old = type(new.header)({"general.architecture": "deepseek2"} | {
        f"deepseek2.{key}": value for key, value in new.header.keys.items()
    }, shapes | {f"blk.{n}.attn_kv_b.weight": (128 * 256, 512) for n in range(4)})  # fmt: skip
    settings = Settings(4096, 1, flash_attn=FlashAttention.OFF)
    mla, heads = (sum(part.bytes for part in caches(header, settings)) for header in (new.header, old))
    assert mla == 4 * 4096 * 576 * 2
    assert heads == 4 * 4096 * 128 * (192 + 128) * 2
