"""Write membudget/model/defaults/*.json: what transformers' config classes assume for absent keys.

    python tools/class_defaults.py            # with transformers installed

A class's fields are read, not an instance's values: what a class derives from other keys
(head_dim, layer_types) is null here and derived by our recipes.  Keys that change
neither a shape nor a cache are left out.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sys
from typing import Any

OUT = pathlib.Path(__file__).resolve().parents[1] / "membudget" / "model" / "defaults"
#: Keys of no consequence for memory.
IDLE = re.compile(
    r"token_id|token_index|dropout|pdrop|drop$|_drop|initializer|init_std|epsilon|_eps$|^eps$|hidden_act|activation|"
    r"router_aux|aux_loss|jitter|z_loss|^output_(?!embedding)|return_dict|id2label|label2id|problem_type|architectures|"
    r"transformers_version|chunk_size_feed_forward|pretraining_tp|summary_|loss|rope_param|rope_scaling|"
    r"rope_theta|scale_attn|scaling_factor|multiplier$|multipliers$|temperature|softcap|time_step_(?!rank)|_token$|"
    r"std$|probability|mask_|classifier_dropout|use_cache|norm_topk|rescale|reorder|residual_in_fp32|topk_method|"
    r"scoring_func|use_mamba_kernels|logits_to_keep|begin_suppress|suppress_tokens|gradient|layerdrop|clip|"
    r"_embd_scale|scale_embedding|forced_|^dtype$|^task_specific|tokenizer_class|prefix$"
)
#: Towers that wrappers name by model_type only.
TOWERS = ("siglip_vision_model", "clip_vision_model", "pixtral")
#: Per-layer lists: they belong to the default number of layers.
LISTS = re.compile(r"layer_types$|layers_block_type|per_layer_config|no_rope_layers|indexer_types|_per_layer$")


def table(config_class: type) -> dict[str, Any] | None:
    """The defaults of one class, or None if it is not a plain text config."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        if IDLE.search(field.name) or LISTS.search(field.name) or value is None:
            continue
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, (bool, int, float, str, list)) or (isinstance(value, dict) and _plain(value)):
            values[field.name] = value
    aliases = {k: v for k, v in (getattr(config_class, "attribute_map", None) or {}).items() if isinstance(v, str)}
    return {"aliases": aliases, "values": values}


def _plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def main() -> None:
    """Write one file a model_type."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    types = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *TOWERS}
    wrappers = set(types) | set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    known = set(CONFIG_MAPPING.keys())
    for wrapper in sorted(wrappers & known):
        for sub in (getattr(CONFIG_MAPPING[wrapper], "sub_configs", None) or {}).values():
            if getattr(sub, "model_type", "") in known:
                types.add(sub.model_type)
    for old in OUT.glob("*.json"):
        old.unlink()
    for model_type in sorted((types | wrappers) & known):
        config_class = CONFIG_MAPPING[model_type]
        if not dataclasses.is_dataclass(config_class):
            print(f"{model_type}: not a dataclass, skipped", file=sys.stderr)
            continue
        found = table(config_class)
        text = json.dumps(
            {"transformers": transformers.__version__, **(found or {})}, sort_keys=True, indent=0, allow_nan=False
        )
        (OUT / f"{model_type}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
