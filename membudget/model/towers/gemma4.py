"""The vision and audio towers of Gemma 4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor
from membudget.model.towers.parts import bare, layers, lin, rms, section

Towers = Iterable[tuple[str, Iterator[Tensor]]]


def _clipped(name: str, out: int, into: int, bounds: bool) -> Iterator[Tensor]:
    """A linear layer whose inputs and outputs may have bounds, which are stored as buffers."""
    yield from lin(name + ".linear", out, into, False)
    if bounds:
        for side in ("input_min", "input_max", "output_min", "output_max"):
            yield Tensor(f"{name}.{side}", (), "vision", part="checkpoint")


def _vision_tower(c: Config) -> Iterator[Tensor]:
    """Patches as one matrix, a table of positions for each axis, sandwich norms, gated MLPs."""
    hidden, inner, d = c.integer("hidden_size"), c.integer("intermediate_size"), c.integer("head_dim")
    q, kv = c.integer("num_attention_heads") * d, c.integer("num_key_value_heads") * d
    at, bounds = "model.vision_tower.", c.flag("use_clipped_linears")
    yield from lin(at + "patch_embedder.input_proj", hidden, 3 * c.integer("patch_size") ** 2, False)
    yield from bare(at + "patch_embedder.position_embedding_table", 2, c.integer("position_embedding_size"), hidden)
    for index in range(layers(c)):
        layer = f"{at}encoder.layers.{index}."
        for part, width in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            yield from _clipped(f"{layer}self_attn.{part}", width, hidden, bounds)
        yield from _clipped(layer + "self_attn.o_proj", hidden, q, bounds)
        yield from rms(layer + "self_attn.q_norm", d)
        yield from rms(layer + "self_attn.k_norm", d)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield from rms(f"{layer}{name}_layernorm", hidden)
        yield from _clipped(layer + "mlp.gate_proj", inner, hidden, bounds)
        yield from _clipped(layer + "mlp.up_proj", inner, hidden, bounds)
        yield from _clipped(layer + "mlp.down_proj", hidden, inner, bounds)
    if c.flag("standardize"):
        for name in ("std_bias", "std_scale"):
            yield Tensor(at + name, (hidden,), "vision", part="checkpoint")


def _audio_tower(c: Config) -> Iterator[Tensor]:
    """A conformer: two convolutions, then layers of two half MLPs, attention and a light convolution."""
    hidden, bounds, at = c.integer("hidden_size"), c.flag("use_clipped_linears", True), "model.audio_tower."
    first, second = c.integers("subsampling_conv_channels", 2) or (128, 32)
    sub = at + "subsample_conv_projection."
    for index, (into, out) in enumerate(((1, first), (first, second))):
        yield from bare(f"{sub}layer{index}.conv.weight", out, into, 3, 3)
        yield from rms(f"{sub}layer{index}.norm", out)
    yield from lin(sub + "input_proj_linear", hidden, first // 4 * second, False)
    d = hidden // c.integer("num_attention_heads")
    wide = d * c.integer("num_attention_heads")
    for index in range(layers(c)):
        layer = f"{at}layers.{index}."
        for half in ("feed_forward1", "feed_forward2"):
            yield from _clipped(f"{layer}{half}.ffw_layer_1", 4 * hidden, hidden, bounds)
            yield from _clipped(f"{layer}{half}.ffw_layer_2", hidden, 4 * hidden, bounds)
            yield from rms(f"{layer}{half}.pre_layer_norm", hidden)
            yield from rms(f"{layer}{half}.post_layer_norm", hidden)
        for part in ("q_proj", "k_proj", "v_proj"):
            yield from _clipped(f"{layer}self_attn.{part}", wide, hidden, bounds)
        yield from _clipped(layer + "self_attn.post", hidden, hidden, bounds)
        yield from lin(layer + "self_attn.relative_k_proj", wide, hidden, False)
        yield from bare(layer + "self_attn.per_dim_scale", d)
        yield from _clipped(layer + "lconv1d.linear_start", 2 * hidden, hidden, bounds)
        yield from _clipped(layer + "lconv1d.linear_end", hidden, hidden, bounds)
        yield from bare(layer + "lconv1d.depthwise_conv1d.weight", hidden, 1, c.integer("conv_kernel_size"))
        yield from rms(layer + "lconv1d.pre_layer_norm", hidden)
        yield from rms(layer + "lconv1d.conv_norm", hidden)
        for name in ("norm_pre_attn", "norm_post_attn", "norm_out"):
            yield from rms(layer + name, hidden)
    yield from lin(at + "output_proj", c.integer("output_proj_dims"), hidden)


def _gemma4(config: Config) -> Towers:
    text = config.integer("hidden_size")
    vision, audio = section(config, "vision_config", "gemma4_vision"), section(config, "audio_config", "gemma4_audio")
    if vision is not None:
        yield "vision", _vision_tower(vision)
        yield "vision", lin("model.embed_vision.embedding_projection", text, vision.integer("hidden_size"), False)
    if audio is not None:
        yield "audio", _audio_tower(audio)
        yield "audio", lin("model.embed_audio.embedding_projection", text, audio.integer("output_proj_dims"), False)


RECIPES = {"gemma4": _gemma4}
