"""What LoRA adapters take before one is loaded: every linear layer has A and B for max_loras of max_lora_rank.

vLLM: lora/layers (create_lora_weights), lora/utils.py get_supported_lora_modules (every linear layer, a mixture's
experts since 0.12, embeddings where the model names them), lora/punica_wrapper/punica_base.py.  They are allocated with
the model, so "Model loading took" holds them.  fixtures/oracle/lora.json has what vLLM's classes make.
"""

from __future__ import annotations

from membudget.engines.vllm.pool.derive import model_dtype
from membudget.engines.vllm.profile.estimate import Estimate, exact
from membudget.engines.vllm.profile.settings import ProfileError, ProfileSettings
from membudget.model import Model
from membudget.model.tensors import Tensor

Version = tuple[int, int, int]

#: Those that vLLM takes (config/lora.py, MaxLoRARanks).
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: Experts take adapters from this version on (lora/layers/fused_moe.py).
_EXPERTS = (0, 12, 0)
#: Models whose classes name their embeddings as modules for adapters (embedding_modules in 0.11.0 and 0.32.0), and
#: those that came to it (qwen3.py, qwen3_moe.py 0.17.0; qwen3_5.py 0.32.0).
_EMBED = frozenset(
    (
        "apertus", "bamba", "cohere", "cohere2", "exaone", "exaone4", "falcon_h1", "granite", "granitemoe",
        "granitemoehybrid", "granitemoeshared", "jamba", "lfm2", "llama", "minicpm", "mistral", "mixtral", "nemotron",
        "nemotron_h", "nemotron-nas", "phimoe", "solar",
    )
)  # fmt: skip
_EMBED_SINCE = {"qwen3": (0, 17, 0), "qwen3_moe": (0, 17, 0), "qwen3_5_text": (0, 32, 0)}
#: Index tensors of the adapters' kernels, a token (punica_base.py: four of int64; lora_kernel_metadata.py: two of
#: int32 for the layers and two for the logits).
_INDICES = 4 * 8 + 4 * 4
_SOURCE = "lora/layers, lora/punica_wrapper/punica_base.py"


def lora(model: Model, rank: Model, settings: ProfileSettings, tokens: int, version: Version) -> Estimate:
    """Bytes of the stacked weights and index tensors on one rank; 0 without adapters.

    rank: what the rank holds.  tokens: max_num_batched_tokens.  Raises `ProfileError` for a rank that vLLM refuses.
    """
    if not settings.max_loras:
        return exact("lora", 0, "no adapters", _SOURCE)
    if settings.max_loras < 0:
        raise ProfileError(f"max_loras is {settings.max_loras}; allowed: 1 or more")
    if settings.max_lora_rank not in RANKS:
        allowed = ", ".join(map(str, RANKS))
        raise ProfileError(f"max_lora_rank is {settings.max_lora_rank}; vLLM takes {allowed}")
    width = 4 if model_dtype(model.config, settings.dtype)[0] == "float32" else 2
    sizes = by_module(model, rank, settings.tp, version)
    each = settings.max_loras * settings.max_lora_rank * width
    embeds = sum(sizes.pop(name, 0) for name in ("embed", "lm_head"))
    layers = sum(sizes.values())
    kind = model.model_type
    taken = kind in _EMBED or version >= _EMBED_SINCE.get(str(kind), (99, 0, 0))
    indices = tokens * _INDICES
    size = each * (layers + (embeds if taken else 0)) + indices
    why = (
        f"max_loras {settings.max_loras} x max_lora_rank {settings.max_lora_rank} x {width} B x "
        f"{layers + (embeds if taken else 0):,} inputs and outputs of linear layers"
        f"{' and embeddings' if taken and embeds else ''}, {indices:,} B of indices"
    )
    # the allocator's blocks for the stacked tensors, each small, are up to an eighth more
    return Estimate("lora", size, each * layers, size + size // 8, why, _SOURCE)


def by_module(model: Model, rank: Model, tp: int, version: Version) -> dict[str, int]:
    """Inputs and outputs of all maps that take adapters, by role; times max_loras x rank they are elements.

    A rank's map keeps A for its inputs and B for its outputs; embeddings and the head are whole on every rank.
    """
    found: dict[str, int] = {}
    for tensor in rank.tensors:
        if tensor.part != "params" or len(tensor.shape) != 2 or not _linear(tensor, version):
            continue
        role = tensor.role.partition(".")[0] if tensor.role != "mlp.experts" else "mlp.experts"
        found[role] = found.get(role, 0) + sum(tensor.shape) * tensor.copies
    vocab, hidden = model.config.integer("vocab_size"), model.config.integer("hidden_size")
    found["embed"] = found["lm_head"] = vocab + hidden
    return found


def _linear(tensor: Tensor, version: Version) -> bool:
    bucket = tensor.role.partition(".")[0]
    if bucket in ("embed", "lm_head", "vision", "audio", "norm", "norms"):
        return False
    if tensor.role == "mlp.experts":
        return version >= _EXPERTS
    return tensor.name.endswith("weight")
