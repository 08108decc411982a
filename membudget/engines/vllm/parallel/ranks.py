"""What each rank of a tensor- and pipeline-parallel vLLM holds: the model's tensors and caches, cut as vLLM cuts them.

    for stage in stages(model, format, tp=2, pp=2):
        stage.layers      the decoder layers of this pipeline stage
        stage.model       a `Model` of what one rank holds: every format, cache and activation rule applies to it

All tensor-parallel ranks of a stage hold the same: vLLM refuses what does not divide (`cut`).
fixtures/oracle/ranks.json holds what vLLM's own classes say, tests_math/engines/vllm/test_distributed.py compares.
"""

from __future__ import annotations

from typing import NamedTuple

from membudget.engines.vllm.parallel.cut import (
    BUFFERS,
    REPLICATED,
    Cut,
    Experts,
    RankError,
    UnknownSplit,
    layer_of,
    unknown,
)
from membudget.formats.base import Format, FormatError
from membudget.formats.safetensors import Safetensors
from membudget.model import Model
from membudget.model.caches import CacheSpec, summarize
from membudget.model.tensors import Tensor

#: Families whose ranks were compared with vLLM's own classes, parameter by parameter.
KNOWN = frozenset((
    "cohere", "deepseek_v2", "deepseek_v3", "deepseek_v32", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text",
    "glm4_moe", "glm_moe_dsa", "gpt_oss", "granitemoehybrid", "jamba", "kimi_k2", "llama", "llama4_text", "mamba2",
    "minimax_m2", "ministral3", "mistral", "mixtral", "nemotron_h", "olmo2", "olmo3", "phi3", "phimoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "stablelm",
))  # fmt: skip
#: Families that vLLM 0.32.0 does not run in pipeline stages, in its words or by what happens.
NO_PIPELINE = {
    "mamba2": (
        "Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` interface."
    ),
    "falcon_h1": "its class fails in a stage without the embedding (AttributeError, vLLM 0.32.0)",
}
#: vLLM's class keeps a head of its own although the config ties it to the embedding.
_UNTIED = ("jamba", "qwen3_next")
#: vLLM's classes make these on every stage, whether a stage uses them or not (0.32.0).
_EVERYWHERE = {
    "embed": (
        "cohere", "gemma", "gemma2", "gemma3_text", "gpt_oss", "granitemoehybrid", "jamba", "mixtral", "nemotron_h",
        "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "stablelm",
    ),
    "lm_head": (
        "gpt_oss", "jamba", "mixtral", "nemotron_h", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next", "stablelm",
    ),
    "norms": (
        "cohere", "gemma", "gemma2", "gemma3_text", "gpt_oss", "granitemoehybrid", "jamba", "mixtral", "nemotron_h",
        "phimoe", "qwen2_moe", "qwen3_moe", "stablelm",
    ),
}  # fmt: skip


class Stage(NamedTuple):
    """One pipeline stage.  layers: (first, one past the last).  model: what one rank of it holds.

    whole: bytes that are counted whole on every rank although vLLM may split them (other towers), an upper bound.
    """

    index: int  # type: ignore[assignment]  # a position here; tuple.index is not called
    layers: tuple[int, int]
    model: RankModel
    whole: int = 0


class RankModel(Model):
    """A model as one rank holds it: its tensors and caches; everything else is the whole model's."""

    def __init__(self, of: Model, tensors: tuple[Tensor, ...], caches: tuple[CacheSpec, ...]) -> None:
        self.name, self.config, self.family, self.unknown = of.name, of.config, of.family, of.unknown
        self.unproven, self.read_as, self.count = of.unproven, of.read_as, of.count
        self.tensors, self.caches = tensors, caches
        self.cache_shape = summarize(caches)
        self.memo = {}


def stages(model: Model, form: Format, tp: int, pp: int, experts: Experts | None = None) -> tuple[Stage, ...]:
    """Every pipeline stage of `model` in `form`, as one of its `tp` ranks holds it; kept on the model.

    experts: how ranks share them, None for a slice of each on every tensor-parallel rank.

    Raises `RankError` for sizes that vLLM refuses and for families and formats whose cut is not known.
    """
    experts = experts or Experts(tp)
    key = ("ranks", form.key, tp, pp, experts)
    found = model.memo.get(key)
    if found is None:
        found = model.memo[key] = _stages(model, form, tp, pp, experts)
    assert isinstance(found, tuple)
    return found


def _stages(model: Model, form: Format, tp: int, pp: int, experts: Experts) -> tuple[Stage, ...]:
    from membudget.engines.vllm.pool.derive import stages as ranges

    _known(model, form, pp)
    layers = len(model.caches)
    if pp > layers:
        raise RankError(
            f"pipeline_parallel_size {pp:,} is more than the model's {layers:,} layers", f"; allowed: 1 to {layers:,}"
        )
    _heads(model, tp)
    cut = Cut(model, form, tp, experts)
    held: list[list[Tensor]] = [[] for _ in range(pp)]
    spans = ranges(layers, pp, None)
    stage_of = {layer: place for place, span in enumerate(spans) for layer in span}
    towers = 0
    for tensor in model.tensors:
        if tensor.part != "params" and not (tensor.role == "mlp.router" and tensor.name.endswith(BUFFERS)):
            continue
        bucket, layer = tensor.role.partition(".")[0], layer_of(tensor.name)
        if bucket in ("vision", "audio"):
            held[0].append(tensor)
            towers += form.layout(tensor, model).nbytes * tensor.copies
        elif layer is not None and layer in stage_of:
            held[stage_of[layer]] += cut.layer(tensor, layer)
        elif bucket in ("embed", "lm_head", "norms"):
            for place, piece in _ends(model, cut, tensor, bucket, pp):
                held[place].append(piece)
        else:
            raise unknown(model, tensor)
    caches = [[cut.cache(spec) for spec in model.caches if spec.layer in span] for span in spans]
    found = tuple(
        Stage(place, (span.start, span.stop), RankModel(model, tuple(held[place]), tuple(caches[place])),
              towers if place == 0 else 0)
        for place, span in enumerate(spans)
    )  # fmt: skip
    _weighed(model, form, tp, found)
    return found


def _weighed(model: Model, form: Format, tp: int, found: tuple[Stage, ...]) -> None:
    """A rank's tensors must be whole blocks of the format, as the model's are.  Raises `RankError`."""
    form.weigh(model)  # what the whole model cannot be in, is not the layout's fault
    try:
        for stage in found:
            form.weigh(stage.model)
    except RankError:
        raise
    except FormatError as error:
        raise RankError(f"{error}: that is what one rank holds at tensor_parallel_size {tp}") from None


def _ends(model: Model, cut: Cut, tensor: Tensor, bucket: str, pp: int) -> list[tuple[int, Tensor]]:
    """(stage, tensor) of what lies before the first layer or behind the last one."""
    name = model.read_as
    everywhere = name in _EVERYWHERE[bucket]
    if bucket == "norms":
        return [(place, tensor) for place in (range(pp) if everywhere else (pp - 1,))]
    piece = cut.vocabulary(tensor)
    if bucket == "lm_head":
        return [(place, piece) for place in (range(pp) if everywhere else (pp - 1,))]
    tied = not any(other.role == "lm_head" for other in model.tensors)
    head = piece._replace(role="lm_head")
    found = dict.fromkeys(range(pp) if everywhere else (0,), piece)
    if not tied:
        return list(found.items())
    if name in _UNTIED:
        heads = range(pp) if name in _EVERYWHERE["lm_head"] else (pp - 1,)
        return [*found.items(), *((place, head) for place in heads)]
    return list({**found, pp - 1: head}.items())  # the table is the head: one tensor where both are


def _known(model: Model, form: Format, pp: int) -> None:
    name = model.read_as
    if name not in KNOWN:
        raise UnknownSplit(
            f"planning {name!r} over several GPUs is not supported",
            f"; supported: {', '.join(sorted(KNOWN))}. Plan one GPU instead",
        )
    if not isinstance(form, Safetensors):
        raise UnknownSplit(
            f"planning {form.name} weights over several GPUs is not supported",
            "; use a safetensors format: bf16, fp8 or awq",
        )
    if pp > 1 and name in NO_PIPELINE:
        raise RankError(f"pipeline_parallel_size {pp}: vLLM refuses {name}: {NO_PIPELINE[name]}")


def _heads(model: Model, tp: int) -> None:
    heads = model.config.get("num_attention_heads")
    found = heads if isinstance(heads, list) else [heads]
    if model.read_as == "mamba2":
        found = []
    for head in found:
        if isinstance(head, int) and head % tp:
            # config/model.py verify_with_parallel_config, in vLLM's words
            raise RankError(
                f"Total number of attention heads ({head}) must be divisible by tensor parallel size ({tp})."
            )
    for spec in model.caches:
        kv = spec.kv_heads
        if kv and max(kv, tp) % min(kv, tp):
            raise RankError(
                f"{kv} KV heads are neither a multiple nor a divisor of tensor parallel size ({tp}): "
                "vLLM's attention layer asserts it"
            )


__all__ = [
    "KNOWN",
    "NO_PIPELINE",
    "REPLICATED",
    "RankError",
    "RankModel",
    "Stage",
    "UnknownSplit",
    "layer_of",
    "stages",
]
