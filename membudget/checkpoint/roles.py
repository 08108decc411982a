"""What a stored tensor is for, by its name alone: safetensors' and GGUF's naming."""

from __future__ import annotations

import re

from membudget.checkpoint.entries import Checkpoint
from membudget.formats.base import FormatError
from membudget.formats.gguf_names import named
from membudget.model import Model

#: Stored beside the text model's own tensors, by name; the first that matches counts.
_BESIDE = (
    ("mtp", re.compile(r"^(?:model\.)?mtp\.|\.nextn\.|\.mtp_layers\.|\.eh_proj\.|\.shared_head\.")),
    ("audio", re.compile(r"^(?:a|mm\.a)\.|audio|speech|whisper", re.I)),
    (
        "vision",
        re.compile(r"^(?:v|mm|resampler)\.|visual|vision|multi_modal_projector|image_newline|mm_projector|aligner"),
    ),
    ("rotary", re.compile(r"rotary_emb\.|^rope_freqs\.|^rope_factors_|\.rope_freqs\.|attn_rot_embd|inv_freq$")),
    ("kv_scale", re.compile(r"(?:k_scale|v_scale|kv_scale|k_proj\.output_scale|v_proj\.output_scale)$")),
    ("mask", re.compile(r"\.(?:masked_bias|attn\.bias|attention\.bias)$")),
)
#: GGUF names within ``blk.N.``, by their start (gguf-py constants.py TENSOR_NAMES).
_GGUF = (
    ("norms", re.compile(r"(?:.*_norm(?:_\d|_exps)?|layer_output_norm|post_norm|indexer\.k_norm)\.(?:weight|bias)$")),
    ("attn.indexer", re.compile(r"indexer\.")),
    ("mixer", re.compile(r"ssm_|shortconv|time_mix")),
    ("attn", re.compile(r"attn_")),
    ("mlp.router", re.compile(r"ffn_gate_inp|exp_probs_b")),
    ("mlp.experts", re.compile(r"ffn_\w+_exps|ffn_(?:gate|up|down)\.\d+\.")),
    ("mlp.shared", re.compile(r"ffn_\w+_(?:shexp|chexps)")),
    ("mlp", re.compile(r"ffn_|channel_mix")),
)
_GGUF_TOP = {
    "token_embd": "embed",
    "token_types": "embed",
    "position_embd": "embed",
    "per_layer_token_embd": "embed",
    "output": "lm_head",
    "output_norm": "norms",
    "token_embd_norm": "norms",
    "per_layer_proj_norm": "norms",
}
#: safetensors names, by parts of them; the first that matches counts.
_HF = (
    ("lm_head", re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.|^output\.weight")),
    (
        "embed",
        re.compile(r"embed_tokens|word_embeddings|\bwte\b|\bwpe\b|tok_embeddings|embed_in|embed_positions|^embeddings"),
    ),
    ("norms", re.compile(r"norm(?:\d|_f|_1|_2)?\.(?:weight|bias|scale)$|\.ln_\w+\.|layernorm")),
    ("mlp.router", re.compile(r"\.router\.|(?:mlp|block_sparse_moe|feed_forward|mixer|moe)\.gate\.|expert_bias$")),
    ("mlp.experts", re.compile(r"\.experts\.")),
    ("mlp.shared", re.compile(r"\.shared_expert")),
    ("mixer", re.compile(r"\.(?:linear_attn|mamba|mixer|ssm|conv|delta_net|attention_linear)\.")),
    ("attn", re.compile(r"attn|attention|q_proj|k_proj|v_proj|o_proj|\.W?qkv\.")),
    ("mlp", re.compile(r"mlp|feed_forward|ffn|\.fc[12]\.|gate_up_proj|up_proj|down_proj|dense_")),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk|layer)\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """The layer's number in a name of either naming."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def beside(name: str) -> str | None:
    """``mtp``, ``audio``, ``vision``, ``rotary``, ``kv_scale`` or ``mask``; None for the text model's own."""
    return next((what for what, pattern in _BESIDE if pattern.search(name)), None)


def role_of(name: str, kind: str) -> str:
    """A role of `membudget.model.tensors.ROLES`, from the name; ``other`` where it says nothing."""
    what = beside(name)
    if what is not None:
        return {"rotary": "other", "kv_scale": "other", "mask": "other"}.get(what, what)
    if kind == "gguf":
        inside = re.match(r"blk\.\d+\.(.*)", name)
        if inside is None:
            return _GGUF_TOP.get(name.rpartition(".")[0], "other")
        return next((role for role, pattern in _GGUF if pattern.match(inside[1])), "other")
    return next((role for role, pattern in _HF if pattern.search(name)), "other")


def by_role(checkpoint: Checkpoint, model: Model | None = None) -> dict[str, int]:
    """Bytes by role.  With a model its inventory names the roles; what it does not know goes by name."""
    known, layers = _known(checkpoint, model), model.config.layers if model is not None else None
    total: dict[str, int] = {}
    for entry in checkpoint.entries:
        role, layer = None, layer_of(entry.name)
        if beside(entry.name) is None:
            if layers is not None and layer is not None and layer >= layers:
                role = "mtp"
            elif known:
                role = known.get(_stem(entry.name, checkpoint.kind))
        role = role or role_of(entry.name, checkpoint.kind)
        total[role] = total.get(role, 0) + entry.nbytes
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _known(checkpoint: Checkpoint, model: Model | None) -> dict[str, str]:
    """The roles of a model's tensors by the module they are stored under."""
    if model is None:
        return {}
    if checkpoint.kind == "safetensors":
        return {_stem(tensor.name.replace(".*", ""), "safetensors"): tensor.role for tensor in model.tensors}

    known = {}
    for tensor in model.tensors:
        try:
            known.update({_stem(item.name, "gguf"): tensor.role for item in named(tensor, model)})
        except FormatError:
            continue  # a name that is not known in GGUF files goes by name
    return known


def _stem(name: str, kind: str) -> str:
    if kind == "gguf":
        return name.rpartition(".")[0]
    return module(re.sub(r"\.experts\.\d+", ".experts", canonical(name)))


_PREFIX = re.compile(
    r"^(?:model\.language_model\.model\.|model\.language_model\.|language_model\.model\.|language_model\.|"
    r"model\.text_model\.|text_model\.|transformer\.|backbone\.|model\.)(?!.*(?:visual|vision|audio))"
)


def canonical(name: str) -> str:
    """A name without the prefix that wrappers put before the text model's tensors."""
    return _PREFIX.sub("", name, count=1)


#: What quantizers store for one weight, by the last part of the name (docs/checkpoints.md).
PACKED = frozenset(
    {
        "absmax", "bias_q", "g_idx", "input_global_scale", "input_scale", "meta", "nested_absmax", "nested_quant_map",
        "qdata", "qscales", "quant_map", "qweight", "qzeros", "quant_state", "scale", "scales", "SCB", "suh", "svh",
        "trellis", "mul1", "mcg", "W_q", "weight_blocks", "weight_format", "weight_g_idx", "weight_global_scale",
        "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_scales", "weight_shape",
        "weight_zero_point", "zero", "zero_point", "zeros", "bitsandbytes__nf4", "bitsandbytes__fp4",
        "pre_quant_scale", "workspace",
    }
)  # fmt: skip


def module(name: str) -> str:
    """The module that a tensor belongs to: ``a.b.weight``, ``a.b.qweight``, ``a.b.weight.absmax`` -> ``a.b``."""
    parts = name.split(".")
    while len(parts) > 1 and (parts[-1] in PACKED or parts[-1] in ("weight", "bias", "quant_state")):
        parts.pop()
    last = parts[-1]
    for suffix in ("_blocks", "_scales", "_bias", "_scale_inv", "_scale_2", "_scale", "_packed"):
        if last.endswith(suffix) and last != suffix:
            parts[-1] = last.removesuffix(suffix)
            break
    return ".".join(parts)
