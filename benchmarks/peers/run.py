"""Weights and KV cache of a dozen models: membudget and its peers, each right or wrong, in one run.

    python benchmarks/peers/run.py [--envs FOLDER] [--time-only]

Makes a virtual environment for each tool, serves the models from a hub on localhost, asks
every tool for the same context and users in turn, and writes results.json and docs/peers.md.
hf-mem, kvfit, ridgepoint and modelinfo-cli have the hub's address written into them: in their
environments it is replaced, and with it their demand for https; accelerate takes HF_ENDPOINT;
sparkfit reads nothing, vramcalc and membudget a local config.json.  --time-only keeps the verdicts
and measures the times again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hub
from page import write
from peers import BUILTIN, DTYPE, PEERS, QUANT, Answer, Peer

CTX = 8192
USERS = 8
HERE = Path(__file__).parent
LIMIT = 120  # seconds for one answer
STARTS = 3  # of each tool for each model, in turn
SLOW = 2  # seconds: a tool that takes longer is started once


def prepare(name: str, peer: Peer, envs: Path) -> str:
    """The tool in an environment of its own; its version."""
    folder = envs / name
    if not folder.exists():
        venv.create(folder, with_pip=True)
        package = str(hub.ROOT) if name == "membudget" else peer.package
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", package, *peer.needs], check=True)
    asked = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    return subprocess.run(
        [folder / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True
    ).stdout.strip()


def point_at(url: str, envs: Path) -> None:
    """Replace the hub's address where a tool has it in its source."""
    for module in ("hf-mem/**/hf_mem", "kvfit/**/kvfit", "ridgepoint/**/ridgepoint", "modelinfo-cli/**/modelinfo"):
        for path in envs.glob(f"{module}/**/*.py"):
            text = path.read_text(encoding="utf-8")
            new = re.sub(r"https://huggingface\.co|http://127\.0\.0\.1:\d+", url, text)
            new = new.replace('startswith("https://")', 'startswith("http")')
            if new != text:
                path.write_text(new, encoding="utf-8")


def ask(name: str, peer: Peer, model: str, envs: Path, work: Path, url: str) -> tuple[Answer | str, float]:
    """Its answer, or why there is none; seconds from start to exit."""
    folder = work / model.replace("/", "--")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hub.config_of(model)), encoding="utf-8")
    if any("{builtin}" in word for word in peer.command) and model not in BUILTIN:
        return "not offered", 0.0
    known = {"model": model, "folder": folder, "builtin": BUILTIN.get(model), "ctx": CTX, "users": USERS}
    known |= {"quant": QUANT.get(model, "bf16"), "dtype": DTYPE.get(model, "fp16")}
    command = [word.format(**known) for word in peer.command]
    command[0] = str(envs / name / "bin" / command[0])
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(work / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"COLUMNS": "200"}
    environment.pop("PYTHONPATH", None)
    start = time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"error: no answer in {LIMIT} s", float(LIMIT)
    seconds = time.perf_counter() - start
    try:
        return peer.parse(done.stdout, USERS), seconds
    except (ValueError, KeyError, TypeError):
        said = ((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1][:160]
        return ("not offered: " if "not supported" in said else "error: ") + said, seconds


def judge(told: float | None, truths: list[int], printed: Callable[[float], float]) -> dict[str, Any] | str:
    """How far from the nearest truth; `exact` allows for the digits a tool prints."""
    if told is None:
        return "not offered"
    truth = min(truths, key=lambda value: abs(value - told))
    off = abs(told - truth)
    return {
        "told": told,
        "truth": truth,
        "exact": off <= printed(told) + 1e-3,
        "near": off <= truth / 100,
        "off": told / truth - 1,
    }


def main() -> None:
    """Ask everyone everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--envs", type=Path, default=Path(tempfile.gettempdir()) / "membudget-peers")
    parser.add_argument("--time-only", action="store_true", help="keep the verdicts of results.json")
    args = parser.parse_args()
    versions = {name: prepare(name, peer, args.envs) for name, peer in PEERS.items()}
    server = hub.serve()
    url = f"http://127.0.0.1:{server.server_port}"
    point_at(url, args.envs)
    rows: dict[str, dict[str, Any]] = {model: {} for model in hub.MODELS}
    times: dict[str, list[float]] = {name: [] for name in PEERS}
    with tempfile.TemporaryDirectory() as folder:
        for name, peer in PEERS.items():  # bytecode and page cache
            ask(name, peer, next(iter(hub.MODELS)), args.envs, Path(folder), url)
        for model, facts in hub.MODELS.items():
            taken: dict[str, list[float]] = {}
            files = sum(size for file, (_, size) in hub.files_of(model).items() if file.endswith(".safetensors"))
            for start, (name, peer) in itertools.product(range(STARTS), PEERS.items()):
                if start and (name not in taken or taken[name][0] > SLOW):
                    continue
                answer, seconds = ask(name, peer, model, args.envs, Path(folder), url)
                if isinstance(answer, str):
                    rows[model][name] = answer
                    continue
                taken.setdefault(name, []).append(seconds)
                weights, cache = answer
                rows[model][name] = {
                    "weights": judge(weights, [*facts["weights"], files], peer.printed[0]),
                    "kv_cache": judge(cache, facts["kv_cache"], peer.printed[1]),
                }
                print(model, name, f"{seconds:.2f} s", file=sys.stderr)
            for name, several in taken.items():
                times[name].append(statistics.median(several))
    server.shutdown()
    results = {
        "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "ctx": CTX, "users": USERS, "versions": versions,
        "seconds": {name: statistics.median(taken) if taken else None for name, taken in times.items()}, "models": rows,
    }  # fmt: skip
    stored = HERE / "results.json"
    if args.time_only:
        results["models"] = json.loads(stored.read_text(encoding="utf-8"))["models"]
    stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write(results, hub.MODELS, hub.ROOT / "docs" / "peers.md")


if __name__ == "__main__":
    main()
