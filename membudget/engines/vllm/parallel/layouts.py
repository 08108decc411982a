"""Where vLLM refuses a layout: those of the same model that it would take."""

from __future__ import annotations

from membudget.engines.vllm.parallel.ranks import stages
from membudget.formats.base import Format, FormatError
from membudget.model import Model

#: Tensor-parallel sizes that are tried for the advice; no model here has more heads than the largest.
MOST = 256


def allowed(model: Model, form: Format, tp: int, pp: int) -> tuple[list[tuple[int, int]], list[int]]:
    """((tensor, pipeline) sizes of tp * pp ranks, tensor-parallel sizes at this or no pipeline) that vLLM takes."""
    ranks = tp * pp
    pairs = [(size, ranks // size) for size in range(1, min(ranks, MOST) + 1) if ranks % size == 0]
    same = [pair for pair in pairs if pair != (tp, pp) and _works(model, form, *pair)]
    stages_ = pp if pp <= len(model.caches) and _works(model, form, 1, pp) else 1
    return same, [size for size in range(1, MOST + 1) if _works(model, form, size, stages_)]


def advice(model: Model, form: Format, tp: int, pp: int) -> str:
    """The sizes that vLLM takes in place of these, as a sentence; "" where it is not the sizes that it refuses."""
    if not _works(model, form, 1, 1):
        return ""  # it is not the sizes that are refused
    same, sizes = allowed(model, form, tp, pp)
    shown = ", ".join(map(str, sizes))
    text = f"Allowed tensor_parallel_size: {shown} (times pipeline_parallel_size it is the number of machines)"
    if same:
        ways = " or ".join(f"{first} with pipeline_parallel_size {second}" for first, second in reversed(same[-3:]))
        text += f"; on these {tp * pp:,} machines: tensor_parallel_size {ways}"
    return text


def _works(model: Model, form: Format, tp: int, pp: int) -> bool:
    heads = model.config.get("num_attention_heads")
    if model.read_as != "mamba2" and isinstance(heads, int) and heads % tp:
        return False  # as `ranks` has it: without building a rank
    try:
        stages(model, form, tp, pp)
    except FormatError:
        return False
    return True


__all__ = ["MOST", "advice", "allowed"]
