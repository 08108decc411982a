"""The JSON Schema of every command's `--json` document: membudget/data/json/COMMAND.json.

    python tools/json_schemas.py

Written from what the commands print for the cases below: a key that every case has is required, a key of some cases
is optional, and a table whose keys are names of a user's things (`MAPS`) takes any.  A test validates other cases
against the files, with keys that no case has shown refused.  Commands that need a GPU, an engine or a network are
asked as far as they answer without.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.cli.commands import doctor  # noqa: E402
from membudget.cli.main import main as membudget  # noqa: E402
from membudget.doctor import Source  # noqa: E402
from tests_math.doctor.doctor_machine import Machine, idle_spark  # noqa: E402

FOLDER = ROOT / "membudget" / "data" / "json"
LOGS = ROOT / "fixtures" / "logs" / "cpu"
OTHERS = [path for kind in ("odd", "sizing") for path in sorted((LOGS.parent / kind).glob("*.log"))]
#: The test validates the other ones.
LOG_FILES = [*sorted(LOGS.glob("*.log")), *OTHERS[1::2]]
RUNS = str(ROOT / "fixtures" / "history")
#: Tables with names for keys, by command and path; a list has no step of its own.
MAPS = {
    "plan": ("suggestions.values", "changes.values", "plans.suggestions.values", "plans.changes.values", "assumed"),
    "count": ("assumed", "by_role", "roles"),
    "formats": ("refused",),
    "history": ("runs.versions", "runs.machine", "runs.flags", "runs.skipped", "lines.settings"),
    "diff": ("changed", "each.changed"),
    "report": ("budgets",),
    "log": ("settings", "figures"),
}
#: Each in a folder of its own, in order: `init` makes the budget that `check` reads.
CASES: dict[str, list[list[str]]] = {
    "plan": [
        ["Qwen/Qwen3-8B", "--machine", "h100"],
        ["Qwen/Qwen3-8B"],
        ["meta-llama/Llama-3.1-70B", "--machine", "rtx-4090"],
        ["meta-llama/Llama-3.1-70B", "--machine", "2x dgx-spark", "--users", "4"],
        ["google/gemma-3-27b-it", "--machine", "dgx-spark", "--engine", "llama_cpp", "--format", "q4_k_m"],
        ["openai/gpt-oss-20b", "--machine", "h100", "--engine", "transformers"],
        ["deepseek-ai/DeepSeek-V3", "--machine", "h200"],
        ["Qwen/Qwen3-8B", "--machine", "dgx-spark", "--gpu-memory-utilization", "1.0"],
        ["Qwen/Qwen3.5-9B", "--machine", "l4", "--users", "100", "--ctx", "32k"],
    ],
    "count": [
        ["Qwen/Qwen3-8B"],
        ["Qwen/Qwen3-30B-A3B", "--layers"],
        ["Qwen/Qwen2.5-VL-7B-Instruct", "--layers"],
        ["Qwen/Qwen3-8B", "--tensors"],
    ],
    "init": [
        ["Qwen/Qwen3-8B", "--machine", "h100"],
        ["meta-llama/Llama-3.1-70B", "--machine", "rtx-4090"],
        ["meta-llama/Llama-3.1-70B", "--machine", "rtx-4090", "--allow-misfit", "--ci"],
    ],
    "check": [[], [str(ROOT / "budgets")]],
    "fleet": [
        ["Qwen/Qwen3-8B"],
        ["meta-llama/Llama-3.1-405B", "--node", "8x h100-80gb"],
        ["--params", "70", "--layers", "80", "--kv-heads", "8"],
    ],
    "machines": [[], ["dgx-spark"]],
    "formats": [[], ["Qwen/Qwen3-8B", "--machine", "h100"]],
    "models": [[], ["qwen"]],
    "completion": [["bash"]],
    "pool": [
        ["Qwen/Qwen3-8B", "--machine", "h100"],
        ["google/gemma-3-27b-it", "--machine", "h100"],
        ["Qwen/Qwen3.5-9B", "--machine", "h100"],
        ["openai/gpt-oss-20b", "--machine", "h100"],
        ["google/gemma-2-9b", "--available-kv", "20GiB", "--max-num-batched-tokens", "8192"],
        ["deepseek-ai/DeepSeek-V3", "--machine", "h200"],
    ],
    "upgrade": [["0.24.0", "0.32.0", "google/gemma-2-9b", "--offline"], ["0.27.1", "0.32.0", str(ROOT / "budgets")]],
    "log": [[str(path)] for path in LOG_FILES],
    "history": [["--runs", RUNS], ["--runs", RUNS, "--lines"]],
    "diff": [
        ["transformers==5.8.0", "transformers==5.24.0", "--runs", RUNS],
        ["--each", "--runs", RUNS],
        [str(LOGS / "0.32.0-llama.log"), str(LOGS / "0.32.0-err-util0.99.log")],
    ],
    "explore": [["Qwen/Qwen3-8B", "--offline"]],
    "report": [[str(ROOT / "budgets")], ["last", "--runs", RUNS]],
    "doctor": [[]],
    "probe": [[], [str(ROOT / "budgets" / "qwen3-8b-bf16.dgx-spark.yaml"), "--dry-run"]],
}


def documents(command: str, cases: Iterable[list[str]]) -> list[Any]:
    """What the command prints with --json; errors are left out, they have a schema of their own."""
    found = []
    for words in cases:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            membudget([command, *words, "--json"])
        document = json.loads(out.getvalue())
        if not (isinstance(document, dict) and set(document) == {"error"}):
            found.append(document)
    return found


def of_machines() -> list[Any]:
    """The doctor's documents of this machine, of one that knows everything, and of one that knows nothing."""
    found = []
    with tempfile.TemporaryDirectory() as root:
        nothing = Path(root, "nothing")
        for world in (Source(), idle_spark(Path(root, "spark")), Machine(nothing), Machine(nothing, "darwin")):
            with mock.patch.object(doctor, "SOURCE", return_value=world):
                found += documents("doctor", CASES["doctor"])
    return found


def schema(values: list[Any], maps: tuple[str, ...], path: str = "") -> dict[str, Any]:
    """The narrowest schema of our kind that takes all the values; any where there are none."""
    if not values:
        return {}
    kinds: dict[str, list[Any]] = {}
    for value in values:
        kinds.setdefault(_kind(value), []).append(value)
    parts = []
    for kind in sorted(kinds):
        part: dict[str, Any] = {"type": kind}
        if kind == "object":
            part |= _object(kinds[kind], maps, path)
        elif kind == "array":
            items = [item for value in kinds[kind] for item in value]
            if items:
                part["items"] = schema(items, maps, path)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    if all(len(part) == 1 for part in parts):
        names = [part["type"] for part in parts]
        return {"type": [name for name in names if not (name == "integer" and "number" in names)]}
    return {"anyOf": parts}


def _object(values: list[Any], maps: tuple[str, ...], path: str) -> dict[str, Any]:
    keys = dict.fromkeys(key for value in values for key in value)
    named = path in maps or any(not key.replace("_", "").isalnum() or key[:1].isdigit() for key in keys)
    if named and path:
        return {"additionalProperties": schema([item for value in values for item in value.values()], maps, path)}
    below = {key: f"{path}.{key}".lstrip(".") for key in keys}
    properties = {key: schema([v[key] for v in values if key in v], maps, below[key]) for key in keys}
    required = [key for key in keys if all(key in value for value in values)]
    return {"properties": properties, "required": required, "additionalProperties": False}


def _kind(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "exit_code": {"type": "integer"},
            },
            "required": ["type", "code", "message", "exit_code"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}


def main() -> int:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory(prefix="membudget-json-") as folder:
        os.chdir(folder)
        for command, cases in CASES.items():
            values = of_machines() if command == "doctor" else documents(command, cases)
            found = schema(values, MAPS.get(command, ()))
            whole = {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": f"membudget {command} --json",
                **found,
            }
            (FOLDER / f"{command}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            print(f"{command}: {len(cases)} cases")
    (FOLDER / "error.json").write_text(json.dumps(ERROR, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
