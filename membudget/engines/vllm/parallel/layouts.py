"""Layouts that were asked for, and where vLLM refuses one, those of the same model that it would take.

laid_out(model, format, 3, 1)      RankError: ... divisible by tensor parallel size (3). Allowed: ...
"""

from __future__ import annotations

from membudget.engines.vllm.parallel.cut import RankError
from membudget.engines.vllm.parallel.ranks import Stage, stages
from membudget.formats.base import Format, FormatError
from membudget.model import Model

#: Tensor-parallel sizes that are tried for the advice; no model here has more heads than the largest.
MOST = 256


def laid_out(model: Model, form: Format, tp: int, pp: int) -> tuple[Stage, ...]:
    """As `ranks.stages`; a refusal ends with the sizes that are allowed.  Raises `RankError`."""
    try:
        return stages(model, form, tp, pp)
    except RankError as error:
        advice = _advice(model, form, tp, pp)
        raise RankError(f"{str(error).removesuffix('.')}. {advice}" if advice else str(error)) from None


def allowed(model: Model, form: Format, tp: int, pp: int) -> tuple[list[tuple[int, int]], list[int]]:
    """((tensor, pipeline) sizes of tp * pp ranks, tensor-parallel sizes at this or no pipeline) that vLLM takes."""
    ranks = tp * pp
    pairs = [(size, ranks // size) for size in range(1, min(ranks, MOST) + 1) if ranks % size == 0]
    same = [pair for pair in pairs if pair != (tp, pp) and _works(model, form, *pair)]
    stages_ = pp if pp <= len(model.caches) and _works(model, form, 1, pp) else 1
    return same, [size for size in range(1, MOST + 1) if _works(model, form, size, stages_)]


def _advice(model: Model, form: Format, tp: int, pp: int) -> str:
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


__all__ = ["MOST", "allowed", "laid_out"]
