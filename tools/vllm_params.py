"""Write fixtures/vllm_params.json: what vLLM's own model classes hold of each model_type, on the meta device.

    python tools/vllm_params.py PYTHON_OF_VLLM [type ...]

The second witness beside transformers' classes.  The configs have the sizes of the random ones of fixtures/census.json,
the flags of the class, and a vocabulary of 1,024 (vLLM pads it to multiples of 64).  Classes that vLLM borrows from
transformers are left out: they are no other witness.  A type has its parameters, or why there are none.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests_math.model.family_reference import TOWERS, UNBUILDABLE, raw  # noqa: E402

CHILD = ROOT / "membudget" / "engines" / "vllm" / "oracle" / "_child" / "child.py"
OUT = ROOT / "fixtures" / "vllm_params.json"
VOCABULARY = 1024
#: Keys of which vLLM's classes read other spellings, or none.
ONLY_TRANSFORMERS = {"ffn_hidden_size", "num_attention_heads_per_layer", "layer_types", "mlp_layer_types"}
#: Types whose architecture vLLM knows by another name than transformers' class, with keys that only the hub's files
#: have.  vLLM asks transformers for the type: one that is too old for it may be shadowed (PYTHONPATH).
HUB: dict[str, tuple[str, dict[str, Any]]] = {
    "exaone": ("ExaoneForCausalLM", {}),
    "internlm3": ("InternLM3ForCausalLM", {}),
    "iquestcoder": ("IQuestCoderForCausalLM", {}),
    "mimo_v2_flash": (
        "MiMoV2FlashForCausalLM",
        {
            "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "swa_num_attention_heads": 6,
            "swa_num_key_value_heads": 6, "swa_head_dim": 64, "swa_v_head_dim": 48, "sliding_window_size": 128,
            "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
            "attention_value_scale": 0.707, "partial_rotary_factor": 0.5, "rope_theta": 1e6, "swa_rope_theta": 1e4,
            "layernorm_epsilon": 1e-5, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
            "attention_bias": False, "sliding_window": 128,
        },
    ),
    # the sizes that its kernels have
    "sarvam_mla": (
        "SarvamMLAForCausalLM",
        {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512},
    ),
}  # fmt: skip
#: Prints which of these classes vLLM has itself.
KNOWN = """
import json, sys
from vllm.model_executor.models.registry import ModelRegistry
own = {}
for name, model in ModelRegistry.models.items():
    own[name] = getattr(model, "module_name", "")
print("KNOWN" + json.dumps(own))
"""


def asked(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the census, a vocabulary that vLLM does not pad, and the class's own flags.

    vLLM's classes know the flags of published checkpoints; others are transformers' alone.
    """
    keys = ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size")
    return {
        key: VOCABULARY if key in keys else value
        for key, value in config.items()
        if not isinstance(value, bool) and key not in ONLY_TRANSFORMERS
    }


def _class(name: str, row: dict[str, Any]) -> str:
    return HUB[name][0] if name in HUB else str(row.get("class", ""))


def main() -> None:
    """Ask and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--draw", type=int, default=0, help="which random config of a type")
    parser.add_argument("types", nargs="*")
    args = parser.parse_args()
    census = json.loads((ROOT / "fixtures" / "census.json").read_text(encoding="utf-8"))["types"]
    done = subprocess.run([args.python, "-c", KNOWN], capture_output=True, text=True, check=True)
    own = json.loads(done.stdout.rpartition("KNOWN")[2])
    part, parts = (int(number) for number in args.part.split("/"))
    todo = [
        name
        for name, row in sorted(census.items())
        if name not in TOWERS and name not in UNBUILDABLE
        and own.get(_class(name, row)) and len(row["random"]) > args.draw
        and ".transformers" not in own[_class(name, row)] and (not args.types or name in args.types)
    ][part - 1 :: parts]  # fmt: skip
    jobs, configs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in todo:
            row = census[name]
            place = pathlib.Path(folder, name)
            place.mkdir()
            config = raw(name, asked(row["random"][args.draw]["config"]), row.get("under"))
            configs.append({**config, **(HUB[name][1] if name in HUB else {})})
            document = {"architectures": [_class(name, row)], "torch_dtype": "bfloat16", **configs[-1]}
            (place / "config.json").write_text(json.dumps(document), encoding="utf-8")
            jobs.append({
                "model": str(place), "platform": "cuda", "capability": [9, 0], "total_bytes": 80 * 2**30,
                "integrated": False, "available": 8 * 2**30, "cases": [{"max_model_len": 64}],
            })  # fmt: skip
        # latent attention is computed like any other, which needs no kernel of the card and holds the same tensors
        environment = {**os.environ, "VLLM_MLA_DISABLE": "1"}
        question, answer = pathlib.Path(folder, "jobs.json"), pathlib.Path(folder, "answer.json")
        question.write_text(json.dumps(jobs), encoding="utf-8")
        subprocess.run(
            [args.python, str(CHILD), str(question), str(answer)], check=True, cwd=CHILD.parent, env=environment
        )
        answers = json.loads(answer.read_text(encoding="utf-8"))
    old = json.loads(pathlib.Path(args.out).read_text(encoding="utf-8")) if pathlib.Path(args.out).exists() else {}
    types: dict[str, dict[str, Any]] = old.get("types", {})
    version = old.get("vllm", "")
    for name, config, found in zip(todo, configs, answers, strict=True):
        version = found["version"]
        if found.get("params"):
            types[name] = {"config": config, "params": found["params"][0]}
        elif "params" not in types.get(name, {}):
            why = found["rows"][0].get("failed", "") if found["rows"] else "the process died"
            types[name] = {"config": config, "why": why.splitlines()[0][:160] if why else "no answer"}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(rows, sort_keys=True)}" for name, rows in sorted(types.items())
    )
    head = json.dumps({"vllm": version, "by": "tools/vllm_params.py"})
    pathlib.Path(args.out).write_text(f'{head[:-1]},\n"types": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
