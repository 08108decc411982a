"""What vLLM allocates for LoRA adapters: fixtures/oracle/lora.json, the reference of `profile.lora`.

    PYTHON-WITH-VLLM tools/golden_lora.py

Each model is built on the meta device as tools/golden_ranks.py does; every module that takes adapters is replaced by
vLLM's own layer class (lora/layers), as its manager replaces them, and the stacked tensors are counted by module.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "membudget/engines/vllm/oracle/_child"))
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "fixtures/oracle/lora.json"
#: No mixtures: their experts' class wants kernels that only a GPU has.
MODELS = ("meta-llama--Llama-3.1-8B", "Qwen--Qwen2.5-0.5B")
SIZES, LORAS, RANK = (1, 2), 3, 16


def stacked(layer: Any) -> int:
    """Bytes of a layer's stacked tensors."""
    found = {name: value for name, value in vars(layer).items() if name.endswith("_stacked")}
    tensors = [each for value in found.values() for each in (value if isinstance(value, list | tuple) else [value])]
    return sum(each.numel() * each.element_size() for each in tensors)


def counted(model: Any, made: Any) -> dict[str, int]:
    """Bytes by the last part of the modules' names, all layers together."""
    import torch
    from vllm.config.lora import LoRAConfig
    from vllm.lora import utils
    from vllm.model_executor.layers.fused_moe import MoERunner

    config = LoRAConfig(max_loras=LORAS, max_lora_rank=RANK, lora_dtype=torch.bfloat16)
    supported = utils.get_supported_lora_modules(model)
    packed = utils.get_packed_modules_mapping(model)
    out: dict[str, int] = {}
    seen: set[int] = set()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in seen or not utils.is_supported_lora_module(name, module, supported):
            continue
        seen.add(id(module))
        leaf = name.rpartition(".")[2]
        if leaf == "lm_head":
            new = utils.from_layer_logits_processor(
                model.logits_processor, module, LORAS, config, made.model_config.hf_config
            )
        elif isinstance(module, MoERunner):
            continue  # its class wants kernels that only a GPU has
        else:
            new = utils.from_layer(module, LORAS, config, packed.get(leaf, []), made.model_config.hf_config)
            if new is module:
                continue
        out[leaf] = out.get(leaf, 0) + stacked(new)
    return out


def main() -> None:
    """Ask all cases in this process."""
    import child
    import fake_cuda
    import torch

    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 0.0 if self.is_meta else item(self)  # type: ignore[assignment, method-assign]
    fake_cuda.install((9, 0), 80 << 30)
    import vllm
    import vllm.distributed.parallel_state as parallel
    from vllm.config import set_current_vllm_config

    child.inspect_here()
    answer: dict[str, Any] = {"made by": "tools/golden_lora.py", "vllm": vllm.__version__.partition("+")[0]}
    answer |= {"max_loras": LORAS, "max_lora_rank": RANK, "dtype": "bfloat16", "cases": {}}
    ready = False
    for name in MODELS:
        config = json.loads((ROOT / f"membudget/data/models/{name}.json").read_text(encoding="utf-8"))
        for tp in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "model"
                place.mkdir()
                (place / "config.json").write_text(json.dumps(config))
                job = {"model": str(place), "tp": tp, "pp": 1, "engine": {"trust_remote_code": False}}
                made = child.engine_config(job, "auto", {"max_model_len": 2048})
                with set_current_vllm_config(made):
                    if not ready:
                        child.init_groups(job)
                        fake_cuda.before_models()
                        ready = True
                    group: Any = parallel.get_tp_group()
                    group.world_size, group.rank_in_group = tp, 0
                    made.compilation_config.static_forward_context.clear()
                    try:
                        found = counted(child.build(made, job, 0), made)
                    except (AssertionError, NotImplementedError, ValueError):  # how vLLM refuses a layout
                        import traceback

                        traceback.print_exc(limit=-6)
                        continue
                    answer["cases"].setdefault(name, {})[f"tp{tp}"] = found
                    print(name, tp, found, flush=True)
    TARGET.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main()
