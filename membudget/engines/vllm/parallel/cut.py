"""How vLLM cuts one tensor, and one layer's cache, over tensor-parallel ranks: the rules of its linear layers (0.32.0).

Column-parallel maps lose rows, row-parallel ones columns; KV heads are split while there are enough and then
replicated; the vocabulary is padded to a multiple of 64; norms, routers, MLA's down-projections and shared-expert
gates are held whole.  A tensor that no rule names is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from membudget.engines.base import LayoutError
from membudget.formats.base import Format
from membudget.formats.safetensors import Safetensors
from membudget.model import Model
from membudget.model.caches import CacheSpec
from membudget.model.tensors import Tensor

#: The vocabulary's rows are padded to a multiple of this (DEFAULT_VOCAB_PADDING_SIZE).
VOCAB_PADDING = 64
#: Maps that every rank computes whole.
REPLICATED = frozenset((
    "q_a_proj", "kv_a_proj_with_mqa", "gate", "router", "layer", "shared_expert_gate", "e_score_correction_bias",
))  # fmt: skip
#: Stored beside the parameters, and held by vLLM.
BUFFERS = ("e_score_correction_bias",)
_COLUMN = frozenset((
    "q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "dt_proj", "input_linear",
    "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
))  # fmt: skip
_ROW = frozenset(("o_proj", "down_proj", "w2", "out_proj", "x_proj", "output_linear"))
_KV = frozenset(("k_proj", "v_proj"))
#: Vectors of a head or channel each, split with them.
_SPLIT = frozenset(("A_log", "D", "dt_bias", "sinks"))
#: Kept in fp32 beside a model in 16 bits: two elements' worth.  So are an indexer's norm, and routers of these.
_FP32 = ("A_log",)
_FP32_ROUTER = ("glm4_moe", "minimax_m2")
#: Norms over all heads' queries and keys, split with the heads; OLMo's are held whole.
_SPLIT_NORMS = ("minimax_m2",)
#: Families whose state-space layers have groups of B and C, under one of these keys.
_GROUPED = ("falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h")
_GROUPS = ("n_groups", "mamba_n_groups")


class RankError(LayoutError):
    """A layout that vLLM refuses."""


class UnknownSplit(RankError):
    """A layout whose bytes on one device are not known here: vLLM may well take it."""

    default_code = "unknown_layout"
    known = False


def layer_of(name: str) -> int | None:
    """The layer number in a tensor's name, None where there is none."""
    parts = name.split(".")
    for place in range(len(parts) - 1):
        if parts[place] in ("layers", "h", "blocks") and parts[place + 1].isdigit():
            return int(parts[place + 1])
    return None


@dataclass(frozen=True)
class Experts:
    """How ranks share a mixture's experts (fused_moe/config.py FusedMoEParallelConfig.make, 0.32.0)."""

    #: Tensor x data parallel ranks: experts are shared by all of them, whatever shares the other layers.
    ranks: int = 1
    #: enable_expert_parallel: a rank holds whole experts; else a slice of every one.
    whole: bool = False
    #: Shared experts are on every rank (config/parallel.py use_sequence_parallel_moe).
    shared_whole: bool = False

    @classmethod
    def of(cls, tp: int, dp: int, whole: bool) -> Experts:
        """What follows from vLLM's sizes and its default all2all backend."""
        return cls(tp * dp, whole and tp * dp > 1, whole and tp > 1 and dp > 1)

    def local(self, experts: int) -> int:
        """Experts on the rank with the most (expert_map_manager.py determine_expert_map)."""
        return -(-experts // self.ranks)


class Cut:
    """The rules for one model at one tensor-parallel size."""

    def __init__(self, model: Model, form: Format, tp: int, experts: Experts | None = None) -> None:
        self.model, self.form, self.tp = model, form, tp
        self.experts = experts or Experts(tp)
        self.sliced = self if self.experts.ranks == tp else Cut(model, form, self.experts.ranks)
        self.kv = {spec.layer: spec.kv_heads for spec in model.caches}
        #: Of state-space layers: the width of what they convolve, and their inner width.
        self.convolved: dict[int, int] = {}
        self.inner: dict[int, int] = {}
        for tensor in model.tensors:
            layer = layer_of(tensor.name)
            if layer is None or tensor.role != "mixer":
                continue
            if tensor.name.endswith("conv1d.weight"):
                self.convolved[layer] = tensor.shape[0]
            elif tensor.name.endswith("out_proj.weight"):
                self.inner[layer] = tensor.shape[1]

    @cached_property
    def _uncut(self) -> Cut:
        """The rules of one rank that holds all."""
        return Cut(self.model, self.form, 1)

    def layer(self, tensor: Tensor, layer: int) -> list[Tensor]:
        """A layer's tensor as one rank holds it, and what vLLM adds to it."""
        if tensor.role == "mlp.experts" and self.experts.whole:
            local = self.experts.local(tensor.copies)
            # the rank with the most of a token's experts has its even share at least
            active = None if tensor.active is None else -(-tensor.active // self.experts.ranks)
            return self._uncut.layer(tensor._replace(copies=local, active=active), layer)
        if tensor.role == "mlp.shared" and self.experts.shared_whole:
            return self._uncut.layer(tensor, layer)
        if tensor.role == "mlp.experts" and self.sliced is not self:
            return self.sliced.layer(tensor, layer)
        cut = tensor._replace(shape=self._shape(tensor, layer), part="params")
        wide = self.form.dense == "F32" if isinstance(self.form, Safetensors) else True
        router = tensor.role == "mlp.router" and self.model.read_as in _FP32_ROUTER and tensor.name.endswith(".weight")
        norm = tensor.role == "attn.indexer" and ".k_norm." in tensor.name
        if not wide and (_leaf(tensor.name)[0] in _FP32 or router or norm):
            cut = cut._replace(copies=cut.copies * 2)  # two 16-bit elements are one in fp32
        return [cut, *self._scales(tensor, cut)]

    def vocabulary(self, tensor: Tensor) -> Tensor:
        """The embedding or the head: rows padded to a multiple of 64, then split."""
        vocab = self.model.config.get("vocab_size")
        if tensor.shape[0] != vocab or tensor.copies != 1:
            raise unknown(self.model, tensor)
        padded = -(-tensor.shape[0] // VOCAB_PADDING) * VOCAB_PADDING
        return tensor._replace(shape=(self._divide(padded, tensor.name), *tensor.shape[1:]))

    def cache(self, spec: CacheSpec) -> CacheSpec:
        """A layer's cache on one rank; a latent one serves every head and is held whole."""
        heads = max(1, spec.kv_heads // self.tp) if spec.kv_heads else 0
        states = []
        for state in spec.states:
            elements = state.elements
            wide = self.convolved.get(spec.layer)
            if state.columns and wide and elements == wide * state.columns:
                elements = self._convolved(spec.layer) * state.columns
            else:
                elements = self._divide(elements, f"the {state.name} state of layer {spec.layer}")
            states.append(state._replace(elements=elements))
        return spec._replace(kv_heads=heads, states=tuple(states))

    def _shape(self, tensor: Tensor, layer: int) -> tuple[int, ...]:
        name, shape, tp = tensor.name, tensor.shape, self.tp
        leaf, kind = _leaf(name)
        if tensor.role == "norms":
            gated = name.endswith((".mamba.norm.weight", ".mixer.norm.weight"))
            if self.model.read_as in _SPLIT_NORMS and leaf in ("q_norm", "k_norm"):
                heads = self.kv[layer]
                kept = shape[0] // heads * max(1, heads // tp)
                return (self._divide(shape[0], name) if leaf == "q_norm" else kept,)
            return (self._divide(shape[0], name),) if gated else shape
        if tensor.role in ("mlp.router", "attn.indexer") or leaf in REPLICATED:
            return shape
        if leaf in _SPLIT:
            return (self._divide(shape[0], name), *shape[1:])
        if leaf == "conv1d":
            return (self._convolved(layer), *shape[1:])
        if leaf == "in_proj" and layer in self.convolved:
            rest = self._divide(shape[0] - self.convolved[layer], name)
            return (rest + self._convolved(layer), *shape[1:])
        if self.model.read_as == "gpt_oss" and tensor.role == "mlp.experts":
            return self._into_first(tensor, leaf)
        if leaf in _KV:
            heads = self.kv.get(layer, 0)
            if not heads:
                raise unknown(self.model, tensor)
            return (shape[0] // heads * max(1, heads // tp), *shape[1:])
        if leaf == "qkv_proj":
            return (self._fused(tensor, layer), *shape[1:])
        if leaf in _COLUMN:
            return (self._divide(shape[0], name), *shape[1:])
        if leaf in _ROW:
            # a row-parallel map adds its whole bias on one rank; every rank holds it
            return shape if kind == "bias" else (shape[0], self._divide(shape[1], name), *shape[2:])
        raise unknown(self.model, tensor)

    def _into_first(self, tensor: Tensor, leaf: str) -> tuple[int, ...]:
        """gpt-oss stacks its experts as (into, out)."""
        shape, name = tensor.shape, tensor.name
        if leaf == "gate_up_proj_bias":
            return (self._divide(shape[0], name),)
        if leaf == "gate_up_proj":
            return (shape[0], self._divide(shape[1], name))
        if leaf == "down_proj_bias":
            return shape
        if leaf == "down_proj":
            return (self._divide(shape[0], name), shape[1])
        raise unknown(self.model, tensor)

    def _fused(self, tensor: Tensor, layer: int) -> int:
        """Rows of q, k and v in one map: the query heads' share, and a KV head at least of each."""
        spec = next(each for each in self.model.caches if each.layer == layer)
        pairs = spec.kv_heads * (spec.k_dim + spec.v_dim)
        kept = max(1, spec.kv_heads // self.tp) * (spec.k_dim + spec.v_dim)
        return self._divide(tensor.shape[0] - pairs, tensor.name) + kept

    def _convolved(self, layer: int) -> int:
        """Channels that a rank's layer convolves: groups of B and C are replicated where they do not divide."""
        wide = self.convolved[layer]
        inner = self.inner.get(layer, wide)
        groups = self._groups()
        if groups is None or inner >= wide:  # no B and C beside the inner channels, or those of a delta net
            return self._divide(wide, f"conv1d of layer {layer}")
        if groups % self.tp == 0:
            return self._divide(wide, f"conv1d of layer {layer}")
        if groups != 1:
            raise RankError(
                f"tensor parallel size ({self.tp}) does not divide num_groups ({groups}): vLLM: If tensor parallel "
                "world size does not divide num_groups, then num_groups must equal 1."
            )
        return self._divide(inner, f"conv1d of layer {layer}") + wide - inner

    def _groups(self) -> int | None:
        config = self.model.config
        if self.model.read_as not in _GROUPED:
            return None
        for key in _GROUPS:
            if isinstance(config.get(key), int):
                return config.integer(key)
        raise UnknownSplit(f"{config.source}: how many groups its state-space layers have is not written")

    def _divide(self, size: int, what: str) -> int:
        if size % self.tp:
            raise RankError(f"{what}: {size} is not divisible by {self.tp} (tensor_parallel_size): vLLM asserts it")
        return size // self.tp

    def _scales(self, whole: Tensor, cut: Tensor) -> list[Tensor]:
        """What vLLM holds of scales beyond what the file stores; refuses to cut through a block or a group."""
        scheme = self.form.choose(whole, self.model) if isinstance(self.form, Safetensors) else None
        if scheme is None or not isinstance(scheme.key, tuple):
            return []
        kind = scheme.key[0]
        if kind == "mxfp4" and whole.role == "mlp.experts":
            raise UnknownSplit(
                f"{whole.name}: vLLM pads {kind} experts by the kernel that the device has: what a rank holds of them "
                "is not supported",
                "; plan one GPU instead",
            )
        if kind == "fp8 block":
            _, rows, columns, scale, name = scheme.key
            for size, before, block, letter in zip(cut.shape, whole.shape, (rows, columns), "nk", strict=True):
                if size != before and size % block:
                    expert = whole.role == "mlp.experts"
                    known = (
                        "FP8 scales of experts that are split again are not supported" if expert else "vLLM refuses it"
                    )
                    kind_of_error = UnknownSplit if expert else RankError
                    raise kind_of_error(
                        f"{whole.name}: {size} of one rank is not divisible by weight quantization "
                        f"block_{letter} = {block} at tensor_parallel_size {self.tp}: {known}"
                    )
            if scale == "BF16":  # kept in fp32: as much again
                shape = (-(-cut.shape[0] // rows), -(-cut.shape[1] // columns))
                stem = whole.name.removesuffix("weight")
                return [cut._replace(name=f"{stem}{name}", shape=shape, role="norms")]
        place = {"awq": 1, "gptq": 2, "packed": 2}.get(str(kind))
        group = scheme.key[place] if place else 0
        if isinstance(group, int) and group > 0 and cut.shape[-1] != whole.shape[-1] and cut.shape[-1] % group:
            raise RankError(
                f"{whole.name}: {cut.shape[-1]} columns of one rank are no whole groups of {group}: vLLM refuses "
                f"tensor_parallel_size {self.tp} (the input size is not aligned with the quantized weight shape)"
            )
        return []


def _leaf(name: str) -> tuple[str, str]:
    """(module, ``weight``, ``bias`` or ""): the last words of a tensor's name."""
    head, _, last = name.rpartition(".")
    if last in ("weight", "bias"):
        return head.rpartition(".")[2], last
    return last, ""


def unknown(model: Model, tensor: Tensor) -> UnknownSplit:
    """The error for a tensor that no rule names."""
    return UnknownSplit(f"{model.name}: how vLLM splits {tensor.name} {tensor.shape} is not supported")


__all__ = ["BUFFERS", "REPLICATED", "Cut", "RankError", "UnknownSplit", "layer_of", "unknown"]
