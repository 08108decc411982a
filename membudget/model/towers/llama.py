"""The towers of Llama 4 and Llama 3.2 Vision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from membudget.model.config import Config
from membudget.model.tensors import Tensor
from membudget.model.towers.parts import bare, extent, layer_norm, layers, lin, patch_conv, patches, section

#: The class's own, of up to four tiles.
ASPECT_RATIOS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1))
Towers = Iterable[tuple[str, Iterator[Tensor]]]


def _llama4_tower(c: Config) -> Iterator[Tensor]:
    """Llama 4: patches as one matrix, biases everywhere, an adapter after a pixel shuffle."""
    hidden, inner, at = c.integer("hidden_size"), c.integer("intermediate_size"), "vision_model."
    down, across = extent(c, "patch_size")
    yield from bare(at + "class_embedding", hidden)
    yield from bare(at + "positional_embedding_vlm", patches(c) + 1, hidden)
    yield from lin(at + "patch_embedding.linear", hidden, c.integer("num_channels", 3) * down * across, False)
    yield from layer_norm(at + "layernorm_pre", hidden)
    yield from layer_norm(at + "layernorm_post", hidden)
    for index in range(layers(c)):
        layer = f"{at}model.layers.{index}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from lin(f"{layer}self_attn.{part}", hidden, hidden)
        yield from lin(layer + "mlp.fc1", inner, hidden)
        yield from lin(layer + "mlp.fc2", hidden, inner)
        yield from layer_norm(layer + "input_layernorm", hidden)
        yield from layer_norm(layer + "post_attention_layernorm", hidden)
    into, out = c.integer("projector_input_dim"), c.integer("projector_output_dim")
    yield from lin(at + "vision_adapter.mlp.fc1", into, inner, False)
    yield from lin(at + "vision_adapter.mlp.fc2", out, out, False)


def _llama4(config: Config) -> Towers:
    c = section(config, "vision_config", "llama4_vision_model")
    if c is None:
        return
    yield "vision", _llama4_tower(c)
    text = config.integer("hidden_size")
    yield "vision", lin("multi_modal_projector.linear_1", text, c.integer("vision_output_dim"), False)


def _mllama_layer(at: str, hidden: int, inner: int) -> Iterator[Tensor]:
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield from lin(f"{at}self_attn.{part}", hidden, hidden, False)
    yield from lin(at + "mlp.fc1", inner, hidden)
    yield from lin(at + "mlp.fc2", hidden, inner)
    yield from layer_norm(at + "input_layernorm", hidden)
    yield from layer_norm(at + "post_attention_layernorm", hidden)


def _mllama_tower(c: Config) -> Iterator[Tensor]:
    """Llama 3.2 Vision: tiles of an image, local layers and gated global ones."""
    hidden, inner, at = c.integer("hidden_size"), c.integer("intermediate_size"), "vision_model."
    tiles, tokens = c.integer("max_num_tiles"), patches(c) + 1
    ratios = c.get("supported_aspect_ratios", ASPECT_RATIOS)
    if not isinstance(ratios, (list, tuple)) or not ratios:
        raise c.error("supported_aspect_ratios", "is not a list of pairs", "a list of pairs")
    rows = len(ratios) + 1
    yield from bare(at + "class_embedding", hidden)
    yield from patch_conv(at + "patch_embedding", c, hidden, False)
    yield from bare(at + "gated_positional_embedding.gate", 1)
    yield from bare(at + "gated_positional_embedding.embedding", tokens, hidden)
    yield from bare(at + "gated_positional_embedding.tile_embedding.weight", rows, tiles * tokens * hidden)
    for side in ("pre", "post"):
        yield from bare(f"{at}{side}_tile_positional_embedding.gate", 1)
        yield from bare(f"{at}{side}_tile_positional_embedding.embedding.weight", rows, tiles * hidden)
    yield from layer_norm(at + "layernorm_pre", hidden)
    yield from layer_norm(at + "layernorm_post", hidden)
    for index in range(layers(c)):
        yield from _mllama_layer(f"{at}transformer.layers.{index}.", hidden, inner)
    for index in range(layers(c, "num_global_layers")):
        layer = f"{at}global_transformer.layers.{index}."
        yield from _mllama_layer(layer, hidden, inner)
        yield from bare(layer + "gate_attn", 1)
        yield from bare(layer + "gate_ffn", 1)


def _mllama(config: Config) -> Towers:
    c = section(config, "vision_config", "mllama_vision_model")
    if c is None:
        return
    yield "vision", _mllama_tower(c)
    text = config.integer("hidden_size")
    yield "vision", lin("multi_modal_projector", text, c.integer("vision_output_dim"))


RECIPES = {"llama4": _llama4, "mllama": _mllama}
