"""What tower recipes share: reading a tower's config, and the pieces of a vision transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from membudget.model.blocks import linear, norm
from membudget.model.config import Config
from membudget.model.defaults import class_defaults
from membudget.model.tensors import Tensor

#: No published tower comes near.
MAX_LAYERS = 1000


def section(config: Config, key: str, class_name: str | None = None) -> Config | None:
    """The object under `key` with its class's defaults; None where the file has none.

    class_name: the model_type whose defaults hold, whatever the object says.
    """
    found = config.raw.get(key)
    if not isinstance(found, Mapping):
        return None
    inner = config.overlay(config.raw).section(key)
    name = class_name or found.get("model_type")
    return inner.with_defaults(*class_defaults(name)) if isinstance(name, str) else inner


def whole(config: Config) -> Config:
    """The wrapper's own keys, with its class's defaults."""
    return config.overlay(config.raw).with_defaults(*class_defaults(str(config.raw.get("model_type"))))


def layers(c: Config, key: str = "num_hidden_layers") -> int:
    """The tower's number of layers."""
    return c.integer(key, minimum=0, maximum=MAX_LAYERS)


def extent(c: Config, key: str) -> tuple[int, int]:
    """(height, width) of a key that is one number for both, or a list of two."""
    if isinstance(c.get(key), list):
        pair = c.integers(key, 2)
        assert pair is not None
        return pair[0], pair[1]
    return c.integer(key), c.integer(key)


def patches(c: Config) -> int:
    """Patches of one image: (image_size // patch_size) squared."""
    (height, width), (down, across) = extent(c, "image_size"), extent(c, "patch_size")
    if not 0 < down <= height or not 0 < across <= width:
        raise c.error("patch_size", f"is {down} x {across}", f"from 1 to image_size {height} x {width}")
    return (height // down) * (width // across)


def patch_conv(name: str, c: Config, hidden: int, bias: bool, channels: str = "num_channels") -> Iterator[Tensor]:
    """The convolution that embeds patches: (H, channels, patch, patch)."""
    down, across = extent(c, "patch_size")
    yield Tensor(f"{name}.weight", (hidden, c.integer(channels, 3), down, across), "vision")
    if bias:
        yield Tensor(f"{name}.bias", (hidden,), "vision")


def bare(name: str, *shape: int) -> Iterator[Tensor]:
    """A bare tensor."""
    yield Tensor(name, shape, "vision")


def lin(name: str, out: int, into: int, bias: bool = True) -> Iterator[Tensor]:
    """A linear layer, with a bias by default."""
    return linear(name, out, into, "vision", bias)


def layer_norm(name: str, width: int) -> Iterator[Tensor]:
    """A LayerNorm: weight and bias."""
    return norm(name, width, True)


def rms(name: str, width: int) -> Iterator[Tensor]:
    """An RMSNorm: a weight."""
    return norm(name, width, False)


def feature_layers(c: Config) -> int:
    """How many layers' outputs the projector reads: vision_feature_layer is one or a list."""
    listed = c.get("vision_feature_layer")
    return max(len(listed), 1) if isinstance(listed, list) else 1
