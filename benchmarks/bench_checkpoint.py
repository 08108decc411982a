"""How long headers take to read, beside a bare interpreter and the safetensors and gguf libraries.

    python benchmarks/bench_checkpoint.py [--runs 20] [--limits]

Writes its files itself (the data is a hole): Llama-3.1-8B as safetensors and as GGUF with a
vocabulary of 128,256 tokens and 280,147 merges, and an index of 60,000 tensors in 160 shards.
Whole processes are started in turn, in one run; bytecode is kept in a folder of its own, as an
installed package has it.  With --limits, exit code 1 says that the 8B header takes 2 or more
bare starts, or the 60,000-tensor index a second or more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SHARDS, TENSORS = 160, 60_000


def write(folder: Path) -> tuple[Path, Path, Path]:
    """The 8B safetensors file, the 8B GGUF file, the sharded folder."""
    from membudget.model import build
    from membudget.sources.locate import locate
    from tests_math.checkpoint.checkpoint_files import (
        gguf_keys,
        gguf_tensors,
        stored,
        write_gguf,
        write_safetensors,
        write_shards,
    )

    config = locate("meta-llama/Llama-3.1-8B", offline=True).config
    assert config is not None
    llama = build(config)
    plain = write_safetensors(folder / "model.safetensors", stored(llama), {"format": "pt"})
    keys = gguf_keys(llama)
    keys["tokenizer.ggml.tokens"] = [f"tok{number}" for number in range(128_256)]
    keys["tokenizer.ggml.merges"] = [f"to k{number}" for number in range(280_147)]
    keys["tokenizer.ggml.token_type"] = [1] * 128_256
    gguf = write_gguf(folder / "llama.gguf", "llama", keys, gguf_tensors(llama, "Q4_K"))
    names = [
        f"model.layers.{number % 61}.mlp.experts.{number // 61}.{('gate', 'up', 'down')[number % 3]}_proj.weight"
        for number in range(TENSORS)
    ]
    parts: list[dict[str, Any]] = [{} for _ in range(SHARDS)]
    for number, name in enumerate(names):
        parts[number * SHARDS // TENSORS][name] = ("F8_E4M3", (2048, 7168))
    (folder / "big").mkdir()
    return plain, gguf, write_shards(folder / "big", parts)


def process(code: str, bytecode: str) -> float:
    """Seconds from start to exit of a process that runs this code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - start


def timed(call: Callable[[], Any], runs: int) -> float:
    """The median seconds of CPU of a call in this process: whatever else the machine does falls on none."""
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="starts of each process; default: 20")
    parser.add_argument("--limits", action="store_true", help="exit with 1 where a limit is passed")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error("--runs is a whole number >= 1")
    import gguf as gguf_library
    from safetensors import safe_open

    from membudget.checkpoint import read_path
    from membudget.checkpoint.safetensors_json import parse_index

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, gguf, big = write(folder)
        read = "from membudget.checkpoint import read_path; read_path({!r})".format
        codes = {
            "python -c pass": "pass",
            "ours, 8B safetensors": read(str(plain)),
            "safetensors library, the same": "import safetensors\n"
            f"with safetensors.safe_open({str(plain)!r}, 'np') as f:\n"
            "    [(k, f.get_slice(k).get_shape()) for k in f.keys()]",
            "ours, 8B GGUF with its vocabulary": read(str(gguf)),
        }
        times: dict[str, list[float]] = {label: [] for label in codes}
        for code in codes.values():
            process(code, name + "/pyc")
        for _ in range(args.runs):
            for label, code in codes.items():
                times[label].append(process(code, name + "/pyc"))
        bare = statistics.median(times["python -c pass"])
        print(f"whole processes, median of {args.runs}")
        ratios = {label: statistics.median(seconds) / bare for label, seconds in times.items()}
        for label, ratio in ratios.items():
            print(f"  {label:36} {ratio * bare * 1000:9.1f} ms  {ratio:5.2f} x bare")

        def shards() -> None:
            for path in sorted(big.glob("*.safetensors")):
                with safe_open(path, "np") as file:
                    [(key, file.get_slice(key).get_dtype()) for key in file.keys()]  # noqa: SIM118 - not a dict

        index = big / "model.safetensors.index.json"
        content = index.read_bytes()
        inside = {
            f"ours, index of {TENSORS:,} and its {SHARDS} headers": timed(lambda: read_path(str(big)), 3),
            "safetensors library, the headers": timed(shards, 3),
            "ours, the index alone": timed(lambda: parse_index(content, "index"), 3),
            "json.loads, the index alone": timed(lambda: json.loads(content), 3),
            "ours, 8B GGUF": timed(lambda: read_path(str(gguf)), 3),
            "gguf library, 8B GGUF (once)": timed(lambda: gguf_library.GGUFReader(gguf), 1),
        }
    print("in one process, CPU time, median of 3")
    for label, seconds in inside.items():
        print(f"  {label:46} {seconds * 1000:9.1f} ms")
    slow = ratios["ours, 8B safetensors"] >= 2 or next(iter(inside.values())) >= 1
    return 1 if args.limits and slow else 0


if __name__ == "__main__":
    sys.exit(main())
