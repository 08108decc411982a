"""The towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches over two frames, merged by squares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor
from membudget.model.towers.parts import bare, layer_norm, layers, lin, rms, section

Towers = Iterable[tuple[str, Iterator[Tensor]]]


def _patches(name: str, c: Config, hidden: int) -> Iterator[Tensor]:
    """The convolution over patches of some frames: (H, channels, frames, patch, patch)."""
    size = c.integer("patch_size")
    yield from bare(f"{name}.weight", hidden, c.integer("in_channels", 3), c.integer("temporal_patch_size"), size, size)


def _merged(c: Config, hidden: int) -> int:
    merge = c.integer("spatial_merge_size")
    return hidden * merge * merge


def _attention(at: str, hidden: int) -> Iterator[Tensor]:
    yield from lin(at + "attn.qkv", 3 * hidden, hidden)
    yield from lin(at + "attn.proj", hidden, hidden)


def _qwen2_tower(c: Config) -> Iterator[Tensor]:
    """Qwen2-VL: LayerNorms and plain MLPs; hidden_size is what the merger puts out."""
    hidden, out = c.integer("embed_dim"), c.integer("hidden_size")
    inner, wide = int(hidden * c.factor("mlp_ratio")), _merged(c, hidden)
    yield from _patches("visual.patch_embed.proj", c, hidden)
    for index in range(layers(c, "depth")):
        at = f"visual.blocks.{index}."
        yield from layer_norm(at + "norm1", hidden)
        yield from layer_norm(at + "norm2", hidden)
        yield from _attention(at, hidden)
        yield from lin(at + "mlp.fc1", inner, hidden)
        yield from lin(at + "mlp.fc2", hidden, inner)
    yield from layer_norm("visual.merger.ln_q", hidden)
    yield from lin("visual.merger.mlp.0", wide, wide)
    yield from lin("visual.merger.mlp.2", out, wide)


def _qwen25_tower(c: Config) -> Iterator[Tensor]:
    """Qwen2.5-VL: RMSNorms and gated MLPs with biases."""
    hidden, inner, wide = c.integer("hidden_size"), c.integer("intermediate_size"), _merged(c, c.integer("hidden_size"))
    yield from _patches("visual.patch_embed.proj", c, hidden)
    for index in range(layers(c, "depth")):
        at = f"visual.blocks.{index}."
        yield from rms(at + "norm1", hidden)
        yield from rms(at + "norm2", hidden)
        yield from _attention(at, hidden)
        yield from lin(at + "mlp.gate_proj", inner, hidden)
        yield from lin(at + "mlp.up_proj", inner, hidden)
        yield from lin(at + "mlp.down_proj", hidden, inner)
    yield from rms("visual.merger.ln_q", hidden)
    yield from lin("visual.merger.mlp.0", wide, wide)
    yield from lin("visual.merger.mlp.2", c.integer("out_hidden_size"), wide)


def _qwen3_tower(c: Config, deepstack: bool) -> Iterator[Tensor]:
    """Qwen3-VL: learned positions; deepstack hands some layers' outputs to the text model too."""
    hidden, inner, wide = c.integer("hidden_size"), c.integer("intermediate_size"), _merged(c, c.integer("hidden_size"))
    out, root = c.integer("out_hidden_size"), "model.visual."
    yield from _patches(root + "patch_embed.proj", c, hidden)
    yield from bare(root + "patch_embed.proj.bias", hidden)
    yield from bare(root + "pos_embed.weight", c.integer("num_position_embeddings"), hidden)
    for index in range(layers(c, "depth")):
        at = f"{root}blocks.{index}."
        yield from layer_norm(at + "norm1", hidden)
        yield from layer_norm(at + "norm2", hidden)
        yield from _attention(at, hidden)
        yield from lin(at + "mlp.linear_fc1", inner, hidden)
        yield from lin(at + "mlp.linear_fc2", hidden, inner)
    listed = c.integers("deepstack_visual_indexes") or [] if deepstack else []
    mergers = [(root + "merger.", hidden)]
    mergers += [(f"{root}deepstack_merger_list.{index}.", wide) for index in range(len(listed))]
    for at, normed in mergers:
        yield from layer_norm(at + "norm", normed)
        yield from lin(at + "linear_fc1", wide, wide)
        yield from lin(at + "linear_fc2", out, wide)


def _towers(config: Config) -> Towers:
    wrapper = str(config.raw.get("model_type"))
    c = section(config, "vision_config", f"{wrapper}_vision")
    if c is None:
        return
    if wrapper == "qwen2_vl":
        yield "vision", _qwen2_tower(c)
    elif wrapper == "qwen2_5_vl":
        yield "vision", _qwen25_tower(c)
    else:
        yield "vision", _qwen3_tower(c, deepstack=wrapper in ("qwen3_vl", "qwen3_vl_moe"))


RECIPES = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _towers)
