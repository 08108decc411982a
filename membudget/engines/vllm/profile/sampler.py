"""The dummy sampler run of the profile run: which runner and sampler a version takes, and the bytes alive at its peak.

The table of bytes an element is what vLLM's own code allocates: tools/sampler_bytes.py runs it on fake tensors and
tests_math/engines/vllm/test_profile_sampler.py keeps what came out (fixtures/logs/available_kv/sampler_bytes.json).
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.formats.base import Format
from membudget.model import Model

Version = tuple[int, int, int]

#: Elements that torch sorts at once (ATen/native/cuda/Sort.cpp: nsort * nsegments below INT_MAX).
_SORT_MOST = 2**31 - 1
#: Rows from which on torch sorts in segments and not each row whole (ATen/native/cuda/Sort.cu: fewer than 128 rows).
_SEGMENTED = 128
#: A row longer than this is sorted alone (Sort.cu: segments longer than a million elements).
_LONGEST_ROW = 1_000_000
#: Rows from which on vLLM's Triton kernel is taken, and not torch's sort (topk_topp_sampler.py 0.17.0 on).
_TRITON_ROWS = 8
#: Architectures whose default runner was V2 before all models' was (config/vllm.py).
_V2_22 = frozenset(("Qwen3ForCausalLM",))
_V2_23 = _V2_22 | {"LlamaForCausalLM", "MistralForCausalLM"}
_V2_24 = _V2_23 | {"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"}
_V2_25 = frozenset(("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"))
_V2_26 = _V2_25 | {"InklingForCausalLM", "InklingForConditionalGeneration", "LongcatFlashNgramForCausalLM"}
_V2_27 = _V2_26 | {"KimiK3ForConditionalGeneration"}
_V2_28 = _V2_27 | {"DeepseekV4ForCausalLM"}
#: Drafters that runner V2 takes, by version (config/vllm.py _get_v2_model_runner_unsupported_features).
_DRAFTERS = {(0, 22, 0): ("eagle", "eagle3", "mtp"), (0, 25, 0): ("eagle", "eagle3", "mtp", "dflash", "dspark")}
#: And those that it does not take from 0.29 on.
_REFUSED = ("suffix", "medusa", "mlp_speculator", "custom_class")
#: The rejection sampler's dummy run after the sampler's, one draft a row (runner V1 with a drafter): since this
#: version, bytes an element of rows x vocabulary at its sort, and at its own peak; the second of each with fp32 logits.
_REJECTION = (
    ((0, 17, 0), (0, 0), (30, 36)),
    ((0, 14, 0), (30, 36), (40, 46)),
    ((0, 12, 0), (26, 32), (36, 42)),
    ((0, 0, 0), (12, 16), (18, 26)),
)


class Peak(NamedTuple):
    """What is alive at a sampler's peak: bytes, which sampler it is, the sum in words, and how far it is proven.

    kept: of these bytes, those that stay allocated (a buffer that the next run uses again).  low, high: of `bytes`.
    """

    bytes: int
    name: str
    why: str
    kept: int
    low: int
    high: int


def runner(model: Model, form: Format, settings: ProfileSettings, version: Version) -> str:
    """``v1`` or ``v2``: the model runner that this version takes for this model by default."""
    if settings.v2_runner is not None:
        return "v2" if settings.v2_runner else "v1"
    if version < (0, 22, 0) or not _drafter_fits(settings.speculative, version):
        return "v1"
    if version >= (0, 29, 0):
        return "v2"
    names = set(model.config.raw.get("architectures") or ())
    mixture = any(tensor.role == "mlp.experts" for tensor in model.tensors)
    if version < (0, 25, 0):
        listed = _V2_22 if version < (0, 23, 0) else _V2_23 if version < (0, 24, 0) else _V2_24
        plain = version >= (0, 24, 0) or not (mixture or _quantized(form))
        return "v2" if names & listed and plain else "v1"
    if version < (0, 26, 0):
        listed = _V2_25
    elif version < (0, 27, 0):
        listed = _V2_26
    else:
        listed = _V2_27 if version < (0, 28, 0) else _V2_28
    known = bool(names & listed)
    if any(spec.states for spec in model.caches) and not (known and version >= (0, 27, 0)):
        return "v1"
    return "v2" if known or not mixture else "v1"


def _drafter_fits(method: str | None, version: Version) -> bool:
    if method is None:
        return True
    if version >= (0, 29, 0):
        return method not in _REFUSED
    return method in _DRAFTERS[(0, 25, 0) if version >= (0, 25, 0) else (0, 22, 0)]


def _quantized(form: Format) -> bool:
    return form.name not in ("bf16", "fp16", "fp32")


def sampler(settings: ProfileSettings, version: Version, capability: tuple[int, int] | None) -> str:
    """``native``, ``flashinfer`` or ``triton``: the sampler of runner V1 (topk_topp_sampler.py)."""
    wanted = settings.flashinfer_sampler
    if wanted is None:
        # automatic where installed up to 0.11: the images have it, `pip install vllm` did not until 0.12.  Off by
        # default from 0.12 to 0.20, on from 0.21 where the device can (compute capability 7.5 and more).
        wanted = version >= (0, 21, 0) and (capability is None or capability >= (7, 5))
    if wanted:
        return "flashinfer"
    return "triton" if version >= (0, 17, 0) else "native"


def peak_v1(
    rows: int, vocab: int, width: int, name: str, version: Version, processors: int, *, drafts: bool = False
) -> Peak:
    """Runner V1: `rows` x `vocab` logits of `width` bytes an element, sampled by `name` on `processors` SMs.

    drafts: there is a drafter, so the rejection sampler runs too.
    """
    base = width + (0 if width == 4 else 4)  # the sampler works on an fp32 copy; fp32 logits are not copied
    cells = rows * vocab
    sort, few = _sort_workspace(rows, vocab), rows < _TRITON_ROWS
    if name == "triton" and few:
        name = "native"
    buffer = _triton_buffer(rows, vocab, processors) if version >= (0, 17, 0) and not few and name != "native" else 0
    if name == "flashinfer" and version < (0, 21, 0):
        buffer = 0  # from 0.21 on forward_native is warmed up too
    words = {"native": "native sort", "triton": "vLLM's Triton top-k and top-p", "flashinfer": "FlashInfer"}[name]
    each, work = (base + 12, sort) if name == "native" else (base + 8, 0)
    if drafts:
        at_sort, at_peak = rejection(width, version, few=few)
        if cells * at_sort + (sort if at_sort else 0) > max(cells * each + work, cells * at_peak):
            words, each, work = "rejection sampler", at_sort, sort
        elif at_peak > each + work // cells:
            words, each, work = "rejection sampler", at_peak, 0
        buffer = _triton_buffer(rows, vocab, processors) if version >= (0, 17, 0) and not few else buffer
    size = cells * each + work + buffer
    why = f"{rows:,} x {vocab:,} x {each} B" + (f" + {work:,} B that torch's sort works in" if work else "")
    why += f" + a buffer of {buffer:,} B that stays" if buffer else ""
    return Peak(size, words, why, buffer, size, size)


def rejection(width: int, version: Version, *, few: bool) -> tuple[int, int]:
    """Bytes an element at the rejection sampler's sort (0: it does not sort) and at its peak."""
    found = [row for row in _REJECTION if version >= row[0]]
    sort, peak = found[0][1], found[0][2]
    if few and not any(sort):  # few rows are sorted by torch still
        sort, peak = (30, 36), (36, 42)
    return sort[width == 4], peak[width == 4]


def peak_v2(rows: int, vocab: int, width: int, version: Version) -> Peak:
    """Runner V2: logits and, up to 0.26, their fp32 copy; from 0.27 on no copy where nothing asks for one."""
    base = width if version >= (0, 27, 0) else width + (0 if width == 4 else 4)
    size = rows * vocab * base
    return Peak(size, "runner V2", f"{rows:,} x {vocab:,} x {base} B", 0, size, size)


def _sort_workspace(rows: int, vocab: int) -> int:
    """Bytes that torch's sort of fp32 keys takes beside its result (SortStable.cu).

    2 to 127 rows: every element's (segment, index) pair twice 16 B, keys 4, cub 12.  128 and more: int64 reverse
    indices 8, cub's alternate keys and values 4 + 8.  Longer rows, and one row, are sorted one after the other.
    """
    if rows == 1 or vocab > _LONGEST_ROW:
        return vocab * 20
    at_once = min(rows, _SORT_MOST // vocab)
    return at_once * vocab * (32 if rows < _SEGMENTED else 20)


def _triton_buffer(rows: int, vocab: int, processors: int) -> int:
    """topk_topp_triton.py: a row of fp32 for each program, programs rounded up to a power of two, at most the SMs."""
    programs = min(processors, rows)
    return min(1 << (programs - 1).bit_length(), processors) * vocab * 4
