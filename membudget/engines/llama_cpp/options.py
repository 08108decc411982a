"""What llama.cpp declares of itself to budgets: llama-server's options by their own names.

Names and spellings: llama.cpp v0.4.0 common/arg.cpp (the strings of its libllama-common).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from membudget.budgets.field_words import CountOr, Parsed, Switch
from membudget.budgets.fields import Boolean, Choice, Count, Field, Fields, Size, Text, Tokens
from membudget.budgets.settings import Declared, Smaller, is_gguf
from membudget.data.defaults import MAX_CTX, SMALL_STEP, SMALLEST_GGUF
from membudget.engines.llama_cpp.settings import AUTO_PARALLEL, CACHE_TYPES, MAX_SEQ, overrides, shares
from membudget.formats import Format

#: llama.cpp's defaults of ``-ub`` and ``-b`` (common/common.h).
UBATCH, BATCH = 512, 2048
#: Formats of other files that are a GGUF mix of the same bytes, by their names: what llama.cpp's converter writes.
CONVERTED = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "mxfp4": "MXFP4_MOE"}
#: Stored dtypes of safetensors that the converter keeps.
STORED = {"BF16": "BF16", "F16": "F16", "F32": "F32"}

_CACHE = Choice(*CACHE_TYPES)
_LAYERS = Count(0, 10_000)
_SHARES = Parsed("shares by device, like 3,1", shares)
_OVERRIDES = Parsed("patterns and where their tensors go, like 'ffn_.*_exps=CPU', several with commas", overrides)

FIELDS = Fields(
    "engine.llama_cpp",
    {
        "ctx_size": Field(
            CountOr(1, MAX_CTX, "0"), "Tokens of all slots together; 0 is the model's own length.", "32768",
            default="what the users need", short=("-c",),
        ),
        "parallel": Field(
            Count(1, MAX_SEQ), "Slots: requests at once.", str(AUTO_PARALLEL), default="the users", short=("-np",)
        ),
        "kv_unified": Field(
            Boolean(), "One cache that all slots share.", "true", default="false: each slot has its own share",
            short=("-kvu",), off=("-no-kvu",),
        ),
        "batch_size": Field(
            Tokens(1, MAX_CTX), "Tokens of a logical batch.", "2048", default="2048", short=("-b",)
        ),
        "ubatch_size": Field(
            Tokens(1, MAX_CTX), "Tokens that one step takes at most.", "512", default="512",
            short=("-ub", "--n-ubatch"),
        ),
        "flash_attn": Field(
            Switch("on", "off", "auto"), "Flash attention.", "auto", default="auto: on", short=("-fa",)
        ),
        "cache_type_k": Field(_CACHE, "Keys of the cache.", "q8_0", default="kv_cache_dtype", short=("-ctk",)),
        "cache_type_v": Field(_CACHE, "Values of the cache.", "q8_0", default="kv_cache_dtype", short=("-ctv",)),
        "swa_full": Field(Boolean(), "Windows keep all tokens.", "true", default="false"),
        "n_gpu_layers": Field(
            CountOr(0, 10_000, "auto", "all"), "Layers on devices, the output layer counted as one.", "20",
            default="all", short=("-ngl", "--gpu-layers"),
        ),
        "n_cpu_moe": Field(
            _LAYERS, "The first layers whose experts stay in RAM.", "12", default="0", short=("-ncmoe",)
        ),
        "cpu_moe": Field(Boolean(), "All experts stay in RAM.", "true", default="false", short=("-cmoe",)),
        "override_tensor": Field(
            _OVERRIDES, "Where tensors go whose names match.", "ffn_.*_exps=CPU", short=("-ot",)
        ),
        "kv_offload": Field(
            Boolean(), "The cache is on the devices of its layers.", "false", default="true", short=("-kvo",),
            off=("-nkvo",),
        ),
        "op_offload": Field(Boolean(), "Large batches of host layers on a device.", "false", default="true"),
        "split_mode": Field(
            Choice("layer", "none"), "How devices share the model.", "layer", default="layer", short=("-sm",)
        ),
        "tensor_split": Field(
            _SHARES, "Shares of several devices.", "3,1", default="equal: by free memory", short=("-ts",)
        ),
        "mmproj": Field(
            Text("a projector's .gguf file, or auto: of the model's own towers in F16"),
            "The projector of images and sound.", "mmproj-F16.gguf", default="none", short=("-mm",),
        ),
        "mmproj_offload": Field(Boolean(), "The projector is on a device.", "false", default="true"),
        "spec_type": Field(
            Choice("none", "draft-mtp", "draft-simple"),
            "Speculation: the model's own prediction layers, or a draft model.", "draft-mtp", default="none",
        ),
        "model_draft": Field(
            Text("a draft model: a .gguf file, or a model as MODEL, in the same format"), "The draft model.",
            "Qwen3-0.6B-Q8_0.gguf", short=("-md", "--spec-draft-model"),
        ),
        "spec_draft_n_max": Field(
            Count(1, 1024), "Tokens that are drafted at once.", "3", default="16 of a draft model, 3 of MTP layers",
            short=("--draft-max",),
        ),
        "host_memory": Field(
            Size(), "RAM that llama.cpp may take beside the devices' memory.", "32 GiB", default="unknown: no limit"
        ),
    },
    aliases={"n_ubatch": "ubatch_size"},
)  # fmt: skip


def _refuses(form: Format) -> str | None:
    if is_gguf(form) or form.name in CONVERTED:
        return None
    stored = getattr(getattr(form, "checkpoint", None), "by_dtype", None)
    if stored is not None and any(name in STORED for name in stored) and set(stored) <= {*STORED}:
        return None
    return (
        f"llama.cpp reads GGUF files, and {form.name} weights are none; name a GGUF format: --format q8_0, q4_k_m "
        "(`membudget formats` lists them), or pass a .gguf file"
    )


def _context(options: Mapping[str, Any], users: int, most: int | None) -> tuple[int | None, Mapping[str, Any]]:
    """A user's part of ``-c``: a slot's, or of a unified cache as many parts as users; then ``-c`` follows from it.

    most: tokens that the model is trained for, which ``-c 0`` means.
    """
    total = options.get("ctx_size")
    total = most if total is not None and not int(total) else total
    if not total:
        return None, options
    parts = users if options.get("kv_unified") else options.get("parallel") or users
    left = {name: value for name, value in options.items() if name != "ctx_size"}
    return max(int(total) // int(parts), 1), left


DECLARED = Declared(
    name="llama_cpp",
    title="llama.cpp",
    about="llama.cpp as llama-server runs it: a slot of cells for each user, its own buffers, layers on devices.",
    fields=FIELDS,
    order=2,
    aliases=("llama.cpp", "llama-cpp", "llamacpp", "llama-server"),
    batched_tokens=UBATCH,
    step="ubatch_size",
    small_step=SMALL_STEP,
    kv="llama.cpp",
    small_cache="q8_0",
    smaller=(Smaller("q8_0"), Smaller("q4_k_m")),
    smallest=tuple(map(Smaller, SMALLEST_GGUF)),
    platforms=("cuda", "rocm", "vulkan", "metal", "cpu"),
    gguf=True,
    several=True,
    stages=True,
    context=_context,
    cache_options=("cache_type_k", "cache_type_v"),
    refuses=_refuses,
    cells=True,
)
