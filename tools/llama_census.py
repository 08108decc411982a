"""Ask a real llama.cpp about every architecture that both sides know, and write fixtures/llama_cpp/census.json.

    npm install --prefix ~/.cache/membudget/llama.cpp @node-llama-cpp/linux-x64@3.21.1
    python tools/llama_census.py [MODEL_TYPE ...]

For each model_type with a GGUF name: a published config where the package has one, else the class's defaults. The
header that we write is loaded; keys, values, states and the compute buffer are compared on a grid of settings.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.checkpoint.gguf_header import tensors  # noqa: E402
from membudget.checkpoint.gguf_header_keys import ARCHITECTURES, metadata  # noqa: E402
from membudget.engines.llama_cpp.compute import ComputeError, Header, compute_buffer  # noqa: E402
from membudget.engines.llama_cpp.memory import caches  # noqa: E402
from membudget.engines.llama_cpp.oracle import OracleError, ask, find_library  # noqa: E402
from membudget.engines.llama_cpp.settings import FlashAttention, Settings  # noqa: E402
from membudget.errors import MembudgetError  # noqa: E402
from membudget.formats.gguf import gguf  # noqa: E402
from membudget.model import Model, build  # noqa: E402

OUT = ROOT / "fixtures" / "llama_cpp" / "census.json"
ON, OFF = FlashAttention.ON, FlashAttention.OFF
#: Contexts, slots with and without a unified cache, batches, flash attention, types, full windows, rows of logits.
GRID = (
    Settings(8192, 1, flash_attn=ON),
    Settings(8192, 1, flash_attn=OFF),
    Settings(16384, 4, flash_attn=ON, ubatch_size=256),
    Settings(8192, None, flash_attn=OFF, ubatch_size=1024),
    Settings(4096, 2, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn=ON),
    Settings(32768, 4, flash_attn=ON, outputs_max=None),
    Settings(32768, None, flash_attn=ON, swa_full=True),
    Settings(2048, 1, flash_attn=ON, ubatch_size=2048),
    Settings(65536, 1, flash_attn=OFF, ubatch_size=64),
    Settings(12000, 3, flash_attn=ON, batch_size=512, ubatch_size=300),
    Settings(8192, 1, flash_attn=ON, cache_type_k="q8_0", cache_type_v="f16"),
    Settings(1024, 8, flash_attn=OFF, ubatch_size=32),
    Settings(131072, 1, flash_attn=ON),
)
#: What a class's defaults leave out or set so that no published model has it.
GIVEN: dict[str, dict[str, Any]] = {
    # tiiuae/falcon-40b and falcon-7b as they were first published
    "RefinedWeb": {"hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60, "vocab_size": 65024},
    "RefinedWebModel": {
        "hidden_size": 4544,
        "n_head": 71,
        "n_layer": 32,
        "vocab_size": 65024,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
    },
    # liuhaotian/llava-v1.6-vicuna-7b's text part
    "llava_llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    },
    # the class's defaults have no indexer in any layer; llama.cpp wants one where experts are
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 60},
    # Qwen/Qwen3-Omni-30B-A3B-Instruct's thinker
    "qwen3_omni_moe_text": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    "bitnet": {"tie_word_embeddings": True},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "hunyuan_v1_moe": {"num_experts": 16, "moe_topk": 2},
    "step3p5": {
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 15,
    },
}


def candidate(model_type: str, published: dict[str, list[Model]]) -> Model:
    """The model to ask about: a published one, else the class's defaults."""
    for model in sorted(published.get(model_type, ()), key=lambda one: one.count.params):
        with contextlib.suppress(MembudgetError):
            metadata(model, {item.name: item.shape for item in tensors(gguf("q4_k_m", "Q4_K_M"), model)})
            return model
    return build({"model_type": model_type, **GIVEN.get(model_type, {})}, name=model_type)


def published_models() -> dict[str, list[Model]]:
    """The package's own configs by model_type."""
    found: dict[str, list[Model]] = {}
    for path in sorted((ROOT / "membudget" / "data" / "models").glob("*--*.json")):
        try:
            model = build(path, name=path.stem)
            _ = model.count.params
        except MembudgetError:
            continue
        found.setdefault(model.model_type, []).append(model)
    return found


def entry(model: Model) -> dict[str, Any]:
    """One row of the census."""
    layout = gguf("q4_k_m", "Q4_K_M")
    row: dict[str, Any] = {"model": model.name, "architecture": ARCHITECTURES[model.model_type]}
    try:
        entries = tensors(layout, model)
        keys = metadata(model, {item.name: item.shape for item in entries})
        answers = ask(model, layout, GRID)
    except OracleError as error:
        return {**row, "refused": "llama.cpp", "why": str(error)[:200]}
    except MembudgetError as error:
        return {**row, "refused": "membudget", "why": str(error)[:200]}
    header = Header(keys, {item.name: item.shape for item in entries})
    row["grid"] = [compare(header, answer) for answer in answers]
    return row


def compare(header: Header, answer: Any) -> dict[str, Any]:
    """Bytes that llama.cpp says and ours, for one setting."""
    if answer.error:
        return {"refused": answer.error[:120]}
    asked = answer.prints
    out: dict[str, Any] = {
        "cache": [asked.cache_bytes, None], "state": [asked.state_bytes, None],
        "compute": [sum(asked.compute.values()), None],
    }  # fmt: skip
    try:
        parts = caches(header, answer.settings)
        out["cache"][1] = sum(part.bytes for part in parts if part.name != "recurrent")
        out["state"][1] = sum(part.bytes for part in parts if part.name == "recurrent")
    except MembudgetError:
        pass
    with contextlib.suppress(ComputeError):
        out["compute"][1] = compute_buffer(header, answer.settings)
    return out


def main() -> None:
    """Run the census and write it."""
    find_library()
    published = published_models()
    wanted = sys.argv[1:] or sorted(ARCHITECTURES)
    old = json.loads(OUT.read_text()) if OUT.exists() and sys.argv[1:] else {}
    rows = dict(old.get("types", {}))
    for model_type in wanted:
        try:
            model = candidate(model_type, published)
        except MembudgetError as error:
            rows[model_type] = {
                "architecture": ARCHITECTURES[model_type],
                "refused": "membudget",
                "why": str(error)[:200],
            }
            continue
        rows[model_type] = entry(model)
        row = rows[model_type]
        print(model_type, row["why"] if "why" in row else verdict(row), flush=True)
        save(rows)


def save(rows: dict[str, Any]) -> None:
    """Write what there is."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    document = {"llama.cpp": "v0.4.0", "by": "tools/llama_census.py", "settings": len(GRID), "types": rows}
    lines = json.dumps(document, separators=(",", ":"), sort_keys=True).replace('},"', '},\n"')
    OUT.write_text(lines + "\n")


def verdict(row: dict[str, Any]) -> str:
    """In a word: how far the figures differ."""
    worst = {"cache": 0.0, "state": 0.0, "compute": 0.0}
    for cell in row["grid"]:
        for name in worst:
            if name in cell:
                asked, ours = cell[name]
                off = float("inf") if ours is None else abs(ours - asked) / max(asked, 2**20)
                worst[name] = max(worst[name], off)
    return ", ".join(f"{name} {off:.2%}" for name, off in worst.items())


if __name__ == "__main__":
    main()
