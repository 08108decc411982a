"""What a real model's cache holds: tiny models of every type, run on the CPU by transformers itself.

Used by tools/cache_census.py and by the tests that need transformers; imports torch lazily.
"""

from __future__ import annotations

import copy
import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests_math.model.random_configs import draw

#: Prompt lengths of the census: shorter than, longer than and many times the windows.
PROMPTS = (7, 64, 129)
#: Decode steps after each prompt.
STEPS = (1, 3)
BATCH = 2
#: max_cache_len of the static caches.
STATIC_LEN = 40
#: The encoder's tokens, where there is an encoder.
SOURCE = 11
#: Windows small enough that every prompt but the first passes them, and keys that set them.
WINDOWS = {
    "sliding_window": 16,
    "sliding_window_size": 16,
    "attention_window_size": 16,
    "attention_chunk_size": 16,
    "local_attention": 32,
    "window_size": 16,
}
#: What forward() calls its cache: 5.24 on, before it, Mamba before it, RWKV.
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")


def _thirds(count: int) -> list[str]:
    return ["full_attention" if i % 3 == 2 or i == count - 1 else "sliding_attention" for i in range(count)]


#: What a draw needs beside its shapes so that forward() runs.
RUNNABLE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "longcat_flash": lambda found: {"head_dim": found["qk_rope_head_dim"]},
    "hrm_text": lambda found: {"num_hidden_layers": found.pop("num_layers_per_stack")},
    "dbrx": lambda found: {
        "tie_word_embeddings": False,
        "attn_config": {**found["attn_config"], "clip_qkv": 8.0},
        "num_attention_heads": 4 * found["attn_config"]["kv_n_heads"],
        "n_heads": 4 * found["attn_config"]["kv_n_heads"],
        "d_model": 64 * found["attn_config"]["kv_n_heads"],
        "hidden_size": 64 * found["attn_config"]["kv_n_heads"],
    },
    **dict.fromkeys(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
        # each kind of layer needs one with its own cache before those that share
        lambda found: {
            "layer_types": _thirds(found["num_hidden_layers"]),
            "vocab_size_per_layer_input": found["vocab_size"],
        },
    ),
    "xmod": lambda found: {"default_language": found["languages"][0]},
}
#: Types whose cache cannot be measured, and why.
UNMEASURED = {
    "cpmant": "forward() with a cache fails after the first step",
    "dots3_note": "its vision part's validator refuses every draw; its text twin dots3_note_text is measured",
    "openai-gpt": "forward() knows no cache",
    "xlm": "forward() returns no cache",
    "xlnet": "forward() returns no keys and values",
}
#: Types that keep state in modules instead of the cache, and the attributes it is in.
IN_MODULES = {"recurrent_gemma": ("conv1d_state", "recurrent_states")}


class Held(NamedTuple):
    """Bytes of a cache's tensors, and of the storages behind them (each counted once)."""

    tensors: int
    storage: int


def overrides(model_type: str, defaults: dict[str, Any], number: int) -> dict[str, Any]:
    """Draw number `number` for this type: small, with windows of 16 tokens where it has any."""
    rng = random.Random(f"cache {model_type} {number}")
    found = draw(model_type, defaults, rng)
    for key, value in WINDOWS.items():
        if key in defaults:
            found[key] = value
    for key in ("max_position_embeddings", "n_positions"):
        if isinstance(defaults.get(key), int) and defaults[key] < 256:
            found[key] = 256
    if "max_window_layers" in defaults:
        found["max_window_layers"] = rng.randint(0, 3)
    if "use_sliding_window" in defaults and model_type != "iquestcoder":
        found["use_sliding_window"] = number % 2 == 0
    if model_type in RUNNABLE:
        found.update(RUNNABLE[model_type](found))
    return found


def build_real(model_type: str, given: dict[str, Any], under: str | None) -> Any:
    """A real model with random weights in bfloat16, in eval mode."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    values = copy.deepcopy(given)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(model_type, **({under: values} if under else values))
        if hasattr(config.get_text_config(), "is_decoder"):
            config.get_text_config().is_decoder = True
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def measure(model: Any, prompt: int, steps: tuple[int, ...] = STEPS, make_cache: Any = None) -> list[Held]:
    """Run one prompt, then decode: what the cache holds after the prompt and after each of `steps` steps."""
    import torch
    from transformers import DynamicCache

    config = model.config.get_text_config()
    generator = torch.Generator().manual_seed(prompt)

    def tokens(count: int) -> Any:
        return torch.randint(3, config.vocab_size, (BATCH, count), generator=generator)

    takes = inspect.signature(model.forward).parameters
    name = next(key for key in CACHE_NAMES if key in takes)
    more: dict[str, Any] = {}
    if source_tokens(model):
        source = torch.zeros(BATCH, SOURCE, config.hidden_size, dtype=torch.bfloat16)
        if "encoder_hidden_states" in takes:
            more["encoder_hidden_states"] = source
        elif "encoder_outputs" in takes:
            more["encoder_outputs"] = (source,)
    apart = IN_MODULES.get(config.model_type, ())
    found = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = make_cache() if make_cache else DynamicCache(config=model.config) if apart else None
        for step in range(max(steps) + 1):
            out = model(input_ids=tokens(1 if step else prompt), use_cache=True, **more, **{name: cache})
            cache = getattr(out, name, None) or (cache if apart else None)
            if cache is None:
                return []
            if step == 0 or step in steps:
                found.append(
                    held([cache, [getattr(m, key) for m in model.modules() for key in apart if hasattr(m, key)]])
                )
    return found


def measure_static(model: Any) -> Held | None:
    """What a StaticCache of STATIC_LEN tokens holds after 7; None where the model cannot use one."""
    from transformers import StaticCache

    if source_tokens(model) or not getattr(model, "_can_compile_fullgraph", False):
        return None
    cache = StaticCache(config=model.config, max_cache_len=STATIC_LEN)
    measure(model, 7, (1,), lambda: cache)
    return held(cache)


def source_tokens(model: Any) -> int:
    """The encoder's tokens that `measure` gives to the decoder's cross attention; 0 where it has none."""
    takes = inspect.signature(model.forward).parameters
    given = "encoder_hidden_states" in takes or "encoder_outputs" in takes
    crosses = any("encoder_attn" in name or "cross" in name for name, _ in model.named_modules())
    return SOURCE if given and crosses else 0


def held(cache: Any) -> Held:
    """Sum the tensors reachable from `cache`, each view once and each storage once; counters are left out."""
    tensors: dict[tuple[int, int, tuple[int, ...]], int] = {}
    storages: dict[int, int] = {}
    for _, tensor in reachable(cache):
        pointer = tensor.untyped_storage().data_ptr()
        tensors[pointer, tensor.storage_offset(), tuple(tensor.shape)] = tensor.numel() * tensor.element_size()
        storages[pointer] = tensor.untyped_storage().nbytes()
    return Held(sum(tensors.values()), sum(storages.values()))


def reachable(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Every floating-point tensor with dimensions that `value` reaches, and its path; empty views hold storage too."""
    import torch

    seen = set() if seen is None else seen
    if id(value) in seen or value is None or isinstance(value, (str, int, float, bool, type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.dim():
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from reachable(item, f"{path}[{key}]", seen)
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from reachable(item, f"{path}[{key}]", seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.dtype, torch.device)):
        if "Config" in type(value).__name__ or isinstance(value, torch.nn.Module):
            return
        for key, item in vars(value).items():
            yield from reachable(item, f"{path}.{key}" if path else key, seen)
