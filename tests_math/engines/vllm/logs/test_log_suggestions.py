"""What `membudget log` says would start a refused engine, by hand arithmetic from the refusal's own figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from membudget.engines.vllm.logs.compare import compare
from membudget.engines.vllm.logs.concurrency import options
from membudget.engines.vllm.logs.kinds import RefusalKind
from membudget.engines.vllm.logs.log import parse
from membudget.engines.vllm.logs.suggestions import _BY_KIND, Suggestion, suggestions
from membudget.model import Model
from tests_math.engines.vllm.logs.test_log_explain import start

pytestmark = pytest.mark.suite


def found(lines: list[str]) -> list[Suggestion]:
    """What would start a refused engine, and what may."""
    (log,) = parse(lines)
    return suggestions(log, compare(log, None))


def cures(lines: list[str]) -> list[str]:
    """Those that start by the log's own figures."""
    return [cure.text for cure in found(lines) if cure.sure]


def refused(text: str, util: str = "0.9", extra: tuple[str, ...] = ()) -> list[str]:
    """A start that ends in one refusal."""
    head = "(EngineCore pid=97) ERROR 05-04 09:12:40 [core.py:9]"
    args = f"{{'model': 'x/y', 'gpu_memory_utilization': {util}}}"
    return [*start(model="x/y")[:1], f"INFO 05-04 09:12:11 [a.py:1] non-default args: {args}\n", *extra,
            f"{head} ValueError: {text}\n"]  # fmt: skip


LOW_FREE = (
    "Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU memory utilization "
    "({util}, {asked} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


@pytest.mark.parametrize(
    ("free", "total", "util", "asked", "share", "lacks"),
    [
        # an L4 with vLLM 0.30.0; an H100
        ("15.32", "22.04", "0.88", "19.39", "0.69", "4.08 GiB"),
        ("78.0", "79.18", "0.99", "78.39", "0.98", "0.40 GiB"),
    ],
)
def test_a_share_that_is_not_free(free: str, total: str, util: str, asked: str, share: str, lacks: str) -> None:
    """The largest share of two digits that vLLM's own rule, utilization x total <= free, lets start."""
    text = LOW_FREE.format(free=free, total=total, util=util, asked=asked)
    assert cures(refused(text, util)) == [f"--gpu-memory-utilization {share} or less", f"free {lacks} first"]
    assert float(share) * float(total) <= float(free) < (float(share) + 0.01) * float(total)


def test_a_request_that_is_too_long() -> None:
    """A 24 GB card at 0.7 with an 8B: 1.0 GiB needed, 0.95 there; 0.06 GiB of 23.54 are less than a hundredth."""
    text = (
        "To serve at least one request with the models's max seq len (8192), (1.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.95 GiB). Based on the available memory, the estimated maximum "
        "model length is 7760. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
    )
    snapshot = "INFO 05-04 [a.py:1] worker init memory snapshot: torch_peak=0.0GiB, free_memory=23.2GiB, "
    known = (f"{snapshot}total_memory=23.54GiB\n",)
    assert cures(refused(text, "0.7", known)) == [
        "--max-model-len 7760 or less",
        "--gpu-memory-utilization 0.71 or more",
    ]
    # at 0.99 of a device of which 0.985 were free no larger share can start
    assert cures(refused(text, "0.98", known)) == ["--max-model-len 7760 or less"]


def test_a_warm_up_without_room() -> None:
    """Fewer requests, or a smaller share."""
    text = (
        "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    assert cures(refused(text, "0.95")) == []
    assert [cure.text for cure in found(refused(text, "0.95"))] == [
        "--max-num-seqs 256",
        "--gpu-memory-utilization 0.90 or less",
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("err-util0.99", ["--gpu-memory-utilization 0.90 or less", "free 1.33 GiB first"]),
        ("err-util0.01", ["a higher --gpu-memory-utilization than 0.01"]),
        ("err-kvbytes-100G", ["--kv-cache-memory-bytes 16347719270 or less"]),
        ("err-override1", ["leave out --num-gpu-blocks-override"]),
        ("err-maxlen-gemma3", ["--max-model-len 512 or less", "--kv-cache-memory-bytes 37580965 or more"]),
    ],
)
def test_what_would_start_a_real_engine(name: str, wanted: list[str]) -> None:
    """Captured refusals of vLLM 0.32.0: 15.225 GiB are 16,347,719,270.4 bytes, 0.035 GiB 37,580,963.84."""
    text = (Path(__file__).parents[4] / "fixtures" / "logs" / "cpu" / f"0.32.0-{name}.log").read_text(encoding="utf-8")
    assert cures(text.splitlines(keepends=True)) == wanted


def test_a_start_needs_no_cure() -> None:
    """Nothing is said where the engine started."""
    assert cures(start()) == []


def test_a_spark_keeps_what_the_system_needs() -> None:
    """110.34 GiB were free of 121.69: 98.34 with 12 kept, 0.808; never the 0.90 that vLLM itself would accept.

    0.92 is no share of a Spark however much is freed: 111.95 + 12 are more than there is, and 109.69 are 0.901.
    """
    share, free = found(refused(LOW_FREE.format(free="110.34", total="121.69", util="0.92", asked="111.95"), "0.92"))
    assert (share.text, share.sure) == ("--gpu-memory-utilization 0.80 or less", True)
    assert "12 GiB of memory that the system shares must stay free" in share.why
    assert (free.text, free.sure) == ("free what is held, and --gpu-memory-utilization 0.90 or less", False)
    # 0.5 and a neighbour with 83 GiB: 60.85 + 12 - 38.0 are held by it
    share, free = found(refused(LOW_FREE.format(free="38.0", total="121.69", util="0.5", asked="60.85"), "0.5"))
    assert [cure.text for cure in (share, free)] == ["--gpu-memory-utilization 0.21 or less", "free 34.86 GiB first"]
    assert share.sure
    assert free.sure
    # residents: 4.30 GiB are free, so no share is
    (low,) = found(refused(LOW_FREE.format(free="4.30", total="121.63", util="0.92", asked="111.90"), "0.92"))
    assert not low.sure


TOO_LONG = (
    "To serve at least one request with the model's max seq len (131072), 16.0 GiB KV cache is needed, which is larger "
    "than the available KV cache memory (5.43 GiB). Based on the available memory, the estimated maximum model length "
    "is 44464."
)


@pytest.mark.parametrize(
    ("extra", "sure", "unsure"),
    [
        # 21.17 / 0.9 = 23.52 GiB: no share of it has 10.58 GiB more
        ("Initial free memory: 23.1 GiB; Requested memory: 0.900000 (util), 21.17 GiB", [], []),
        # 72.0 / 0.9 = 80 GiB: 0.9 + 10.58 / 80 = 1.03
        ("Initial free memory: 79.0 GiB; Requested memory: 0.900000 (util), 72.0 GiB", [], []),
        # 180 GiB: 0.9 + 10.58 / 180 = 0.9588, and 0.972 of it were free
        ("Initial free memory: 175.0 GiB; Requested memory: 0.900000 (util), 162.0 GiB",
         ["--gpu-memory-utilization 0.96 or more"], []),
        ("", [], ["a higher --gpu-memory-utilization than 0.9, if the device has that much"]),
    ],
)  # fmt: skip
def test_no_share_is_named_that_is_not_there(extra: str, sure: list[str], unsure: list[str]) -> None:
    """Where the device is known, by its size or by what was requested of it, a share of more than it has is none."""
    lines = refused(TOO_LONG, "0.9", (f"(EngineCore pid=97) INFO 05-04 09:12:30 [gpu_worker.py:1] {extra}\n",))
    told = [cure for cure in found(lines) if "utilization" in cure.text]
    assert [cure.text for cure in told if cure.sure] == sure
    assert [cure.text for cure in told if not cure.sure] == unsure


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No available memory for the cache blocks.", ["--enforce-eager", "--max-num-batched-tokens"]),
        ("Cannot auto-fit max_model_len: not enough GPU memory", ["--enforce-eager", "--max-num-batched-tokens"]),
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.54 GiB of which 1.00 GiB is "
         "free.", ["--gpu-memory-utilization 0.85 or less", "--max-num-batched-tokens 2048"]),
        ("Error in memory profiling. Initial free memory 20.0 GiB, current free memory 21.0 GiB", ["start it again"]),
        ("frontend multimodal GPU decoding reserves 4.0 GiB (2.0 GiB raw-frame budget), but only 3.0 GiB is available "
         "for the KV cache", ["mm_ipc_gpu_memory_gb"]),
        ("Layer x: page size is not divisible by the maximum page size.", ["--kv-cache-dtype auto"]),
    ],
)  # fmt: skip
def test_every_refusal_has_a_next_step(text: str, words: list[str]) -> None:
    """Also where no figure says what would be enough: what to try, and nothing of it is called sure."""
    told = found(refused(text))
    assert told
    assert not any(cure.sure for cure in told)
    assert all(any(word in cure.text for cure in told) for word in words)


def test_no_kind_is_left_out() -> None:
    """A refusal that the reader knows is one that has a next step."""
    assert set(_BY_KIND) == set(RefusalKind)


def test_more_concurrency_keeps_what_a_spark_needs() -> None:
    """113.0 of 121.69 GiB were free: (113.0 - 12) / 121.69 is 0.829, and all that vLLM itself proposes is none."""
    lines = start(total=127_600_748 * 1024, kv=40 * 2**30)
    for old, new in (("0.97", "0.5"), ("121.08/121.69", "113.0/121.69"), ("118.04 GiB", "60.84 GiB")):
        lines = [line.replace(old, new) for line in lines]
    told = more(lines)
    assert told == ["--gpu-memory-utilization 0.82 (all that was free at start but for 12 GiB that the system needs)"]
    assert not [text for text in told if "--kv-cache-memory=" in text]
    assert [text for text in more(start()) if "--kv-cache-memory=" in text]


def more(lines: list[str]) -> list[str]:
    """What would give a started engine more concurrency."""
    (log,) = parse(lines)
    return [option.text for option in options(log, compare(log, None))]


LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"


@pytest.mark.parametrize(
    ("name", "free", "total", "util", "asked", "wanted"),
    [
        # 8B: 14.96 GiB of weights, 1.5 assumed, 0.91 of a step: 17.37 of 79.18 GiB are 0.2194
        (LLAMA_8B, "60.0", "79.18", "0.9", "71.26",
         [("--gpu-memory-utilization 0.22 to 0.75", True), ("free 11.27 GiB first", True)]),
        # an L4 with 15.32 GiB free: 0.69 holds the weights and not a step, and 0.9, 19.84 GiB, holds both
        (LLAMA_8B, "15.32", "22.04", "0.9", "19.84",
         [("free 4.53 GiB first", True), ("--gpu-memory-utilization 0.69", False)]),
        # 70B: 131.41 GiB, more than the card and than 0.85 of a Spark
        (LLAMA_70B, "60.0", "79.18", "0.9", "71.26",
         [("--gpu-memory-utilization 0.75", False), ("free 11.27 GiB first", False)]),
        (LLAMA_70B, "60.0", "121.69", "0.85", "103.44",
         [("--gpu-memory-utilization 0.39", False), ("free 55.45 GiB first", False)]),
    ],
)  # fmt: skip
def test_what_does_not_hold_the_weights_is_not_sure(
    name: str, free: str, total: str, util: str, asked: str, wanted: list[tuple[str, bool]],
    model: Callable[[str], Model],
) -> None:  # fmt: skip
    """A share, or one that is made room for, starts nothing where weights and a step alone are more."""
    (log,) = parse(refused(LOW_FREE.format(free=free, total=total, util=util, asked=asked), util))
    told = suggestions(log, compare(log, None), model(name))
    assert [(cure.text, cure.sure) for cure in told] == wanted
    assert all(cure.sure or "weights and a step alone take about" in cure.why for cure in told)


PAGES = "The page size of the layer is not divisible by the maximum page size. Cannot unify by adjusting block_size."


@pytest.mark.parametrize(
    ("text", "setting", "says"),
    [
        ("Attention block size should be increased to at least 528 in order to match", "", "--block-size 528 or more"),
        (PAGES, ", 'disable_hybrid_kv_cache_manager': True", "leave out --disable-hybrid-kv-cache-manager"),
        (PAGES, ", 'disable_hybrid_kv_cache_manager': False", "--kv-cache-dtype auto and no --block-size"),
        (PAGES, "", "--kv-cache-dtype auto and no --block-size"),
    ],
)
def test_pages_that_vllm_cannot_make_equal(text: str, setting: str, says: str) -> None:
    """The block size that vLLM asks for; else what was switched off; else both choices left to vLLM."""
    (one,) = found([line.replace("'model': 'x/y', ", f"'model': 'x/y'{setting}, ") for line in refused(text)])
    assert one.text == says
    assert one.sure == ("block-size 528" in says)
