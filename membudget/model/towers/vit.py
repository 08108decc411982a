"""SigLIP, CLIP, Pixtral and InternViT, and the projectors of the models that they see for.

Gemma 3, PaliGemma, LLaVA (1.5, NeXT, ViP), Mistral 3, InternVL, Idefics 3 and SmolVLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor
from membudget.model.towers.parts import (
    bare,
    feature_layers,
    layer_norm,
    layers,
    lin,
    patch_conv,
    patches,
    rms,
    section,
    whole,
)

Towers = Iterable[tuple[str, Iterator[Tensor]]]


def _clip_layers(at: str, c: Config) -> Iterator[Tensor]:
    """CLIP's and SigLIP's layers: attention and MLP with biases, LayerNorms."""
    hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
    for index in range(layers(c)):
        layer = f"{at}encoder.layers.{index}."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from lin(f"{layer}self_attn.{part}", hidden, hidden)
        yield from layer_norm(layer + "layer_norm1", hidden)
        yield from layer_norm(layer + "layer_norm2", hidden)
        yield from lin(layer + "mlp.fc1", inner, hidden)
        yield from lin(layer + "mlp.fc2", hidden, inner)


def siglip(at: str, c: Config, head: bool | None = None) -> Iterator[Tensor]:
    """SigLIP; its pooling head (`vision_use_head`) attends from one probe."""
    hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
    yield from patch_conv(at + "embeddings.patch_embedding", c, hidden, True)
    yield from bare(at + "embeddings.position_embedding.weight", patches(c), hidden)
    yield from _clip_layers(at, c)
    yield from layer_norm(at + "post_layernorm", hidden)
    if c.flag("vision_use_head", True) if head is None else head:
        yield from bare(at + "head.probe", 1, 1, hidden)
        yield from bare(at + "head.attention.in_proj_weight", 3 * hidden, hidden)
        yield from bare(at + "head.attention.in_proj_bias", 3 * hidden)
        yield from lin(at + "head.attention.out_proj", hidden, hidden)
        yield from layer_norm(at + "head.layernorm", hidden)
        yield from lin(at + "head.mlp.fc1", inner, hidden)
        yield from lin(at + "head.mlp.fc2", hidden, inner)


def clip(at: str, c: Config) -> Iterator[Tensor]:
    """CLIP: a class embedding, and a norm before the layers (spelled so)."""
    hidden = c.integer("hidden_size")
    yield from bare(at + "embeddings.class_embedding", hidden)
    yield from patch_conv(at + "embeddings.patch_embedding", c, hidden, False)
    yield from bare(at + "embeddings.position_embedding.weight", patches(c) + 1, hidden)
    yield from layer_norm(at + "pre_layrnorm", hidden)
    yield from _clip_layers(at, c)
    yield from layer_norm(at + "post_layernorm", hidden)


def pixtral(at: str, c: Config) -> Iterator[Tensor]:
    """Pixtral: rotary positions, gated MLPs, no biases."""
    hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
    yield from patch_conv(at + "patch_conv", c, hidden, False)
    yield from rms(at + "ln_pre", hidden)
    for index in range(layers(c)):
        layer = f"{at}transformer.layers.{index}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from lin(f"{layer}attention.{part}", hidden, hidden, False)
        yield from rms(layer + "attention_norm", hidden)
        yield from lin(layer + "feed_forward.gate_proj", inner, hidden, False)
        yield from lin(layer + "feed_forward.up_proj", inner, hidden, False)
        yield from lin(layer + "feed_forward.down_proj", hidden, inner, False)
        yield from rms(layer + "ffn_norm", hidden)


def internvit(at: str, c: Config) -> Iterator[Tensor]:
    """InternViT: scaled residuals, an optional norm over all of q and of k."""
    hidden, inner, bias = c.integer("hidden_size"), c.integer("intermediate_size"), c.flag("attention_bias")
    normed = rms if c.get("norm_type", "layer_norm") == "rms_norm" else layer_norm
    yield from bare(at + "embeddings.cls_token", 1, 1, hidden)
    if c.flag("use_mask_token"):
        yield from bare(at + "embeddings.mask_token", 1, 1, hidden)
    if c.flag("use_absolute_position_embeddings"):
        yield from bare(at + "embeddings.position_embeddings", 1, patches(c) + 1, hidden)
    yield from patch_conv(at + "embeddings.patch_embeddings.projection", c, hidden, True)
    for index in range(layers(c)):
        layer = f"{at}encoder.layer.{index}."
        for part in ("q_proj", "k_proj", "v_proj"):
            yield from lin(f"{layer}attention.{part}", hidden, hidden, bias)
        yield from lin(layer + "attention.projection_layer", hidden, hidden)
        if c.flag("use_qk_norm"):
            yield from rms(layer + "attention.q_norm", hidden)
            yield from rms(layer + "attention.k_norm", hidden)
        for part in ("lambda_1", "lambda_2"):
            yield from bare(layer + part, hidden)
        yield from normed(layer + "layernorm_before", hidden)
        yield from normed(layer + "layernorm_after", hidden)
        yield from lin(layer + "mlp.fc1", inner, hidden)
        yield from lin(layer + "mlp.fc2", hidden, inner)
    if not c.flag("use_mean_pooling", True):
        yield from layer_norm(at + "layernorm", hidden)


#: vision_config's model_type -> (its tensors, the name of the module inside the wrapper's vision_tower).
ENCODERS = {
    "siglip_vision_model": (siglip, "vision_tower.vision_model."),
    "clip_vision_model": (clip, "vision_tower.vision_model."),
    "pixtral": (pixtral, "vision_tower."),
    "internvl_vision": (internvit, "vision_tower."),
}


def _vision(config: Config, default: str) -> tuple[Config, Iterator[Tensor]] | None:
    """(vision_config, its tensors), or None where it is absent or of a kind without a recipe."""
    found = config.raw.get("vision_config")
    kind = (found.get("model_type") or default) if isinstance(found, dict) else None
    if kind is not None and not isinstance(kind, str):
        raise config.error("vision_config.model_type", "is of another kind", "a string")
    c = section(config, "vision_config", kind) if kind in ENCODERS else None
    if c is None or kind is None:
        return None
    encoder, at = ENCODERS[kind]
    return c, encoder(at, c)


def _gemma3(config: Config) -> Towers:
    """Gemma 3: SigLIP, a norm and one matrix (stored as (in, out))."""
    found = _vision(config, "siglip_vision_model")
    if found is None:
        return
    c, tower = found
    yield "vision", tower
    projector = "multi_modal_projector.mm_"
    yield "vision", bare(projector + "input_projection_weight", c.integer("hidden_size"), config.integer("hidden_size"))
    yield "vision", rms(projector + "soft_emb_norm", c.integer("hidden_size"))


def _paligemma(config: Config) -> Towers:
    found = _vision(config, "siglip_vision_model")
    if found is None:
        return
    (c, tower), out = found, whole(config).integer("projection_dim", 2048)
    yield "vision", tower
    yield "vision", lin("multi_modal_projector.linear", out, c.integer("hidden_size"))


def _llava(config: Config) -> Towers:
    """LLaVA: two linear layers; NeXT has an embedding of line ends."""
    found = _vision(config, "clip_vision_model")
    if found is None:
        return
    (c, tower), top, text = found, whole(config), config.integer("hidden_size")
    bias, at = top.flag("multimodal_projector_bias", True), "multi_modal_projector."
    yield "vision", tower
    yield "vision", lin(at + "linear_1", text, c.integer("hidden_size") * feature_layers(top), bias)
    yield "vision", lin(at + "linear_2", text, text, bias)
    if config.raw.get("model_type") == "llava_next":
        yield "vision", bare("image_newline", text)


def _vipllava(config: Config) -> Towers:
    """ViP-LLaVA: the features of several layers, normed together."""
    found = _vision(config, "clip_vision_model")
    if found is None:
        return
    (c, tower), top, text = found, whole(config), config.integer("hidden_size")
    wide, at = c.integer("hidden_size") * feature_layers(top), "multi_modal_projector."
    yield "vision", tower
    yield "vision", layer_norm(at + "projector_layernorm", wide)
    yield "vision", lin(at + "linear_1", text, wide)
    yield "vision", lin(at + "linear_2", text, text)


def _mistral3(config: Config) -> Towers:
    """Mistral 3: Pixtral, a norm, a merger of spatial_merge_size squared patches, two linear layers."""
    found = _vision(config, "pixtral")
    if found is None:
        return
    (c, tower), top, text = found, whole(config), config.integer("hidden_size")
    hidden, merge = c.integer("hidden_size"), top.integer("spatial_merge_size", 2)
    bias, at = top.flag("multimodal_projector_bias"), "multi_modal_projector."
    yield "vision", tower
    yield "vision", rms(at + "norm", hidden)
    yield "vision", lin(at + "patch_merger.merging_layer", hidden, hidden * merge * merge, False)
    yield "vision", lin(at + "linear_1", text, hidden * feature_layers(top), bias)
    yield "vision", lin(at + "linear_2", text, text, bias)


def _internvl(config: Config) -> Towers:
    """InternVL: 1 / downsample_ratio squared patches are one token."""
    found = _vision(config, "internvl_vision")
    if found is None:
        return
    (c, tower), top, text = found, whole(config), config.integer("hidden_size")
    wide = c.integer("hidden_size") * int(1 / top.factor("downsample_ratio", 0.5)) ** 2
    at = "multi_modal_projector."
    yield "vision", tower
    yield "vision", layer_norm(at + "layer_norm", wide)
    yield "vision", lin(at + "linear_1", text, wide)
    yield "vision", lin(at + "linear_2", text, text)


def _idefics3(config: Config) -> Towers:
    """Idefics 3 and SmolVLM: a SigLIP without a head, and one matrix over scale_factor squared patches."""
    name = f"{config.raw.get('model_type')}_vision"
    c = section(config, "vision_config", name)
    if c is None:
        return
    top = whole(config)
    scale = top.integer("scale_factor", 2)
    yield "vision", siglip("model.vision_model.", c, head=False)
    yield (
        "vision",
        lin(
            "model.connector.modality_projection.proj",
            config.integer("hidden_size"),
            c.integer("hidden_size") * scale * scale,
            False,
        ),
    )


RECIPES = {
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "internvl": _internvl,
    "llava": _llava,
    "llava_next": _llava,
    "mistral3": _mistral3,
    "paligemma": _paligemma,
    "smolvlm": _idefics3,
    "vipllava": _vipllava,
}
