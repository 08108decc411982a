"""What vLLM's own model classes hold on each rank: fixtures/oracle/ranks.json, the reference of `membudget.ranks`.

    PYTHON-WITH-VLLM tools/golden_ranks.py [--to FILE] [CASE ...]

Every class is built on the meta device with the tensor and pipeline groups faked to the sizes and
the rank that are asked for; nothing is loaded or computed.  A case names a fixture and parallel sizes.
Layers that hold the same parameters stand together.  Cases named on the command line are made anew, the others kept.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "membudget/engines/vllm/oracle/_child"))
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "fixtures/oracle/ranks.json"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)")

#: (fixture or tiny model, changes to its config).  ``-quant`` drops a declared quantization: vLLM's 16-bit classes.
PLAIN: dict[str, Any] = {"quantization_config": None}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
MODELS: dict[str, dict[str, Any]] = {
    "mistralai--Mixtral-8x7B-v0.1": {},  # the first one: only a mixture makes vLLM's expert-parallel group
    "meta-llama--Llama-3.1-8B": {},
    "meta-llama--Llama-3.2-1B": {},
    "meta-llama--Llama-3.1-70B": {},
    "Qwen--Qwen2.5-0.5B": {},
    "Qwen--Qwen2.5-7B": {},
    "Qwen--Qwen3-8B": {},
    "Qwen--Qwen3-30B-A3B": {},
    "Qwen--Qwen1.5-MoE-A2.7B": {},
    "deepseek-ai--DeepSeek-V2-Lite": {},
    "deepseek-ai--DeepSeek-V3": PLAIN,
    "google--gemma-2-9b": {},
    "google--gemma-3-27b-it": {},
    "microsoft--phi-4": {},
    "openai--gpt-oss-20b": PLAIN,
    "zai-org--GLM-4.5-Air": {},
    "nvidia--Nemotron-H-56B-Base-8K": {},
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {},
    "Qwen--Qwen3.5-9B": {},
    "Qwen--Qwen3.5-35B-A3B": {},
    "tiny:qwen3-next": {},
    "tiny:falcon-h1": {},
    "tiny:jamba": {},
    "tiny:granite-h": {},
    "tiny:mamba2": {},
    "Qwen--Qwen3-8B-FP8": {},
    "Qwen--Qwen3-30B-A3B-FP8": {},
    "meta-llama--Llama-3.1-405B-Instruct-FP8": {},
    "allenai--OLMo-2-1124-13B": {},
    "mistralai--Mistral-7B-v0.3": {},
    "google--gemma-2b": {},
    "MiniMaxAI--MiniMax-M2.5": PLAIN,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": {},
    "mistralai--Devstral-2-123B-Instruct-2512": PLAIN,
    "allenai--Olmo-3.1-32B-Instruct": {},
    "LGAI-EXAONE--EXAONE-4.0-32B": {},
    "zai-org--GLM-5": {},
    "CohereLabs--c4ai-command-r-v01": {},
    "stabilityai--stablelm-zephyr-3b": {},
    "microsoft--Phi-3.5-MoE-instruct": {},
    "deepseek-ai--DeepSeek-V3.2": PLAIN,
    "mistralai--Mistral-Small-3.2-24B-Instruct-2506": {},
    "moonshotai--Kimi-K2-Instruct": PLAIN,
    "openai--gpt-oss-120b": {},
    "nvidia--Llama-3.1-70B-Instruct-FP8": {},
    "deepseek-ai--DeepSeek-R1": {},
    "meta-llama--Llama-3.1-8B+awq": {"quantization_config": AWQ},
    "meta-llama--Llama-3.1-70B+gptq": {"quantization_config": GPTQ},
    "Qwen--Qwen3-235B-A22B+gptq": {"quantization_config": GPTQ},
}
#: (tp, pp) that every model is asked for.
SIZES = ((2, 1), (4, 1), (1, 3), (2, 2))


def asked(name: str) -> dict[str, Any]:
    """The config.json of a case."""
    if name.startswith("tiny:"):
        from tests_hw.tiny_models import TINY

        return copy.deepcopy(TINY[name.removeprefix("tiny:")])
    name = name.partition("+")[0]
    config: dict[str, Any] = json.loads((ROOT / f"membudget/data/models/{name}.json").read_text(encoding="utf-8"))
    return config


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With `changes`; None drops a key."""
    merged = {**config, **changes}
    return {key: value for key, value in merged.items() if key not in changes or value is not None}


def described(model: Any) -> dict[str, Any]:
    """Bytes by parameter: ``layers`` of like content together, and all that is in no layer."""
    layers: dict[int, dict[str, int]] = {}
    other: dict[str, int] = {}
    seen: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=True):
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        size = parameter.numel() * parameter.element_size()
        found = _LAYER.search(name)
        if found:
            layers.setdefault(int(found[1]), {})[found[2]] = size
        else:
            other[name] = other.get(name, 0) + size
    alike: dict[str, list[int]] = {}
    for index, held in sorted(layers.items()):
        alike.setdefault(json.dumps(held, sort_keys=True), []).append(index)
    return {"layers": [[indices, json.loads(text)] for text, indices in alike.items()], "other": other}


def caches(specs: dict[str, Any]) -> dict[str, int]:
    """Bytes a token of all attention layers that are alike, by kind; states are not compared here."""
    found: dict[str, int] = {}
    for spec in specs.values():
        kind = type(spec).__name__
        if kind != "MambaSpec":
            found[kind] = found.get(kind, 0) + spec.page_size_bytes // spec.block_size
    return found


def main(names: list[str], target: Path) -> None:
    """Ask all cases in this process."""
    import child
    import fake_cuda
    import pools
    import torch

    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 0.0 if self.is_meta else item(self)  # type: ignore[assignment, method-assign]
    fake_cuda.install((9, 0), 80 << 30)
    import vllm
    import vllm.distributed.parallel_state as parallel
    from vllm.config import set_current_vllm_config

    from membudget.engines.vllm.oracle.asking import text_only

    child.inspect_here()
    answer: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    version = vllm.__version__.partition("+")[0]
    answer["source"] = f"vLLM {version}, its own classes on the meta device, told of a CUDA device of capability 9.0"
    cases = answer.setdefault("cases", {})
    ready = False
    for name, changes in MODELS.items():
        if names and ready and name not in names:
            continue
        config = text_only(changed(asked(name), changes))
        entry: dict[str, Any] = {"changes": changes, "ranks": {}}
        for tp, pp in SIZES:
            if pp > config.get("num_hidden_layers", 0) or (name.startswith("tiny:") and pp > 1 and tp > 1):
                continue
            began = time.monotonic()
            key = f"tp{tp} pp{pp}"
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "model"
                place.mkdir()
                (place / "config.json").write_text(json.dumps(config))
                job = {"model": str(place), "tp": tp, "pp": pp, "engine": {"trust_remote_code": False}}
                try:
                    made = child.engine_config(job, "auto", {"max_model_len": 2048})
                    with set_current_vllm_config(made):
                        if not ready:
                            child.init_groups(job)
                            fake_cuda.before_models()
                            ready = True
                        group: Any = parallel.get_tp_group()
                        pipeline: Any = parallel.get_pp_group()
                        for stage in range(pp):
                            pipeline.ranks, pipeline.rank = list(range(pp)), stage
                            held = []
                            for rank in sorted({0, tp - 1}):
                                group.world_size, group.rank_in_group = tp, rank
                                made.compilation_config.static_forward_context.clear()
                                held.append(described(child.build(made, job, stage)))
                            held[0]["kv"] = caches(pools.layer_specs(made))
                            held[-1]["kv"] = held[0]["kv"]
                            if held[0] != held[-1]:
                                print(f"{name} {key}: ranks differ")
                            entry["ranks"].setdefault(key, []).append(held[0])
                except Exception as error:
                    entry["ranks"][key] = " ".join(f"{type(error).__name__}: {error}".split())[:400]
                    if os.environ.get("TRACE"):
                        import traceback

                        traceback.print_exc(limit=-8)
            state = entry["ranks"].get(key)
            said = state if isinstance(state, str) else ""
            print(f"{name} {key}: {time.monotonic() - began:.1f} s {said}", flush=True)
        cases[name] = entry
        target.write_text(json.dumps(answer, separators=(",", ":"), sort_keys=True) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    words = sys.argv[1:]
    to = TARGET
    if words[:1] == ["--to"]:
        to, words = Path(words[1]), words[2:]
    main(words, to)
