"""Small random vision_config and audio_config of every wrapper whose tower has a recipe."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Overrides = dict[str, Any]


def draw_towers(wrapper: str, rng: Random) -> Overrides:
    """Keys of the whole config.json: its towers, and what sizes the projectors."""
    if wrapper in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"):
        return {"vision_config": _qwen(wrapper, rng)}
    if wrapper in ("glm4v", "glm4v_moe", "glm46v"):
        return {"vision_config": _glm(rng)}
    recipes: dict[str, Callable[[], Overrides]] = {
        "gemma3": lambda: {"vision_config": _siglip(rng), "mm_tokens_per_image": 4},
        "paligemma": lambda: {"vision_config": _siglip(rng), "projection_dim": rng.choice([24, 40])},
        "idefics3": lambda: {"vision_config": _square(rng), "scale_factor": rng.choice([2, 3])},
        "smolvlm": lambda: {"vision_config": _square(rng), "scale_factor": rng.choice([2, 3])},
        "llava": lambda: _llava(rng),
        "llava_next": lambda: _llava(rng),
        "vipllava": lambda: {"vision_config": _clip(rng), "vision_feature_layers": rng.choice([[-1], [-1, -2]])},
        "mistral3": lambda: _mistral3(rng),
        "internvl": lambda: _internvl(rng),
        "llama4": lambda: {"vision_config": _llama4(rng)},
        "mllama": lambda: {"vision_config": _mllama(rng)},
        "gemma4": lambda: _gemma4(rng),
    }
    return recipes[wrapper]()


def _square(rng: Random) -> Overrides:
    heads, patch = rng.choice([2, 4]), rng.choice([7, 8, 14])
    return {
        "hidden_size": heads * rng.choice([8, 16]),
        "num_attention_heads": heads,
        "num_hidden_layers": rng.randint(1, 4),
        "intermediate_size": 8 * rng.randint(4, 9),
        "patch_size": patch,
        "image_size": patch * rng.randint(2, 5) + rng.choice([0, 3]),
        "num_channels": rng.choice([1, 3]),
    }


def _siglip(rng: Random) -> Overrides:
    return {"model_type": "siglip_vision_model", **_square(rng), "vision_use_head": rng.random() < 0.5}


def _clip(rng: Random) -> Overrides:
    return {"model_type": "clip_vision_model", **_square(rng)}


def _pixtral(rng: Random) -> Overrides:
    found = _square(rng)
    return {"model_type": "pixtral", **found, "head_dim": found["hidden_size"] // found["num_attention_heads"]}


def _llava(rng: Random) -> Overrides:
    return {
        "vision_config": rng.choice([_clip, _siglip, _pixtral])(rng),
        "multimodal_projector_bias": rng.random() < 0.5,
        "vision_feature_layer": rng.choice([-1, -2, [-1, -2]]),
    }


def _mistral3(rng: Random) -> Overrides:
    return {
        "vision_config": _pixtral(rng),
        "multimodal_projector_bias": rng.random() < 0.5,
        "vision_feature_layer": rng.choice([-1, [-1, -2]]),
        "spatial_merge_size": rng.choice([1, 2, 3]),
    }


def _internvl(rng: Random) -> Overrides:
    vision = _square(rng)
    size, patch = vision.pop("image_size"), vision.pop("patch_size")
    vision.update(
        model_type="internvl_vision",
        image_size=[size, size + patch],
        patch_size=[patch, patch],
        attention_bias=rng.random() < 0.5,
        use_qk_norm=rng.random() < 0.5,
        use_mean_pooling=rng.random() < 0.5,
        use_absolute_position_embeddings=rng.random() < 0.5,
        norm_type=rng.choice(["layer_norm", "rms_norm"]),
    )
    return {"vision_config": vision, "downsample_ratio": rng.choice([0.5, 0.25, 1.0])}


def _llama4(rng: Random) -> Overrides:
    wide = 8 * rng.randint(4, 9)
    return {
        **_square(rng),
        "vision_output_dim": wide,
        "projector_input_dim": wide,
        "projector_output_dim": wide,
    }


def _mllama(rng: Random) -> Overrides:
    found = _square(rng)
    found["attention_heads"] = found.pop("num_attention_heads")
    ratios = [[1, 1], [1, 2], [2, 1], [1, 3]][: rng.randint(2, 4)]
    taken = rng.randint(1, 2)
    return {
        **found,
        "num_global_layers": rng.randint(1, 3),
        "max_num_tiles": rng.choice([2, 4]),
        "supported_aspect_ratios": ratios,
        "intermediate_layers_indices": list(range(taken)),
        "vision_output_dim": found["hidden_size"] * (taken + 1),
    }


def _qwen(wrapper: str, rng: Random) -> Overrides:
    heads = rng.choice([2, 4])
    hidden = heads * 8 * rng.randint(1, 3)
    found: Overrides = {
        "depth": rng.randint(1, 4),
        "num_heads": heads,
        "in_channels": rng.choice([1, 3]),
        "patch_size": rng.choice([7, 14, 16]),
        "spatial_merge_size": rng.choice([1, 2, 3]),
        "temporal_patch_size": rng.choice([1, 2]),
    }
    if wrapper == "qwen2_vl":
        return {**found, "embed_dim": hidden, "hidden_size": 8 * rng.randint(4, 9), "mlp_ratio": rng.choice([2, 4])}
    found.update(hidden_size=hidden, intermediate_size=8 * rng.randint(4, 9), out_hidden_size=8 * rng.randint(4, 9))
    if wrapper != "qwen2_5_vl":
        found.update(num_position_embeddings=rng.choice([16, 25]))
    if wrapper in ("qwen3_vl", "qwen3_vl_moe"):
        found.update(deepstack_visual_indexes=list(range(rng.randint(0, 2))))
    return found


def _glm(rng: Random) -> Overrides:
    heads, patch = rng.choice([2, 4]), rng.choice([7, 14])
    return {
        "depth": rng.randint(1, 4),
        "hidden_size": heads * 8 * rng.randint(1, 3),
        "num_heads": heads,
        "in_channels": rng.choice([1, 3]),
        "attention_bias": rng.random() < 0.5,
        "patch_size": patch,
        "image_size": patch * rng.randint(2, 5),
        "spatial_merge_size": rng.choice([1, 2]),
        "temporal_patch_size": rng.choice([1, 2]),
        "out_hidden_size": 8 * rng.randint(4, 9),
        "intermediate_size": 8 * rng.randint(4, 9),
    }


def _gemma4(rng: Random) -> Overrides:
    heads, kv = rng.choice([(2, 1), (4, 4), (4, 2)])
    vision: Overrides = {
        "hidden_size": 8 * rng.randint(2, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": rng.choice([8, 16]),
        "num_hidden_layers": rng.randint(1, 4),
        "intermediate_size": 8 * rng.randint(4, 9),
        "patch_size": rng.choice([8, 16]),
        "position_embedding_size": rng.choice([16, 32]),
        "use_clipped_linears": rng.random() < 0.5,
        "standardize": rng.random() < 0.5,
    }
    wide = rng.choice([2, 4])
    audio: Overrides = {
        "hidden_size": wide * 8 * rng.randint(1, 4),
        "num_attention_heads": wide,
        "num_hidden_layers": rng.randint(1, 3),
        "subsampling_conv_channels": rng.choice([[16, 8], [8, 4]]),
        "conv_kernel_size": rng.choice([3, 5]),
        "use_clipped_linears": rng.random() < 0.5,
        "output_proj_dims": 8 * rng.randint(2, 6),
    }
    return {"vision_config": vision, "audio_config": audio} if rng.random() < 0.7 else {"vision_config": vision}
