"""A real llama.cpp allocates: tiny models of random weights, what a process takes beside our sums, part by part.

On the CPU where the documented library is installed.  `no_alloc` is off here: buffers are made and touched, and the
process's memory is read before and after.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membudget.checkpoint import read_path
from membudget.checkpoint.gguf_header import tensors, write
from membudget.checkpoint.gguf_header_keys import metadata
from membudget.engines.llama_cpp.oracle import INSTALL, LibraryMissing, find_library
from membudget.engines.llama_cpp.oracle.asking import CHILD, context_values
from membudget.engines.llama_cpp.oracle.library import VERSION
from membudget.engines.llama_cpp.plan import Server
from membudget.engines.llama_cpp.prints import read
from membudget.engines.llama_cpp.settings import FlashAttention, Settings
from membudget.formats.gguf import gguf
from membudget.model import build
from tests_math.checkpoint.checkpoint_files import write_gguf

pytestmark = pytest.mark.cpu

MIB = 2**20
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
    "num_key_value_heads": 4, "num_hidden_layers": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 12, "vocab_size": 32000, "sliding_window": 512,
    "max_position_embeddings": 32768,
}  # fmt: skip
MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 6, "num_experts": 16,
    "num_experts_per_tok": 4, "vocab_size": 32000, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
CASES = {
    "llama": (LLAMA, "q8_0", Settings(16384, 1, flash_attn=FlashAttention.ON)),
    "llama-slots": (LLAMA, "q4_k_m", Settings(16384, 4, flash_attn=FlashAttention.OFF, ubatch_size=256)),
    "llama-q8-cache": (LLAMA, "gguf-f16", Settings(32768, 1, cache_type_k="q8_0", cache_type_v="q8_0")),
    "gemma": (GEMMA, "q4_0", Settings(16384, 2, flash_attn=FlashAttention.ON)),
    "moe": (MOE, "q4_k_m", Settings(8192, 1, flash_attn=FlashAttention.ON)),
}


def library_folder() -> str:
    """Where the library lies; skips with the command where there is none."""
    try:
        return find_library().folder
    except LibraryMissing:
        pytest.skip(f"no libllama to run: {INSTALL}")


@pytest.mark.parametrize("name", CASES)
def test_what_a_process_takes(name: str, tmp_path: Path) -> None:
    """Weights, caches and buffers as printed are ours to the byte; the process grows by their sum, within 3%."""
    folder = library_folder()
    config, mix, settings = CASES[name]
    model = build(config, name=name)
    layout = gguf(mix, mix.upper().replace("GGUF-", ""))
    entries = tensors(layout, model)
    path = tmp_path / "model.gguf"
    write(path, metadata(model, {entry.name: entry.shape for entry in entries}), entries)
    fill(path)
    found = measured(folder, path, settings)
    server = replace(Server.read(str(path)), devices=0)
    lines = server.ask(settings).lines
    ours = {bucket: sum(line.bytes for line in lines if line.bucket == bucket) for bucket in ("weights", "kv_cache")}
    prints = read(found["log"])
    assert sum(prints.model.values()) == pytest.approx(ours["weights"], abs=0.02 * MIB)
    assert prints.cache_bytes == pytest.approx(ours["kv_cache"], abs=0.03 * MIB)
    buffers = sum(line.bytes for line in lines if line.part == "compute")
    assert sum(prints.compute.values()) == pytest.approx(buffers, rel=0.02)
    # pages of the cache are zeroed when it is made; the compute buffer is touched where a batch runs
    total = ours["weights"] + ours["kv_cache"]
    grown = found["after"] - found["before"]
    assert total * 0.97 <= grown <= (total + buffers) * 1.03 + 8 * MIB


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    """Parts as the gguf library writes them: llama.cpp loads all from the first, and takes what we sum."""
    pytest.importorskip("gguf", reason="the gguf library is in the [test] extra")
    folder = library_folder()
    model, layout = build(LLAMA, name="llama"), gguf("q8_0", "Q8_0")
    entries = tensors(layout, model)
    keys = metadata(model, {entry.name: entry.shape for entry in entries})
    arch = keys.pop("general.architecture")
    shapes = {entry.name: (entry.kind, entry.shape) for entry in entries}
    first = write_gguf(tmp_path / "model.gguf", str(arch), keys, shapes, split=20)
    assert first.name == "model-00001-of-00004.gguf"
    prints = read(measured(folder, first, Settings(4096, 1))["log"])
    found = read_path(str(tmp_path))
    assert len(found.files) == 4
    assert sum(prints.model.values()) == pytest.approx(found.nbytes, abs=0.02 * MIB)


def measured(folder: str, path: Path, settings: Settings) -> dict[str, Any]:
    """Resident bytes of the library's process before the model is loaded and with a context, and its log."""
    job = {
        "library": folder, "version": VERSION,
        "model": {"file": str(path), "no_alloc": False, "load_mode": 0, "n_gpu_layers": 0},
        "questions": [context_values(settings)],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, CHILD], input=json.dumps(job), capture_output=True, text=True, errors="replace", timeout=300
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[-1].get("made"), done.stderr[-2000:]
    return {"before": rows[0]["rss"], "after": rows[-1]["rss"], "log": "".join(row["log"] for row in rows)}


def fill(path: Path) -> None:
    """Random bytes where the file has a hole: pages that are not all zeros are not shared."""
    draw, size = random.Random(16), os.path.getsize(path)
    with open(path, "r+b") as file:
        head = file.read(4 * MIB)
        start = len(head.rstrip(b"\0"))
        file.seek(-(-start // 4096) * 4096)
        block = draw.randbytes(MIB)
        while (at := file.tell()) < size:
            file.write(block[: min(MIB, size - at)])
