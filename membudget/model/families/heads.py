"""Multi-token-prediction heads: stored in published checkpoints, not part of the served model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from membudget.model.blocks import Layer, linear, norm
from membudget.model.config import Config
from membudget.model.families.base import Family
from membudget.model.tensors import Tensor

#: No published model has more than a few.
MAX_HEADS = 64


def mtp_layers(
    count: str = "num_nextn_predict_layers", own_embeddings: bool = False
) -> Callable[[Family, Config], Iterable[Tensor]]:
    """`count` heads behind the last layer, named as further layers (DeepSeek-V3, GLM).

    A head is one more decoder layer of the last layer's kind, a projection of two hidden
    states to one (2 H x H) and three norms: decoder layer + 2 H^2 + 3 H.
    own_embeddings: each stores its own copy of the embedding and the head.
    """

    def tensors(family: Family, config: Config) -> Iterator[Tensor]:
        number = config.integer(count, 0, minimum=0, maximum=MAX_HEADS)
        if not number:
            return
        hidden, last = config.integer("hidden_size"), family.layers(config)[-1]
        for index in range(config.layers, config.layers + number):
            layer = Layer(last.config, index, last.kind, f"{family.prefix}{index}.", last.ffn)
            found: list[Tensor] = []
            for block in family.blocks:
                found.extend(block.tensors(layer))
            found.extend(linear(layer.prefix + "eh_proj", hidden, 2 * hidden, "mtp"))
            for name in ("enorm", "hnorm", "shared_head.norm"):
                found.extend(norm(layer.prefix + name, hidden))
            if own_embeddings:
                vocab = config.integer("vocab_size")
                for name in ("embed_tokens", "shared_head.head"):
                    found.append(Tensor(f"{layer.prefix}{name}.weight", (vocab, hidden), "mtp"))
            for tensor in found:
                yield tensor._replace(role="mtp", part="checkpoint")

    return tensors


def mtp_block(count: str = "mtp_num_hidden_layers") -> Callable[[Family, Config], Iterable[Tensor]]:
    """Qwen3-Next's and Qwen3.5's heads: layers of full attention under ``mtp.``, norms shared by all."""

    def tensors(family: Family, config: Config) -> Iterator[Tensor]:
        number = config.integer(count, 0, minimum=0, maximum=MAX_HEADS)
        if not number:
            return
        hidden = config.integer("hidden_size")
        found = list(linear("mtp.fc", hidden, 2 * hidden, "mtp"))
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            found.extend(norm(f"mtp.{name}", hidden))
        last = family.layers(config)[-1]
        for index in range(number):
            layer = Layer(last.config, last.index, "full_attention", f"mtp.layers.{index}.", last.ffn)
            for block in family.blocks:
                found.extend(block.tensors(layer))
        for tensor in found:
            yield tensor._replace(role="mtp", part="checkpoint")

    return tensors


#: Nemotron-H's letters for the kinds of its one-part layers.
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def mtp_pattern(family: Family, config: Config) -> Iterator[Tensor]:
    """Nemotron-H's heads: the layers of mtp_hybrid_override_pattern, a projection and three norms."""
    number = config.integer("num_nextn_predict_layers", 0, minimum=0, maximum=MAX_HEADS)
    pattern = config.get("mtp_hybrid_override_pattern", "*E")
    if not number:
        return
    if not isinstance(pattern, str) or not 0 < len(pattern) <= 100 or set(pattern) - set(LETTERS):
        raise config.error("mtp_hybrid_override_pattern", "is not a pattern", "a string of M, *, - and E")
    hidden = config.integer("hidden_size")
    found: list[Tensor] = []
    for head in range(number):
        for index, letter in enumerate(pattern):
            at = f"mtp.layers.{head * len(pattern) + index}."
            layer = Layer(config, index, LETTERS[letter], at)
            for block in family.blocks:
                found.extend(block.tensors(layer))
            if index == 0:
                found.extend(linear(at + "eh_proj", hidden, 2 * hidden, "mtp"))
                for name in ("enorm", "hnorm"):
                    found.extend(norm(at + name, hidden))
        found.extend(norm(at + "final_layernorm", hidden))
    for tensor in found:
        yield tensor._replace(role="mtp", part="checkpoint")
