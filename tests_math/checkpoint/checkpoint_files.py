"""Files for the checkpoint tests: headers of any size over data that is never written (sparse files)."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import CheckpointError, read_path
from membudget.formats.ggml import TYPES
from membudget.formats.gguf_names import named
from membudget.model import Model

Shape = tuple[int, ...]
BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "BF16": 16, "F16": 16, "U8": 8, "I8": 8, "F8_E4M3": 8, "F4": 4}


def safetensors_header(tensors: Mapping[str, tuple[str, Shape]], metadata: Any = None) -> tuple[bytes, int]:
    """The file's bytes up to its data, and how many bytes of data follow."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = BITS[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size // 8]}
        at += size // 8
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Shape]], metadata: Any = None) -> Path:
    """A safetensors file of these tensors; the data is a hole."""
    start, data = safetensors_header(tensors, metadata)
    with open(path, "wb") as stream:
        stream.write(start)
        stream.truncate(len(start) + data)
    return path


def write_shards(
    folder: Path, shards: Iterable[Mapping[str, tuple[str, Shape]]], total_size: int | None = None
) -> Path:
    """A sharded checkpoint with its index."""
    shards = list(shards)
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, tensors, {"format": "pt"})
        total += safetensors_header(tensors)[1]
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": total if total_size is None else total_size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def stored(model: Model, dtype: str = "BF16") -> dict[str, tuple[str, Shape]]:
    """A model's whole inventory as a dense checkpoint would store it."""
    return {name: (dtype, shape) for tensor in model.tensors for name, shape in tensor.expand()}


def gguf_tensors(model: Model, kind: str = "F16") -> dict[str, tuple[str, Shape]]:
    """A model's inventory under llama.cpp's names, matrices in one type and the rest in F32."""
    return {
        item.name: (kind if len(item.shape) > 1 and "norm" not in item.name else "F32", item.shape)
        for tensor in model.tensors
        if tensor.role not in ("vision", "audio", "mtp")  # in files of their own, or left out
        for item in named(tensor, model)
    }


def write_gguf(
    path: Path,
    arch: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, Shape]],
    *,
    split: int = 0,
    big_endian: bool = False,
) -> Path:
    """A GGUF file written by the gguf library itself; the data is a hole.

    keys: without the architecture where they start with a dot (``.block_count``).
    """
    import gguf
    import numpy as np

    order = gguf.GGUFEndian.BIG if big_endian else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, arch, endianess=order, split_max_tensors=split)
    for key, value in keys.items():
        key = arch + key if key.startswith(".") else key
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (kind, shape) in tensors.items():
        writer.add_tensor_info(
            name, shape, np.dtype(np.float32), TYPES[kind].size(shape), gguf.GGMLQuantizationType[kind]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    parts = list(zip(writer.format_shard_names(path), writer.tensors, strict=True))
    writer.close()
    for part, infos in parts:
        start = -(-os.path.getsize(part) // 32) * 32
        size = sum(-(-info.nbytes // 32) * 32 for info in infos.values())
        os.truncate(part, start + size)
    return parts[0][0]


# What llama.cpp's converters write for a config.json (conversion/base.py set_gguf_parameters
# and the models' own): the other direction of membudget/checkpoint/gguf_config.py.

_PLAIN = {
    "max_position_embeddings": ".context_length",
    "hidden_size": ".embedding_length",
    "num_hidden_layers": ".block_count",
    "intermediate_size": ".feed_forward_length",
    "num_attention_heads": ".attention.head_count",
    "num_key_value_heads": ".attention.head_count_kv",
    "num_experts_per_tok": ".expert_used_count",
    "num_local_experts": ".expert_count",
    "num_experts": ".expert_count",
    "n_routed_experts": ".expert_count",
}
ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "mistral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "phi3": "phi3",
    "gpt_oss": "gpt-oss",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "kimi_k2": "deepseek2",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "glm4_moe": "glm4moe",
    "lfm2": "lfm2",
    "minimax_m2": "minimax-m2",
}


def gguf_keys(model: Model) -> dict[str, Any]:
    """The key-values that the converter writes for this model."""
    c, kind = model.config, model.model_type
    keys = {ours: c.get(theirs) for theirs, ours in _PLAIN.items() if isinstance(c.get(theirs), int)}
    keys["tokenizer.ggml.tokens"] = ["<s>", "</s>"]
    if c.get("head_dim") is not None:
        keys |= {".attention.key_length": c.head_dim, ".attention.value_length": c.head_dim}
    if c.get("moe_intermediate_size") is not None:
        keys[".expert_feed_forward_length"] = c.get("moe_intermediate_size")
    if c.get("shared_expert_intermediate_size") is not None:
        keys[".expert_shared_feed_forward_length"] = c.get("shared_expert_intermediate_size")
    if kind in ("gemma2", "gemma3_text", "gpt_oss", "olmo3", "gemma4_text"):
        keys[".attention.sliding_window"] = c.integer("sliding_window")
    if kind == "gpt_oss":
        keys[".expert_feed_forward_length"] = c.integer("intermediate_size")
    if kind == "phi3":
        keys[".attention.sliding_window"] = c.get("sliding_window") or 0
    if kind in ("deepseek_v2", "deepseek_v3", "kimi_k2"):
        nope, rope, rank = c.integer("qk_nope_head_dim"), c.integer("qk_rope_head_dim"), c.integer("kv_lora_rank")
        keys |= {".attention.head_count_kv": 1, ".attention.kv_lora_rank": rank, ".rope.dimension_count": rope}
        keys |= {".attention.key_length": rank + rope, ".attention.value_length": rank}
        keys |= {".attention.key_length_mla": nope + rope, ".attention.value_length_mla": c.integer("v_head_dim")}
        keys |= {".leading_dense_block_count": c.integer("first_k_dense_replace", 0, minimum=0)}
        keys |= {".expert_shared_count": c.integer("n_shared_experts", 0, minimum=0)}
        if c.get("q_lora_rank") is not None:
            keys[".attention.q_lora_rank"] = c.integer("q_lora_rank")
    if kind == "glm4_moe":
        keys |= {".leading_dense_block_count": c.integer("first_k_dense_replace", 0, minimum=0)}
        keys |= {".expert_shared_count": c.integer("n_shared_experts", 0, minimum=0), ".nextn_predict_layers": 1}
        keys[".block_count"] += 1
    if kind in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
        values = c.integer("linear_num_value_heads")
        keys |= {".ssm.conv_kernel": c.integer("linear_conv_kernel_dim"), ".ssm.time_step_rank": values}
        keys |= {".ssm.state_size": c.integer("linear_key_head_dim"), ".full_attention_interval": 4}
        keys |= {".ssm.group_count": c.integer("linear_num_key_heads")}
        keys |= {".ssm.inner_size": values * c.integer("linear_value_head_dim")}
    if kind == "gemma4_text":
        slides = [layer == "sliding_attention" for layer in c.get("layer_types")]
        local, wide = c.kv_heads, c.integer("num_global_key_value_heads", c.kv_heads)
        keys |= {".attention.sliding_window_pattern": slides}
        keys |= {".attention.head_count_kv": [local if slide else wide for slide in slides]}
        keys |= {".attention.key_length_swa": c.head_dim, ".attention.value_length_swa": c.head_dim}
        keys |= {".attention.key_length": c.integer("global_head_dim")}
        keys |= {".attention.value_length": c.integer("global_head_dim")}
        keys |= {".embedding_length_per_layer_input": c.integer("hidden_size_per_layer_input", 0, minimum=0)}
        keys |= {".attention.shared_kv_layers": c.integer("num_kv_shared_layers", 0, minimum=0)}
        if c.get("top_k_experts") is not None:
            keys[".expert_used_count"] = c.integer("top_k_experts")
    return keys


def write_model(path: Path, model: Model, kind: str = "F16", *, split: int = 0) -> Path:
    """A whole model as a GGUF file, by the converter's rules."""
    return write_gguf(path, ARCHITECTURES[model.model_type], gguf_keys(model), gguf_tensors(model, kind), split=split)


def is_refused(path: Path, message: str) -> None:
    """Reading ends in one CheckpointError that names the file, within 20 MiB of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            read_path(str(path))
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
