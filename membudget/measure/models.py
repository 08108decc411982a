"""The transformers model of a config.json: fake (no memory at all), or real with random weights or a checkpoint's.

Imports torch and transformers: only for a worker's own process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from membudget.errors import MembudgetError

#: Names of a budget's dense formats, and what torch calls them.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class CannotBuild(MembudgetError):
    """The installed transformers does not build this config: says what it said."""


def read_config(raw: Mapping[str, Any]) -> Any:
    """The installed transformers' own config object for a config.json; never runs a repository's code."""
    import json

    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(dict(raw), file)
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except (ValueError, KeyError, OSError) as error:
            raise CannotBuild(_said(raw, error)) from None
    # Weights are random or dense here, so a checkpoint's quantization is not of interest.
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    return config


def random_model(config: Any, dtype: str, device: str, attention: str) -> Any:
    """The model with random weights, made on the device itself.  Eval mode, no gradients."""
    model = _from_config(config, dtype, attention, device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def checkpoint_model(path: str, dtype: str, device: str, attention: str) -> Any:
    """The model with the weights of a local checkpoint."""
    from transformers import AutoModelForCausalLM

    where = {} if device == "cpu" else {"device_map": device}
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=DTYPES[dtype],
        attn_implementation=attention,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,  # never a pickle
        **where,
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def fake_model(config: Any, dtype: str, attention: str, mode: Any, device: str = "cpu") -> Any:
    """The model in `mode` (a FakeTensorMode): real shapes and dtypes on a device that need not be there, no bytes.

    Built on the meta device first: initialization kernels of a full-size model take minutes,
    and some do not run on fake tensors.
    """
    model = _from_config(config, dtype, attention, "meta").eval()
    swapped: dict[int, Any] = {}
    with mode:
        for module in model.modules():
            for name, old in list(module._parameters.items()):
                if old is not None:  # tied tensors stay one
                    if id(old) not in swapped:
                        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device)
                        swapped[id(old)] = torch.nn.Parameter(new, requires_grad=False)
                    module._parameters[name] = swapped[id(old)]
            for name, old in list(module._buffers.items()):
                if old is not None:
                    if id(old) not in swapped:
                        swapped[id(old)] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device)
                    module._buffers[name] = swapped[id(old)]
    return model


def kept_wide(config: Any, dtype: str) -> dict[str, int]:
    """Parameters that the model's own class keeps wider than asked (router weights in fp32), and the bytes more."""
    model = _from_config(config, dtype, "eager", "meta")
    width = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    return {
        name: (tensor.element_size() - width) * tensor.numel()
        for name, tensor in model.named_parameters()
        if tensor.element_size() > width
    }


@contextlib.contextmanager
def masks_as_in_production() -> Iterator[None]:
    """Let transformers leave causal masks out under fake tensors as it does with real ones.

    It keeps them when it believes that it is traced, and fake tensors count as tracing;
    whether sequences are packed depends on the data, which fake tensors do not have.
    Names differ by version: what is not there is left alone.
    """
    try:
        import transformers.masking_utils as masks
    except ImportError:
        yield
        return
    answers = {
        "is_tracing": lambda *_, **__: False,
        "is_torchdynamo_compiling": lambda: False,
        "find_packed_sequence_indices": lambda *_, **__: None,
    }
    kept = {name: getattr(masks, name) for name in answers if hasattr(masks, name)}
    for name in kept:
        setattr(masks, name, answers[name])
    try:
        yield
    finally:
        for name, old in kept.items():
            setattr(masks, name, old)


def forward(model: Any, tokens: Any, logits: str, cache: Any = None) -> Any:
    """One forward; logits of the last position only where `logits` is ``last``.

    Raises `CannotBuild` for a model that has no way to leave the other positions' out, or none to be given a cache.
    """
    known = _takes(model)
    more: dict[str, Any] = {}
    if logits == "last":
        name = next((name for name in ("logits_to_keep", "num_logits_to_keep") if name in known), None)
        if name is None:
            raise CannotBuild(f"{type(model).__name__} computes every logit: it has no logits_to_keep")
        more[name] = 1
    if cache is not None:
        name = next((name for name in _CACHE_NAMES if name in known), None)
        if name is None:
            raise CannotBuild(f"{type(model).__name__} takes no cache: it has none of {', '.join(_CACHE_NAMES)}")
        more[name] = cache
    return model(input_ids=tokens, use_cache=True, **more)


def cache_of(output: Any) -> Any:
    """The cache object in a model's output, None where it has none."""
    for name in _CACHE_NAMES:
        found = output.get(name) if name in output.keys() else None  # noqa: SIM118  (attributes of old names warn)
        if found is not None:
            return found
    return None


def set_attention(model: Any, attention: str) -> None:
    """Change how a model that is loaded computes attention."""
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise CannotBuild(f"{type(model).__name__} has no {attention} attention: {error}") from None
    except AttributeError:  # transformers before 4.56
        model.config._attn_implementation = attention


#: What the cache is called in outputs and arguments, the newest name first.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def _takes(model: Any) -> Any:
    import inspect

    return inspect.signature(model.forward).parameters


def _from_config(config: Any, dtype: str, attention: str, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    config = type(config).from_dict(config.to_dict())
    try:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation=attention)
    except (ValueError, KeyError, ImportError, AttributeError) as error:
        raise CannotBuild(_said({"model_type": config.model_type}, error)) from None


def _said(raw: Mapping[str, Any], error: Exception) -> str:
    import transformers

    kind, text = raw.get("model_type"), " ".join(str(error).split())
    here = f"transformers {transformers.__version__}"
    if "trust_remote_code" in text or "custom code" in text:
        return (
            f"{here} has no {kind!r} of its own: its class is in the model's repository, and that code is never run "
            "here. `membudget plan` predicts it by arithmetic"
        )
    if "does not support an attention implementation through" in text or "scaled_dot_product_attention" in text:
        return f"{kind!r} has no sdpa attention in {here}: ask for eager (`membudget trace --attention eager`)"
    if "does not recognize this architecture" in text:
        return f"{here} does not know {kind!r}: a newer one may. `membudget plan` predicts it by arithmetic"
    text = text.replace(tempfile.gettempdir(), "")
    return f"{here} does not build {kind!r}: {text[:300]}"
