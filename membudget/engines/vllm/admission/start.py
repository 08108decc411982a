"""Whether vLLM starts: the refusals that follow from sizes, in the order in which vLLM meets them.

rules.py has each rule's source and versions.  The pool's own refusals come from `pool.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from membudget.engines.vllm.admission.rules import RULES, StartRule
from membudget.engines.vllm.pool import derive
from membudget.engines.vllm.pool.result import Pool
from membudget.engines.vllm.versions import Rules
from membudget.model import Config
from membudget.model.length import longest
from membudget.units import GIB

_NAMED_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@dataclass(frozen=True)
class StartQuestion:
    """What vLLM is started with; None means that it is not known or vLLM's default.

    config: of the model.
    max_model_len, max_num_batched_tokens, max_num_seqs: as resolved; `given_batched` whether a person gave it.
    tp, dp, dcp: tensor, data and decode context parallel sizes.  expert_parallel: experts are not cut.
    experts: whether the model has any.
    chunked_prefill: enable_chunked_prefill.  long_prefill: long_prefill_token_threshold.
    multimodal_item: tokens of the largest image or video, with disable_chunked_mm_input.
    total, free: bytes that CUDA reports.  utilization: gpu_memory_utilization.
    kv_cache_memory_bytes: where it is given, the share is not checked.
    full_graphs: CUDA graphs of whole decode steps (not with enforce_eager, not on the CPU).
    """

    config: Config
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tp: int = 1
    dp: int = 1
    dcp: int = 1
    experts: bool = True
    expert_parallel: bool = False
    chunked_prefill: bool = True
    long_prefill: int = 0
    multimodal_item: int | None = None
    disable_chunked_mm_input: bool = False
    total: int | None = None
    free: int | None = None
    utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    full_graphs: bool = True


@dataclass(frozen=True)
class Refusal:
    """One refusal.

    rule: its code.  text: as this version words it.  remedies: settings by vLLM's names with values that start.
    where: file and line of vLLM's.
    """

    rule: StartRule
    text: str
    remedies: tuple[tuple[str, int | float | bool], ...]
    where: str

    @property
    def code(self) -> str:
        """The rule's name for programs."""
        return self.rule.value


def starts(question: StartQuestion, pool: Pool | None, rules: Rules) -> tuple[Refusal, ...]:
    """Why vLLM would not start, first things first; empty where it does.

    pool: None where it is not carved yet (or `plan_pool` refused it): the pool's rules are then left out.
    """
    found = [*_settings(question, rules), *_shapes(question), *_memory(question, rules), *_pool(question, pool)]
    return tuple(each for each in found if RULES[each.rule].holds(rules.version))


def max_num_seqs(asked: int | None, platform: str, device_memory: int | None, device_name: str, ranks: int) -> int:
    """--max-num-seqs, or the server's default by device (engine/arg_utils.py get_batch_defaults)."""
    if asked is not None:
        return asked
    if platform == "cpu":
        return 128 * ranks
    large = device_memory is not None and device_memory >= 70 * GIB
    return 1024 if large and ("a100" not in device_name.lower() or (device_memory or 0) >= 160 * GIB) else 256


def _refusal(rule: StartRule, text: str, *remedies: tuple[str, int | float | bool]) -> Refusal:
    return Refusal(rule, text, tuple(remedies), RULES[rule].where)


def _settings(q: StartQuestion, rules: Rules) -> Iterator[Refusal]:
    """engine/arg_utils.py, config/model.py, config/scheduler.py."""
    length, batched, seqs = q.max_model_len, q.max_num_batched_tokens, q.max_num_seqs
    derived = longest(q.config, rules.version)
    further = q.config.get("model_max_length")
    most = max(derived.most, further) if isinstance(further, int) else derived.most
    if length is not None and length > most and not derived.assumed:
        yield _refusal(
            StartRule.MODEL_LEN_BEYOND_MODEL,
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"({derived.source.split(' ')[0].rstrip(',:')}={derived.most} or model_max_length={further} "
            "in model's config.json).",
            ("max_model_len", most),
        )
    yield from _heads(q, rules)
    if length is not None and batched is not None and batched < length and not q.chunked_prefill:
        yield _refusal(
            StartRule.BATCHED_BELOW_LEN,
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}). This effectively limits "
            "the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please "
            "increase max_num_batched_tokens or decrease max_model_len.",
            ("max_num_batched_tokens", length),
            ("max_model_len", batched),
            ("enable_chunked_prefill", True),
        )
    if batched is not None and seqs is not None and batched < seqs:
        yield _refusal(
            StartRule.BATCHED_BELOW_SEQS,
            f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).",
            ("max_num_batched_tokens", seqs),
            ("max_num_seqs", batched),
        )
    if length is not None and q.long_prefill > length:
        yield _refusal(
            StartRule.THRESHOLD_BEYOND_LEN,
            f"long_prefill_token_threshold ({q.long_prefill}) cannot be greater than the max_model_len ({length}).",
            ("long_prefill_token_threshold", length),
        )
    item = q.multimodal_item
    if item is not None and batched is not None and q.disable_chunked_mm_input and item > batched:
        yield _refusal(
            StartRule.MM_ITEM,
            f"Chunked MM input disabled but max_tokens_per_mm_item ({item}) is larger than max_num_batched_tokens "
            f"({batched}). Please increase max_num_batched_tokens.",
            ("max_num_batched_tokens", item),
            ("disable_chunked_mm_input", False),
        )


def _heads(q: StartQuestion, rules: Rules) -> Iterator[Refusal]:
    """Attention heads and KV heads over the ranks."""
    heads = q.config.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        return
    if heads % q.tp:
        yield _refusal(
            StartRule.HEADS_TP,
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({q.tp}).",
            ("tensor_parallel_size", _divisor(heads, q.tp)),
        )
        return
    if q.config.get("kv_lora_rank") is not None:
        return
    written = q.config.get("num_key_value_heads")
    kv = written if isinstance(written, int) and written > 0 else heads
    if max(kv, q.tp) % min(kv, q.tp):
        yield _refusal(
            StartRule.KV_HEADS_TP,
            f"total_num_kv_heads {kv} and tensor_parallel_size {q.tp}: neither divides the other (AssertionError).",
            ("tensor_parallel_size", _divisor(kv, q.tp)),
        )
        return
    if q.dcp > 1:
        yield from _context_parallel(q, rules, heads, kv)


def _context_parallel(q: StartQuestion, rules: Rules, heads: int, kv: int) -> Iterator[Refusal]:
    """Decode context parallelism needs replicated KV heads (config/model.py)."""
    new = rules.version >= (0, 27, 0)
    if q.tp <= kv:
        text = (
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({q.tp}) to be greater than "
            f"the model's total number of KV heads ({kv}). Increase `--tensor-parallel-size` or set "
            "`--decode-context-parallel-size 1`."
            if new
            else f"tensor parallel size {q.tp} must be greater than total num kv heads {kv} when enable decode "
            "context parallel for GQA/MQA"
        )
        yield _refusal(StartRule.DCP_TP, text, ("decode_context_parallel_size", 1))
        return
    most, queries = q.tp // kv, heads // kv
    if q.dcp > most:
        text = (
            f"`--decode-context-parallel-size` ({q.dcp}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({q.tp}) and {kv} model KV heads."
            if new
            else f"decode context parallel size must less than or equal to (tensor parallel size {q.tp} // total "
            f"num kv heads {kv}) = {most}, but got {q.dcp}"
        )
        yield _refusal(StartRule.DCP_SIZE, text, ("decode_context_parallel_size", most))
    elif queries % q.dcp:
        text = (
            f"The model's number of query heads per KV head ({queries}) must be divisible by "
            f"`--decode-context-parallel-size` ({q.dcp}) for GQA/MQA."
            if new
            else f"Total number of q per kv attn heads ({queries}) must be divisible by dcp world size when enable "
            f"decode context parallel for GQA ({q.dcp})."
        )
        yield _refusal(StartRule.DCP_QUERIES, text, ("decode_context_parallel_size", _divisor(queries, q.dcp)))


def _divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)


def _shapes(q: StartQuestion) -> Iterator[Refusal]:
    """Widths and quantization blocks over the ranks, as the layers are built."""
    if q.expert_parallel and not q.experts:
        text = "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
        yield _refusal(StartRule.NO_EXPERTS, text, ("enable_expert_parallel", False))
    quantized: Any = q.config.raw.get("quantization_config")
    quantized = quantized if isinstance(quantized, dict) else {}
    block = quantized.get("weight_block_size")
    group = quantized.get("group_size") if quantized.get("quant_method") in ("awq", "gptq") else None
    # the router's experts are whole on a rank with expert parallelism
    for key, cut in (("intermediate_size", True), ("moe_intermediate_size", not q.expert_parallel)):
        width = q.config.get(key)
        if not isinstance(width, int) or width < 1:
            continue
        moe = key == "moe_intermediate_size"
        size = (q.tp * q.dp if moe else q.tp) if cut else 1
        if width % size:
            remedy = ("tensor_parallel_size", _divisor(width, size))
            yield _refusal(StartRule.WIDTH_TP, f"{width} is not divisible by {size}", remedy)
            continue
        mine = width // size
        if isinstance(block, list) and len(block) == 2:
            yield from _blocks(size, width, mine, moe, int(block[0]), int(block[1]))
        elif isinstance(group, int) and group > 0 and mine % group and not moe:
            yield _refusal(
                StartRule.GROUP_SIZE_INPUT,
                "The input size is not aligned with the quantized weight shape. This can be caused by too large "
                "tensor parallel size.",
                *_smaller(width, size, group),
            )


def _blocks(tp: int, width: int, mine: int, moe: bool, block_n: int, block_k: int) -> Iterator[Refusal]:
    """FP8 block scales: a rank's gate, up and down projections are whole blocks (fp8_utils.py)."""
    remedies = _smaller(width, tp, max(block_n, block_k))
    if mine % block_n:
        yield _refusal(
            StartRule.FP8_BLOCK_MOE_OUTPUT if moe else StartRule.FP8_BLOCK_OUTPUT,
            f"The output_size of gate's and up's weight = {mine} is not divisible by weight quantization "
            f"block_n = {block_n}."
            if moe
            else f"Weight output_partition_size = {mine} is not divisible by weight quantization block_n = {block_n}.",
            *remedies,
        )
    elif tp > 1 and mine % block_k:
        yield _refusal(
            StartRule.FP8_BLOCK_MOE_INPUT if moe else StartRule.FP8_BLOCK_INPUT,
            f"The input_size of down's weight = {mine} is not divisible by weight quantization block_k = {block_k}."
            if moe
            else f"Weight input_size_per_partition = {mine} is not divisible by weight quantization "
            f"block_k = {block_k}.",
            *remedies,
        )


def _smaller(width: int, tp: int, block: int) -> tuple[tuple[str, int], ...]:
    """The next smaller size at which a rank's width is whole blocks."""
    for size in range(tp - 1, 0, -1):
        if width % size == 0 and width // size % block == 0:
            return (("tensor_parallel_size", size),)
    return ()


def _memory(q: StartQuestion, rules: Rules) -> Iterator[Refusal]:
    """The share of the device must be free when vLLM starts (v1/worker/utils.py request_memory)."""
    if q.total is None or q.free is None or q.utilization is None:
        return
    wanted = q.total * q.utilization
    requested = ceil(wanted) if rules.ceil else int(wanted)
    if q.free >= requested:
        return
    device = "on device cuda:0 " if rules.version >= (0, 14, 0) else "on device "
    free, total, share = (derive.shown(size, rules) for size in (q.free, q.total, requested))
    if rules.version < (0, 14, 0):
        free, total, share = (str(round(size / GIB, 2)) for size in (q.free, q.total, requested))
    most = q.free * 100 // q.total / 100
    yield _refusal(
        StartRule.FREE_MEMORY,
        f"Free memory {device}({free}/{total} GiB) on startup is less than desired GPU memory utilization "
        f"({q.utilization}, {share} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.",
        ("gpu_memory_utilization", most),
    )


#: Codes of `Pool.refusal`.
_POOL_RULES = {
    "no_memory": StartRule.NO_MEMORY,
    "too_long": StartRule.MODEL_LEN_BEYOND_POOL,
    "cannot_fit": StartRule.NOTHING_FITS,
}


def _pool(q: StartQuestion, pool: Pool | None) -> Iterator[Refusal]:
    """What the pool refuses, and what its blocks are too few for."""
    if pool is None:
        return
    if pool.error is not None:
        fits = (("max_model_len", pool.max_model_len),) if pool.max_model_len else ()
        yield _refusal(_POOL_RULES[pool.refusal or "too_long"], pool.error, *fits)
        return
    states = [group for group in pool.groups if group.kind == "mamba"]
    if any(group.mode == "align" for group in states) and q.max_num_batched_tokens is not None:
        batched = q.max_num_batched_tokens
        if pool.block_size > batched:
            yield _refusal(
                StartRule.MAMBA_BLOCK,
                f"In Mamba cache align mode, block_size ({pool.block_size}) must be <= max_num_batched_tokens "
                f"({batched}).",
                ("max_num_batched_tokens", pool.block_size),
            )
    if states and q.full_graphs and pool.platform == "cuda" and q.max_num_seqs is not None:
        blocks = pool.num_blocks
        if q.max_num_seqs > blocks:
            yield _refusal(
                StartRule.MAMBA_BLOCKS,
                f"max_num_seqs ({q.max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode "
                "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
                f"max_num_seqs to at most {blocks} or increase gpu_memory_utilization.",
                ("max_num_seqs", blocks),
                ("enforce_eager", True),
            )
