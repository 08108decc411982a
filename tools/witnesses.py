"""Who counts a model_type beside transformers 5.24's class: published totals, vLLM's own class, older versions."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.model import build  # noqa: E402

FIXTURES = ROOT / "fixtures"
#: Why vLLM's class holds another number, looked up in vLLM 0.32's models/.
VLLM_DIFFERS = {
    "gemma4_text": "it has experts where num_experts is set, transformers where enable_moe_block is",
}
#: Hub configs in fixtures/hostile, counted by a witness that is not 5.24's class (its README).
HOSTILE = {
    "longcat_flash": "LongCat-Flash-Chat: 560 B published, 4.57.6 exact",
    "hunyuan_v1_moe": "Hunyuan-A13B's hub form: 4.57.6 exact",
    "gpt_bigcode": "santacoder: published total",
}


def _json(name: str) -> Any:
    path = FIXTURES / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def published() -> dict[str, list[str]]:
    """The repositories whose published total a test explains to the element, by model_type."""
    found = {name: [row["repo"]] for name, row in _json("published_types.json")["types"].items()}
    folder = ROOT / "membudget" / "data" / "models"
    for name in _json("published_params.json")["models"]:
        model = build(str(folder / f"{name.replace('/', '--')}.json"), name)
        found.setdefault(model.model_type, []).append(name)
    return found


def of_vllm(model_type: str, rows: dict[str, Any]) -> str:
    """What vLLM's own class says; "" where it says nothing."""
    row = rows.get(model_type, {})
    if "params" not in row:
        return ""
    model = build(row["config"])
    stored = sum(t.elements for t in model.tensors if t.role != "mtp")
    off = model.count.params - row["params"]
    if off == 0 or stored == row["params"]:
        return "vLLM exact"
    return f"vLLM: ours {off:+,}, {VLLM_DIFFERS.get(model_type, 'not looked into')}"


def older(model_type: str, versions: dict[str, Any], reasons: dict[str, str]) -> list[str]:
    """What older versions say, the oldest that knows the type."""
    for version, row in versions.items():
        if model_type in row["unknown"]:
            continue
        off = row["differ"].get(model_type)
        return (
            [f"{version}: ours {off:+,}{f', {reasons[model_type]}' if model_type in reasons else ''}"]
            if off
            else [f"{version} exact"]
        )
    return []


def second(types: list[str], reasons: dict[str, str]) -> dict[str, str]:
    """By type: every witness beside the class of 5.24; or that there is none."""
    repos, rows = published(), _json("vllm_params.json").get("types", {})
    versions = _json("census_versions.json")
    out = {}
    for name in types:
        said = [f"published: {', '.join(repos[name][:2])}{' ...' * (len(repos[name]) > 2)}"] if name in repos else []
        said += [HOSTILE[name]] if name in HOSTILE else []
        said += [one] if (one := of_vllm(name, rows)) else []
        said += older(name, versions, reasons)
        out[name] = "; ".join(said) or "none: 5.24 alone"
    return out
