"""vLLM's defaults and derived settings, and its refusals in its words."""

from __future__ import annotations

from membudget.engines.vllm.versions import Rules
from membudget.errors import MembudgetError
from membudget.formats import kv, kv_auto
from membudget.formats.dtypes import TORCH_DTYPES
from membudget.model.config import Config
from membudget.model.length import longest
from membudget.units import GIB


class SpecError(MembudgetError):
    """A layer, dtype or parallel size that vLLM refuses or whose pages are not known."""


_DOCS = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def model_dtype(config: Config, asked: str | None) -> tuple[str, str]:
    """--dtype, resolved: the checkpoint's own, fp32 becomes bf16 (config/model.py)."""
    if asked not in (None, "auto"):
        name = {"half": "float16", "float": "float32"}.get(str(asked), str(asked))
        if name not in TORCH_DTYPES:
            raise SpecError(f"dtype {asked!r} is not known; known are auto, {', '.join(TORCH_DTYPES)}")
        return name, ""
    written = config.dtype
    if written is None:
        return "bfloat16", "dtype bfloat16: config.json names none (config/model.py takes the checkpoint's)"
    if written == "float32":
        return "bfloat16", "dtype bfloat16: vLLM runs fp32 checkpoints in 16 bits (config/model.py)"
    if written not in TORCH_DTYPES:
        raise SpecError(f"{config.source}: dtype {written!r} is not known; known are {', '.join(TORCH_DTYPES)}")
    return written, ""


def kv_cache_dtype(config: Config, asked: str, rules: Rules) -> tuple[str, str]:
    """--kv-cache-dtype by vLLM's name; ``auto`` -> what a quantized checkpoint declares, and why."""
    name = asked.strip().lower() if isinstance(asked, str) else asked
    if name != "auto":
        kv.get(name, engine="vllm")
        return name, ""
    found = kv_auto.declared(config, version=rules.version)
    return (found.name, f"kv_cache_dtype auto is {found.name}: {found.why}") if found else ("auto", "")


def kv_dtype(name: str, model_dtype: str) -> kv.KvDtype:
    """What a token takes in this kv_cache_dtype; ``auto`` is the model's dtype."""
    return kv.get(model_dtype if name == "auto" else name, engine="vllm")


def max_model_len(config: Config, asked: int | None, rules: Rules) -> tuple[int, str]:
    """--max-model-len, or what the config says, RoPE scaling included (config/model.py)."""
    if asked is not None and asked != -1:
        if asked < 1:
            raise SpecError(f"max_model_len {asked} is not a number of tokens; -1 lets vLLM fit it")
        return asked, ""
    found = longest(config, rules.version)
    return found.tokens, f"max_model_len {found.tokens:,}: {found.source} (config/model.py)"


def batched_tokens(
    asked: int | None, platform: str, device_memory: int | None, device_name: str, ranks: int
) -> tuple[int | None, str]:
    """--max-num-batched-tokens, or the server's default by device (engine/arg_utils.py get_batch_defaults, 0.32.0)."""
    if asked is not None:
        if asked < 1:
            raise SpecError(f"max_num_batched_tokens {asked} is not a number of tokens")
        return asked, ""
    if platform == "cpu":
        tokens = 2048 * ranks
        return tokens, f"max_num_batched_tokens {tokens:,}: the server's default on the CPU (engine/arg_utils.py)"
    if device_memory is None:
        return None, ""
    if device_memory >= 160 * GIB:
        tokens = 16384
    elif device_memory >= 70 * GIB and "a100" not in device_name.lower():
        tokens = 8192
    else:
        tokens = 2048
    return tokens, f"max_num_batched_tokens {tokens:,}: the server's default for this device (engine/arg_utils.py)"


def stages(layers: int, pp: int, given: tuple[int, ...] | None) -> list[range]:
    """Layer indices of each pipeline stage (distributed/utils.py get_pp_indices)."""
    if given is not None:
        if len(given) != pp or sum(given) != layers:
            raise SpecError(f"pp_layers {given} must be {pp} numbers that add up to {layers}")
        sizes = list(given)
    else:
        if pp > max(layers, 1):
            raise SpecError(f"{pp} pipeline stages for {layers} layers")
        sizes = [layers // pp] * pp
        for i in range(2, layers % pp + 2):
            sizes[-i] += 1
    out, start = [], 0
    for size in sizes:
        out.append(range(start, start + size))
        start += size
    return out


def shown(size: int, r: Rules) -> str:
    """A size as this version prints it: ``1.0`` (format_gib, since 0.14.0) or ``1.00``."""
    return str(round(size / GIB, 2)) if r.short_gib else f"{size / GIB:.2f}"


def no_memory(r: Rules) -> str:
    """The refusal of a pool of nothing."""
    text = (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine"
    )
    if r.version < (0, 14, 0):
        return text + "."
    if r.version < (0, 22, 0):
        return f"{text}. {_DOCS}"
    note = "(this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return f"{text} {note}. {_DOCS}"


def too_long(r: Rules, length: int, needed: int, available: int, longest: int) -> str:
    """The refusal of a request that does not fit, as this version words it."""
    model = "model's" if r.version >= (0, 22, 0) else "models's"
    estimate = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    if r.version < (0, 9, 0):
        estimate = " Based on the available memory, " if longest else ""
    util = "`gpu_memory_utilization`"
    if r.version >= (0, 22, 0):
        util += " (which also controls CPU memory on the CPU backend)"
    text = (
        f"To serve at least one request with the {model} max seq len ({length}), "
        f"({shown(needed, r)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({shown(available, r)} GiB). {estimate}"
        f"Try increasing {util} or decreasing `max_model_len` when initializing the engine."
    )
    return f"{text} {_DOCS}" if r.version >= (0, 14, 0) else text


def cannot_fit() -> str:
    """The refusal of max_model_len -1 where nothing fits."""
    return (
        "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. "
        "Try increasing `gpu_memory_utilization`."
    )
