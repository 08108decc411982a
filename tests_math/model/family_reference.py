"""What transformers makes of a config, on the meta device: parameters, and tensors as it would save them.

Used by the census script and by the tests that need transformers; imports torch lazily.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Types whose saved names are not those of published checkpoints, or lose what was stored apart:
#: compared by count and by number of elements, not by name.
NAMES_DIFFER = {
    "olmo_hybrid": "transformers saves one convolution in three equal parts, and one name for two norms",
    "kimi_linear": "5.24 saves the dense layers' mlp as block_sparse_moe, which published files do not",
    "longcat_flash": "5.24 saves projections of experts that have none",
    "hrm_text": "transformers saves the fused projections' biases apart",
    "inkling_text": "published only inside inkling_mm_model",
    "minimax_m3_vl_text": "published only inside minimax_m3_vl, whose names we use",
    "inkling2_text": "the head is stored with padding rows",
    "inkling2_loop_text": "the head is stored with padding rows",
}
#: Types that have a tower beside the text model, which has recipes of its own.
TOWERS = {"gemma3", "gemma3n", "git", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal"}
#: Types that cannot be built from their class's defaults nor from random draws, or are no decoder, and why.
UNBUILDABLE = {
    "cohere_compass_text": "its class defaults name no layer types",
    "gemma4_assistant": "its validator refuses its own defaults",
    "gemma4_unified_assistant": "a draft head: no language model of its own",
    "musicgen": "a text encoder, an audio codec and a decoder; no text is decoded",
    "musicgen_melody": "a text encoder, an audio codec and a decoder; no text is decoded",
    "qwen4_exp": "its class defaults leave sizes null",
    "qwen4_exp_text": "its class defaults leave sizes null",
    "reformer": "is_decoder must be set, and axial positions have no fixed size",
    "blt": "four sub-models and hash embeddings: no recipe",
}

#: Hub configs that today's classes read otherwise than their published checkpoints are.
READ_OTHERWISE = {
    "stepfun-ai/Step-3.7-Flash": "flat keys, where the class reads text_config alone",
    "stepfun-ai/Step-3.7-Flash-FP8": "flat keys, where the class reads text_config alone",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "no level says if it ties; the class says yes, the files no",
    "liuhaotian/llava-v1.5-7b": "flat keys of the original LLaVA, where the class reads text_config alone",
}


def beyond(model: Any) -> int:
    """Elements that 5.24's class has beyond the published files, where another witness proves ours.

    LongCat-Flash: gate and up projections of the zero experts; 4.57.6 builds none, and 560 B are published.
    """
    if model.model_type != "longcat_flash":
        return 0
    c = model.config
    expert = 2 * c.integer("expert_ffn_hidden_size") * c.integer("hidden_size")
    return int(c.integer("num_layers") * c.size("zero_expert_num") * expert)


class Reference(NamedTuple):
    """params: elements of parameters().  tensors: name -> shape as save_pretrained would write them."""

    params: int
    tensors: dict[str, tuple[int, ...]]
    class_name: str


def causal_types() -> list[str]:
    """Every model_type of the causal-LM mapping of the installed transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def text_defaults(model_type: str) -> tuple[dict[str, Any], str | None]:
    """The text config's defaults, and the key that it is under where the config is composite."""
    from transformers import AutoConfig

    base = AutoConfig.for_model(model_type)
    text = base.get_text_config()
    if text is base:
        return text.to_dict(), None
    return text.to_dict(), next(key for key in ("text_config", "decoder", "llm_config") if hasattr(base, key))


def refusals() -> tuple[type[Exception], ...]:
    """What a class raises that does not take a config, or cannot run it: all kinds that whole censuses met.

    4.57.6 and 5.24.0; anything else is a fault of ours, or one that nobody has looked at, and is not passed over.
    """
    import huggingface_hub.errors

    # older versions of the hub's library have no such configs
    strict = getattr(huggingface_hub.errors, "StrictDataclassError", ValueError)
    kinds = (AssertionError, AttributeError, ImportError, KeyError, RuntimeError, StopIteration, TypeError)
    return (*kinds, ValueError, strict)


def raw(model_type: str, overrides: dict[str, Any], under: str | None) -> dict[str, Any]:
    """A config.json with these values and no others."""
    return {"model_type": model_type, **({under: overrides} if under else overrides)}


def reference(model_type: str, overrides: dict[str, Any], under: str | None, *, names: bool = True) -> Reference:
    """Build the model that this config describes on the meta device."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    given = copy.deepcopy(overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(model_type, **({under: given} if under and given else {} if under else given))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        params = sum(parameter.numel() for parameter in model.parameters())
        tensors = _saved(model) if names else {}
    return Reference(params, tensors, type(model).__name__)


def _saved(model: Any) -> dict[str, tuple[int, ...]]:
    """The tensors that save_pretrained would write: tied ones once, fused experts apart again."""
    from transformers.core_model_loading import revert_weight_conversion

    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    kept: dict[int, str] = {}
    for name in sorted(state, key=lambda key: key in tied):
        kept.setdefault(id(_parameter(model, name)), name)
    state = {name: tensor for name, tensor in state.items() if name in set(kept.values())}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}


def _parameter(model: Any, name: str) -> Any:
    module, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(module), leaf)


def inventory(tensors: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """Our inventory as name -> shape, without the heads that transformers does not build."""
    return {
        name: tuple(shape)
        for tensor in tensors
        if tensor.role != "mtp" and not name_is_stale(tensor.name) and not _unused(tensor)
        for name, shape in tensor.expand()
    }


def _unused(tensor: Any) -> bool:
    """A.X-K1's norms of dense layers, which files have and the class ignores."""
    return tensor.part == "checkpoint" and str(tensor.name).endswith("post_mlp_layernorm.weight")


def name_is_stale(name: str) -> bool:
    """Rotary tables that only old checkpoints store."""
    return name.endswith("rotary_emb.inv_freq")
