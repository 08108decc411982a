"""What a multimodal model's dummy batch keeps alive through the profile run: pixel values and the encoder's outputs.

Before the forward, vLLM runs the encoder once on as many items of the largest size as its budget takes
(gpu_model_runner.py profile_run; v1/core/encoder_cache_manager.py: the budget is max(max_num_batched_tokens, tokens
of the largest item)).  The inputs and the outputs stay alive until the profile run ends; while the encoder runs, its
own widest layer may be the peak of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from membudget.engines.vllm.profile.settings import ProfileSettings
from membudget.model import Model
from membudget.model.config import Config
from membudget.model.length import longest

Version = tuple[int, int, int]


class Held(NamedTuple):
    """Bytes that are alive beside forward and sampler, and why; known: False where the tower has no recipe here.

    peak: bytes while the encoder runs, its inputs included: another candidate for the peak of the run.
    A tower without a recipe holds 0, and `why` says that it is left out.
    """

    bytes: int
    peak: int
    why: str
    known: bool


class Item(NamedTuple):
    """The largest item of a modality: tokens that it becomes, elements of its pixel values, patches of its tower.

    gated: the tower's MLP has a gate beside its up projection.  attention: hidden states' worth of a patch that its
    attention has alive, where that is known.
    """

    tokens: int
    pixels: int
    patches: int
    gated: bool = False
    attention: int = 0


class Ask(NamedTuple):
    """What a recipe reads: the config, max_model_len, the version, and whether videos are allowed."""

    config: Config
    length: int
    version: Version
    videos: bool


#: A model without a tower, or one whose tower is not profiled.
NOTHING = Held(0, 0, "", True)

#: The width of a tower's MLP, and of its hidden states (Qwen2-VL's hidden_size is the text model's).
_INNER, _ACROSS = ("intermediate_size",), ("embed_dim", "hidden_size")
#: Pairs of frames of the longest video that Qwen2-VL and 2.5-VL profile (qwen2_vl.py _MAX_FRAMES_PER_VIDEO 14).
_PAIRS = 7
#: Keys of config.json that describe a tower.
_TOWERS = ("vision_config", "audio_config", "sound_config", "speech_config", "encoder_config")


def held(model: Model, settings: ProfileSettings, tokens: int, width: int, version: Version) -> Held:
    """What the dummy batch holds where `tokens` is max_num_batched_tokens, `width` bytes an element."""
    raw = model.config.raw
    if not _has_tower(model):
        return NOTHING
    if not takes_media(model, settings):
        return Held(0, 0, "no multimodal input is allowed, so no encoder is profiled", True)
    limits = dict(settings.mm_limits) if settings.mm_limits is not None else None
    if settings.skip_mm_profiling:
        return Held(0, 0, "--skip-mm-profiling: the encoder is not profiled", True)
    recipe = _RECIPES.get(str(raw.get("model_type")))
    if recipe is None:
        return Held(0, 0, f"the encoder of {raw.get('model_type')} has no recipe here: it is left out", False)
    length = settings.max_model_len or longest(model.config, version).tokens
    item = recipe(Ask(model.config, length, version, limits is None or limits.get("video", 1) > 0))
    if item is None:
        return Held(0, 0, f"the encoder of {raw.get('model_type')} lacks sizes in its config: it is left out", False)
    budget = max(tokens, item.tokens)
    count = max(1, budget // item.tokens)
    if limits:
        count = min(count, max(limits.values()) * max(1, settings.max_num_seqs or count))
    hidden = model.config.integer("hidden_size")
    # 0.11 and 0.12 keep each output in a tensor of the whole budget (gpu_model_runner.py profile_run)
    wide = budget if (0, 11, 0) <= version < (0, 13, 0) else item.tokens
    size = count * (item.pixels * width + wide * hidden * width)
    words = f"{count:,} items x ({item.pixels:,} pixel values + {wide:,} tokens x {hidden:,}) x {width} B"
    vision = raw.get("vision_config") or {}
    inner, across = (_first(vision, keys) for keys in (_INNER, _ACROSS))
    row = max((3 if item.gated else 2) * inner // settings.tp + 4 * across, item.attention * across)
    return Held(size, count * width * (item.pixels + item.patches * row), words, True)


def takes_media(model: Model, settings: ProfileSettings) -> bool:
    """Whether it takes anything beside text: a tower, and an input that is allowed (config/model.py 0.32.0:912).

    Such a model is given embeddings, not tokens, in the profile run too (gpu_model_runner.py 0.32.0:5778).
    """
    limits = dict(settings.mm_limits or {})
    shut = limits and not limits.get("image", 1) and not limits.get("video", 1)
    return _has_tower(model) and not settings.language_model_only and not shut


def _has_tower(model: Model) -> bool:
    return any(isinstance(model.config.raw.get(key), dict) for key in _TOWERS)


def _first(vision: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    return next((vision[key] for key in keys if isinstance(vision.get(key), int)), 0)


def _gemma3(ask: Ask) -> Item | None:
    config = ask.config
    vision = config.raw["vision_config"]
    tokens, size, patch = config.raw.get("mm_tokens_per_image", 256), vision.get("image_size"), vision.get("patch_size")
    if not (isinstance(tokens, int) and isinstance(size, int) and isinstance(patch, int)):
        return None
    return Item(tokens, 3 * size * size, (size // patch) ** 2)


def _pixtral(ask: Ask) -> Item | None:
    """Mistral 3: the largest picture is image_size on each side, a token is a merged square of patches."""
    config = ask.config
    vision = config.raw["vision_config"]
    size, patch, merge = vision.get("image_size"), vision.get("patch_size"), config.raw.get("spatial_merge_size", 2)
    if not (isinstance(size, int) and isinstance(patch, int) and isinstance(merge, int)):
        return None
    side = -(-size // (patch * merge))
    return Item(side * side, 3 * size * size, (side * merge) ** 2, gated=True)


def _llama4(ask: Ask) -> Item | None:
    """16 tiles and the whole picture (its processor's max_patches), a patch and the class token of each."""
    config = ask.config
    vision = config.raw["vision_config"]
    size, patch, ratio = vision.get("image_size"), vision.get("patch_size"), vision.get("pixel_shuffle_ratio", 0.5)
    if not (isinstance(size, int) and isinstance(patch, int) and isinstance(ratio, (int, float))):
        return None
    patches, tiles = (size // patch) ** 2, 17
    return Item(tiles * int(patches * ratio * ratio), tiles * 3 * size * size, tiles * (patches + 1))


def _kimi_vl(ask: Ask) -> Item:
    """The largest picture has 4,096 patches of 14 x 14, merged 2 x 2 (its image processor's in_token_limit)."""
    return Item(1024, 4096 * 3 * 14 * 14, 4096)


def _qwen2_vl(ask: Ask) -> Item | None:
    """A video of 7 pairs of frames, or as many as fit max_model_len, each of max_pixels 12,845,056: 16,384 tokens."""
    return _qwen(ask, 16384 * min(_PAIRS, max(1, ask.length // 16384)) if ask.videos else 16384)


def _qwen3_vl(ask: Ask) -> Item | None:
    """A picture of 16,777,216 pixels, 16,384 tokens of 32 x 32: a video has no more (its processor's longest_edge)."""
    return _qwen(ask, 16384)


def _qwen(ask: Ask, tokens: int) -> Item | None:
    """Alive in attention: residual, norm, q k v and their contiguous copies, q and k beside each other, and rotated.

    That is 12 hidden states; up to 0.12 the rotation was in fp32 (qwen2_vl.py apply_rotary_pos_emb_vision): 20 in 0.11
    and 0.12, 13 before, where q and k were rotated one after the other.
    """
    config = ask.config
    vision = config.raw["vision_config"]
    patch, merge = vision.get("patch_size"), vision.get("spatial_merge_size", 2)
    frames = vision.get("temporal_patch_size", 2)
    if not (isinstance(patch, int) and isinstance(merge, int) and isinstance(frames, int)):
        return None
    patches = tokens * merge * merge
    gated = config.raw.get("model_type") == "qwen2_5_vl"
    units = 12 if ask.version >= (0, 13, 0) else 20 if ask.version >= (0, 11, 0) else 13
    return Item(tokens, patches * 3 * frames * patch * patch, patches, gated, units)


_RECIPES: dict[str, Callable[[Ask], Item | None]] = {
    "gemma3": _gemma3,
    "mistral3": _pixtral,
    "llama4": _llama4,
    "kimi_vl": _kimi_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
}
