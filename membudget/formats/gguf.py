"""GGUF files: one ggml type a tensor, chosen by llama.cpp's mixes."""

from __future__ import annotations

import re
from typing import NamedTuple

from membudget.formats.base import Format, FormatError, Layout, Piece, Stored, layout
from membudget.formats.ggml import TYPES
from membudget.formats.gguf_mix import FALCON_DOWN, FALLBACK, MIXES, PLAIN, Mix, Place, Rule
from membudget.formats.gguf_names import Named, named
from membudget.model import Model
from membudget.model.tensors import Tensor

#: Kept as converted, by a part of the name (tensor_allows_quantization in llama-quant.cpp)...
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "altup", "laurel", "per_layer_model_proj",
    "position_embd", "token_types", "ssm_conv1d", "shortconv.conv.weight", "indexer.q_proj.weight",
    "indexer.k_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
)  # fmt: skip
#: ... which is in fp32, except for these (convert_hf_to_gguf.py keeps them in 16 bits).
_KEPT_IN_16 = ("per_layer_model_proj", "altup_proj", "altup_unembd_proj", "laurel_l", "laurel_r", "indexer.")
#: model_types of llama.cpp's falcon architecture, whose attn_output and ffn_down have rules of their own...
_FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")
#: ... and of those whose 80 layers are LLM_TYPE_70B in llama-model.cpp.
_LLAMA = ("llama", "mistral", "ministral", "mixtral", "iquestcoder", "internlm3", "llava_llama")
_ALSO_BIG = ("qwen2", "nemotron-nas")
#: Hybrids whose file has one number of KV heads for all layers; the others' first layer, a state, has none.
_ONE_COUNT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


#: What llama.cpp counts as attn_v.
_VALUES = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
_IS_KEPT = re.compile("|".join(re.escape(part) for part in _KEPT)).search


class _Entry(NamedTuple):
    """A tensor of the file with its type."""

    name: str
    shape: tuple[int, ...]
    kind: str
    nbytes: int


class Gguf(Format):
    """A file that llama-quantize would make of this model.

    imatrix: quantized with an importance matrix, which changes some types.
    separate_output: the file has an output.weight although the model ties its embeddings
        (Qwen's official Qwen2.5-0.5B and 1.5B).
    """

    def __init__(self, name: str, mix: str, *, imatrix: bool = False, separate_output: bool = False) -> None:
        self.name, self.mix, self.separate_output = name, mix, separate_output
        self.imatrix = imatrix or MIXES[mix].imatrix
        self.key = ("gguf", mix, self.imatrix, separate_output)

    def layout(self, tensor: Tensor, model: Model) -> Layout:  # noqa: D102
        return self._plan(model)[tensor.name][0]

    def stored(self, tensor: Tensor, model: Model) -> list[Stored]:  # noqa: D102
        entries = self._plan(model)[tensor.name][1]
        return [Stored(entry.name, entry.kind, entry.shape, entry.nbytes) for entry in entries]

    def extras(self, model: Model) -> list[Stored]:
        """The factors of a scaled RoPE, which the converter stores as tensors."""
        if model.model_type in ("gemma4_text", "gemma4_unified_text"):
            # "proportional" RoPE: the factors say which part of a full layer's head is rotated
            wide = max((spec.k_dim for spec in model.caches if not spec.window), default=0) // 2
            return [Stored("rope_freqs.weight", "F32", (wide,), 4 * wide)] if wide else []
        scaling = model.config.rope
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind == "llama3":
            half = model.config.head_dim // 2
            return [Stored("rope_freqs.weight", "F32", (half,), 4 * half)]
        found = []
        for ours, theirs in (("long", "long_factor"), ("short", "short_factor")):
            factors = scaling.get(theirs)
            if isinstance(factors, list):
                found.append(Stored(f"rope_factors_{ours}.weight", "F32", (len(factors),), 4 * len(factors)))
        return found

    def _plan(self, model: Model) -> dict[str, tuple[Layout, list[_Entry]]]:
        key = ("gguf plan", self.key)
        plan: dict[str, tuple[Layout, list[_Entry]]] | None = model.memo.get(key)
        if plan is None:
            plan = model.memo[key] = self._make(model)
        return plan

    def _make(self, model: Model) -> dict[str, tuple[Layout, list[_Entry]]]:
        names: dict[str, list[Named]] | None = model.memo.get("gguf names")
        if names is None:
            names = model.memo["gguf names"] = {tensor.name: named(tensor, model) for tensor in model.tensors}
        table = next((t for t in model.tensors if any(n.name == "token_embd.weight" for n in names[t.name])), None)
        head = any(item.name == "output.weight" for items in names.values() for item in items)
        if self.separate_output and table is not None and not head:
            names = dict(names)
            names[table.name] = [*names[table.name], Named("output.weight", table.shape)]
            head = True
        every = [item for items in names.values() for item in items]
        chosen = _Chooser(MIXES[self.mix], self.mix, model, every, tied=not head, imatrix=self.imatrix)
        kinds = {item.name: chosen.kind(item) for item in sorted(every, key=_place)}
        plan = {}
        for tensor in model.tensors:
            entries, pieces = [], []
            for item in names[tensor.name]:
                kind = kinds[item.name]
                nbytes = TYPES[kind].size(item.shape)
                entries.append(_Entry(item.name, item.shape, kind, nbytes))
                pieces.append(Piece(item.name, kind, item.shape, nbytes // tensor.copies))
            plan[tensor.name] = (layout(tuple(pieces)), entries)
        return plan


def _place(item: Named) -> tuple[int, str]:
    """llama.cpp's order: by layer, then by name; what is outside the layers comes first."""
    if item.name.startswith("blk."):
        return int(item.name.split(".", 2)[1]), item.name
    return -1, item.name


def _gqa(model: Model) -> int:
    """n_gqa of llama.cpp: query heads a KV head of the first layer; 0 where it has no KV heads."""
    config = model.config
    heads = config.integer("num_attention_heads", 0, minimum=0)
    first = next((spec for spec in model.caches if spec.layer == 0), None)
    if first is not None and first.latent:
        # MLA is converted to one KV head; MiniCPM3's graph expands them
        return 1 if model.model_type == "minicpm3" else heads
    if first is not None and not first.kv_heads and model.model_type not in _ONE_COUNT:
        return 0
    kv = first.kv_heads if first is not None and first.kv_heads else config.kv_heads if heads else 0
    return heads // max(1, kv)


class _Chooser:
    """Goes through a file's tensors in order and counts them, as llama.cpp does."""

    def __init__(self, mix: Mix, name: str, model: Model, every: list[Named], *, tied: bool, imatrix: bool) -> None:
        self.mix, self.name, self.tied, self.imatrix = mix, name, tied, imatrix
        config = model.config
        self.layers = 1 + max(_place(item)[0] for item in every)
        self.values = sum(item.name.endswith(_VALUES) for item in every)
        self.experts = config.integer("num_experts", 0, minimum=0)
        self.gqa = _gqa(model)
        self.falcon, self.ling = model.model_type in _FALCON, model.model_type == "bailing_hybrid"
        self.big = self.layers == 80 and (
            (model.model_type in _LLAMA and self.gqa > 1 and self.experts != 8) or model.model_type in _ALSO_BIG
        )
        self.counts: dict[str, int] = {}

    def kind(self, item: Named) -> str:
        """The ggml type of this tensor."""
        name, shape = item
        # ggml counts dimensions up to the last that is not 1
        dims = len(shape)
        for extent in shape:
            if extent != 1 or dims == 1:
                break
            dims -= 1
        if dims < 2 or not name.endswith(".weight"):
            return "F32"
        if name.endswith("ffn_gate_tid2eid.weight"):
            return "I32"  # DeepSeek-V4: which experts a token goes to
        if name.startswith("mmproj:"):
            return "F16"  # the converter's default for a projector, whatever the text model's mix
        if _IS_KEPT(name):
            return "F16" if any(part in name for part in _KEPT_IN_16) else "F32"
        if self.name in PLAIN:
            return self.mix.base
        return self._fit(self._choose(name, shape), shape[-1])

    def _fit(self, kind: str, columns: int) -> str:
        if columns % TYPES[kind].weights:
            kind = FALLBACK.get(kind, "F16")
        return "F16" if columns % TYPES[kind].weights else kind

    def _choose(self, name: str, shape: tuple[int, ...]) -> str:
        mix = self.mix
        table = name in ("token_embd.weight", "per_layer_token_embd.weight")
        if name == "output.weight" or (table and self.tied):
            if self.name == "MXFP4_MOE" or self.falcon or shape[-1] % TYPES[mix.base].weights:
                return "Q8_0"
            return mix.head
        if self.name == "MXFP4_MOE":
            # MLA's own tensors have three extents, too; llama.cpp spares bailingmoe3's
            spared = self.ling and name.endswith(("attn_k_b.weight", "attn_v_b.weight"))
            return "MXFP4" if len(shape) == 3 and shape[0] > 1 and not spared else "Q8_0"
        if table:
            return mix.embed or mix.base
        return self._layer(name) or mix.base

    def _layer(self, name: str) -> str | None:
        mix = self.mix
        if name.endswith(_VALUES):
            kind = self._apply(mix.v, "attn_v", name)
            if mix.low:
                return kind
            if self.big and (kind or mix.base) in ("Q3_K", "Q4_K"):
                kind = "Q5_K"
            return "Q8_0" if self.experts == 8 else kind
        if name.endswith("attn_k.weight"):
            if self.experts == 8:
                return "Q4_K" if mix.low else "Q8_0"
            return self._apply(mix.k, "attn_k", name)
        if name.endswith("attn_q.weight"):
            return self._apply(mix.q, "attn_q", name)
        if "ffn_down" in name:
            rule = FALCON_DOWN.get(self.name, mix.down) if self.falcon else mix.down
            return self._apply(rule, "ffn_down", name)
        if name.endswith("attn_output.weight"):
            if self.experts == 8:
                return "Q5_K" if mix.low or mix.eight else None
            if self.falcon and not mix.low:
                return "Q4_K" if self.name == "Q3_K_L" else None
            return self._apply(mix.output, "attn_output", name)
        if "ffn_up" in name or "ffn_gate" in name:
            return self._apply(mix.gate_up, "ffn_up" if "ffn_up" in name else "ffn_gate", name)
        return None

    def _apply(self, rule: Rule | None, counter: str, name: str) -> str | None:
        i = self.counts.get(counter, 0)
        self.counts[counter] = i + 1
        if rule is None:
            return None
        if counter.startswith("ffn_") and self.experts > 1 and not self.mix.low:
            i = int(name.split(".", 2)[1])
        count = self.values if counter == "attn_v" else self.layers
        return rule(Place(i, count, self.gqa, self.experts, self.imatrix))


def gguf(name: str, mix: str, *, imatrix: bool = False, separate_output: bool = False) -> Gguf:
    """The format of a mix; `FormatError` for a mix that llama-quantize does not have."""
    if mix not in MIXES:
        raise FormatError(f"unknown llama-quantize mix {mix!r}; known: {', '.join(MIXES)}")
    return Gguf(name, mix, imatrix=imatrix, separate_output=separate_output)
