"""What a graph is built from: a GGUF header's metadata and tensor shapes, asked by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from membudget.errors import MembudgetError

Shape = tuple[int, ...]

#: Architectures whose norms subtract the mean (LLM_NORM).
_CENTERED = frozenset(
    (
        "bloom", "codeshell", "cohere2", "command-r", "dbrx", "falcon", "gpt2", "gptneox", "jais", "jais2", "mpt",
        "nemotron", "olmo", "orion", "phi2", "stablelm", "starcoder", "starcoder2",
    )
)  # fmt: skip
#: Architectures whose graphs keep windows' caches apart.
WINDOWS = frozenset(
    (
        "afmoe", "cohere2", "cohere2moe", "exaone4", "exaone-moe", "gemma2", "gemma3", "gemma3n", "gemma4", "gpt-oss",
        "granite_swa", "laguna", "llama4", "mellum", "mimo2", "olmo2", "plamo3", "smallthinker", "step35",
    )
)  # fmt: skip
#: Architectures whose RoPE has sections: four positions a token.
_SECTIONS = frozenset(("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "paddleocr"))
#: The activation of an MLP without a gate tensor; ``glu``: both halves lie in ffn_up.
_ACTIVATION = {
    **dict.fromkeys(("arcee", "jais2", "nemotron", "nemotron_h", "nemotron_h_moe"), "relu_sqr"),
    **dict.fromkeys(("chatglm", "glm4", "phi3", "granite_swa"), "glu"),
}
_SOFTMAX_WEIGHT = frozenset(("gpt-oss",))
_SIGMOID = frozenset(("llama4", "mimo2", "nemotron_h_moe"))
_NO_WEIGHT_NORM = frozenset(("deepseek", "gpt-oss", "jamba", "llama4", "olmoe", "qwen2moe"))


class ComputeError(MembudgetError):
    """A graph that is not supported: says whose."""


class Layer:
    """One layer's tensors, by what follows ``blk.N.``; shapes in PyTorch's order."""

    def __init__(self, number: int, shapes: Mapping[str, Shape]) -> None:
        self.number, self.shapes = number, shapes

    def has(self, name: str) -> bool:
        """Whether the file has this tensor."""
        return name in self.shapes

    def shape(self, name: str) -> Shape:
        """Its shape; `ComputeError` where the file has none."""
        try:
            return self.shapes[name]
        except KeyError:
            raise ComputeError(f"blk.{self.number}.{name} is missing") from None


class Header:
    """Metadata without the architecture's prefix, and the tensors by layer."""

    def __init__(self, metadata: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
        self.arch = str(metadata.get("general.architecture"))
        prefix = self.arch + "."
        self.keys = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
        self.shapes = shapes
        #: sizes that were asked for before
        self.memo: dict[Any, int] = {}
        count = self.key("block_count") - self.key("nextn_predict_layers", 0)
        parts: list[dict[str, Shape]] = [{} for _ in range(count)]
        for name, shape in shapes.items():
            if name.startswith("blk."):
                _, number, rest = name.split(".", 2)
                if int(number) < count:
                    parts[int(number)][rest] = shape
        self.layers = [Layer(number, found) for number, found in enumerate(parts)]

    # -- keys -------------------------------------------------------------------------------------

    def key(self, name: str, default: int | None = None) -> int:
        """A whole number; the first of a list."""
        value = self.keys.get(name, default)
        if isinstance(value, list):
            value = value[0]
        if value is None:
            raise ComputeError(f"{self.arch}.{name} is missing")
        return int(value)

    def list(self, name: str) -> list[Any]:
        """A list of one entry a layer; empty where the file has none; a single value for all."""
        value = self.keys.get(name)
        if value is None:
            return []
        return list(value) if isinstance(value, list) else [value] * len(self.layers)

    def each(self, name: str, layer: Layer, default: int = 0) -> int:
        """The entry of this layer."""
        values = self.list(name)
        return int(values[layer.number]) if values else default

    def scale(self, name: str) -> float:
        """A factor, 0 where the file has none."""
        value = self.keys.get(name, 0.0)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def has(self, name: str) -> bool:
        """Whether the file has a tensor outside the layers."""
        return name in self.shapes

    # -- sizes ------------------------------------------------------------------------------------

    @cached_property
    def hidden(self) -> int:
        """embedding_length."""
        return self.key("embedding_length")

    @cached_property
    def vocab(self) -> int:
        """Rows of the head, or of the table it is tied to."""
        shape = self.shapes.get("output.weight") or self.shapes.get("token_embd.weight")
        if shape is None:
            raise ComputeError("token_embd.weight is missing")
        return shape[0]

    @property
    def positions(self) -> int:
        """n_pos_per_embd."""
        sections = self.arch in ("glm4", "glm4moe") and "rope.dimension_sections" in self.keys
        return 4 if self.arch in _SECTIONS or sections else 1

    @property
    def norm_op(self) -> str:
        """The kind of norm."""
        return "NORM" if self.arch in _CENTERED else "RMS_NORM"

    @property
    def activation(self) -> str:
        """Of an MLP without a gate tensor."""
        return _ACTIVATION.get(self.arch, "unary")

    @property
    def last_norm(self) -> str:
        """The last norm's name."""
        return "token_embd_norm" if self.has("token_embd_norm.weight") else "output_norm"

    @property
    def scales_logits(self) -> bool:
        """Whether logit_scale is a step of the graph."""
        return self.arch not in ("llama",)

    # -- experts ----------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """expert_count."""
        return self.key("expert_count", 0)

    def experts_used(self, layer: Layer) -> int:
        """expert_used_count of a layer."""
        return self.each("expert_used_count", layer, 1)

    @property
    def groups(self) -> int:
        """expert_group_count."""
        return self.key("expert_group_count", 0)

    @property
    def groups_used(self) -> int:
        """expert_group_used_count."""
        return self.key("expert_group_used_count", 0)

    @property
    def gating(self) -> str:
        """How experts' scores become probabilities."""
        if self.arch in _SOFTMAX_WEIGHT:
            return "softmax_weight"
        if self.arch in _SIGMOID:
            return "sigmoid"
        return {1: "softmax", 2: "sigmoid", 3: "softmax_weight", 4: "sqrt_softplus"}.get(
            self.key("expert_gating_func", 1), "softmax"
        )

    @property
    def norm_weights(self) -> bool:
        """Whether the chosen experts' weights are made to sum to one."""
        return self.arch not in _NO_WEIGHT_NORM and bool(self.keys.get("expert_weights_norm", True))

    @property
    def weights_scale(self) -> float:
        """expert_weights_scale."""
        return self.scale("expert_weights_scale")

    # -- attention --------------------------------------------------------------------------------

    @cached_property
    def windows(self) -> bool:
        """Whether windows have caches of their own (build_attn_inp_kv_iswa)."""
        if self.arch not in WINDOWS or not self.key("attention.sliding_window", 0):
            return False
        return any(self.list("attention.sliding_window_pattern"))

    def window(self, layer: Layer) -> bool:
        """Whether this layer's cache is the windows'."""
        return self.windows and bool(self.each("attention.sliding_window_pattern", layer))

    def heads(self, layer: Layer) -> tuple[int, int]:
        """(query heads, KV heads) of a layer."""
        heads = self.each("attention.head_count", layer)
        return heads, self.each("attention.head_count_kv", layer, heads)

    def head_dims(self, layer: Layer) -> tuple[int, int]:
        """(width of a key, of a value)."""
        heads = max(1, self.heads(layer)[0])
        k, v = (self.key(f"attention.{name}_length", self.hidden // heads) for name in ("key", "value"))
        if self.window(layer):
            k, v = self.key("attention.key_length_swa", k), self.key("attention.value_length_swa", v)
        return k, v

    @cached_property
    def v_width_max(self) -> int:
        """The widest layer's values: a transposed cache's rows are all as wide (n_embd_v_gqa_max)."""
        return max((self.heads(layer)[1] * self.head_dims(layer)[1] for layer in self.layers), default=0)

    def v_width(self, own: int) -> int:
        """Columns of a value's row in a transposed cache."""
        return max(own, self.v_width_max)
