"""The tower of GLM-4.1V, 4.5V and 4.6V: gated MLPs, a convolution that merges squares, a gated merger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor
from membudget.model.towers.parts import bare, layer_norm, layers, lin, patches, rms, section

Towers = Iterable[tuple[str, Iterator[Tensor]]]


def _tower(c: Config) -> Iterator[Tensor]:
    """Layers' MLPs are out_hidden_size wide, the merger's intermediate_size."""
    hidden, out, inner = c.integer("hidden_size"), c.integer("out_hidden_size"), c.integer("intermediate_size")
    at, size, merge = "model.visual.", c.integer("patch_size"), c.integer("spatial_merge_size")
    yield from bare(at + "embeddings.position_embedding.weight", patches(c), hidden)
    frames = c.integer("temporal_patch_size")
    yield from bare(at + "patch_embed.proj.weight", hidden, c.integer("in_channels", 3), frames, size, size)
    yield from bare(at + "patch_embed.proj.bias", hidden)
    yield from rms(at + "post_conv_layernorm", hidden)
    for index in range(layers(c, "depth")):
        layer = f"{at}blocks.{index}."
        yield from rms(layer + "norm1", hidden)
        yield from rms(layer + "norm2", hidden)
        yield from lin(layer + "attn.qkv", 3 * hidden, hidden, c.flag("attention_bias"))
        yield from lin(layer + "attn.proj", hidden, hidden, False)
        yield from lin(layer + "mlp.gate_proj", out, hidden, False)
        yield from lin(layer + "mlp.up_proj", out, hidden, False)
        yield from lin(layer + "mlp.down_proj", hidden, out, False)
    yield from rms(at + "post_layernorm", hidden)
    yield from bare(at + "downsample.weight", out, hidden, merge, merge)
    yield from bare(at + "downsample.bias", out)
    yield from lin(at + "merger.proj", out, out, False)
    yield from layer_norm(at + "merger.post_projection_norm", out)
    yield from lin(at + "merger.gate_proj", inner, out, False)
    yield from lin(at + "merger.up_proj", inner, out, False)
    yield from lin(at + "merger.down_proj", out, inner, False)


def _glm4v(config: Config) -> Towers:
    wrapper = str(config.raw.get("model_type"))
    c = section(config, "vision_config", "glm4v_moe_vision" if wrapper == "glm4v_moe" else "glm4v_vision")
    if c is not None:
        yield "vision", _tower(c)


RECIPES = dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), _glm4v)
