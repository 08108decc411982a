"""vLLM's defaults and derived settings, and its refusals in its words."""

from __future__ import annotations

from membudget.engines.vllm.kv_dtypes import SpecError
from membudget.engines.vllm.pool.states import DTYPE_BYTES
from membudget.engines.vllm.versions import Rules
from membudget.model.config import Config, ConfigError
from membudget.units import GIB

#: Names of a model's longest sequence, all that are present count, the smallest decides (config/model.py).
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: Scaling that is already in max_position_embeddings.
_NO_FACTOR = ("su", "longrope", "llama3", "default", "mrope")

_DOCS = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def model_dtype(config: Config, asked: str | None) -> tuple[str, str]:
    """--dtype, resolved: the checkpoint's own, fp32 becomes bf16 (config/model.py)."""
    if asked not in (None, "auto"):
        name = {"half": "float16", "float": "float32"}.get(str(asked), str(asked))
        if name not in DTYPE_BYTES:
            raise SpecError(f"dtype {asked!r} is not known; known are auto, {', '.join(DTYPE_BYTES)}")
        return name, ""
    written = config.dtype
    if written is None:
        return "bfloat16", "dtype bfloat16: config.json names none (config/model.py takes the checkpoint's)"
    if written == "float32":
        return "bfloat16", "dtype bfloat16: vLLM runs fp32 checkpoints in 16 bits (config/model.py)"
    if written not in DTYPE_BYTES:
        raise SpecError(f"{config.source}: dtype {written!r} is not known; known are {', '.join(DTYPE_BYTES)}")
    return written, ""


def max_model_len(config: Config, asked: int | None) -> tuple[int, str]:
    """--max-model-len, or what the config says, RoPE scaling included (config/model.py)."""
    if asked is not None and asked != -1:
        if asked < 1:
            raise SpecError(f"max_model_len {asked} is not a number of tokens; -1 lets vLLM fit it")
        return asked, ""
    found = [config.integer(key) for key in _LENGTH_KEYS if isinstance(config.text.get(key), int)]
    if not found:
        raise SpecError(f"{config.source}: no max_position_embeddings: give max_model_len")
    length = min(found)
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.get(key)
        if not isinstance(scaling, dict):
            continue
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        factor = scaling.get("factor")
        if kind in _NO_FACTOR or not isinstance(factor, (int, float)) or config.model_type.startswith("gemma3"):
            break
        if kind == "yarn" and isinstance(scaling.get("original_max_position_embeddings"), int):
            length = scaling["original_max_position_embeddings"]
        length = int(length * factor)
        break
    return length, f"max_model_len {length:,}: from config.json (config/model.py)"


def longest(config: Config) -> int | None:
    """The model's own longest sequence, None where its config does not say."""
    try:
        return max_model_len(config, None)[0]
    except (SpecError, ConfigError):
        return None


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
