"""Regenerates fixtures/oracle/start.json: what vLLM's own functions say of sizes at the edge of each rule.

python tools/golden_start.py --vllm /path/to/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATH = os.path.join(HERE, "fixtures", "oracle", "start.json")
GIB = 2**30
SIZES = {"max_model_len": 4096, "max_num_batched_tokens": 4096, "max_num_seqs": 256, "enable_chunked_prefill": False}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("scheduler", SIZES),
    ("scheduler", {**SIZES, "max_num_batched_tokens": 4095}),
    ("scheduler", {**SIZES, "max_num_batched_tokens": 2048, "enable_chunked_prefill": True}),
    ("scheduler", {**SIZES, "max_num_seqs": 4096}),
    ("scheduler", {**SIZES, "max_num_seqs": 4097}),
    ("scheduler", {**SIZES, "long_prefill_token_threshold": 4096, "enable_chunked_prefill": True}),
    ("scheduler", {**SIZES, "long_prefill_token_threshold": 4097, "enable_chunked_prefill": True}),
    *[
        ("heads", {"heads": heads, "kv_heads": kv, "tp": tp, "dcp": dcp})
        for heads, kv, tp, dcp in (
            (32, 8, 8, 1), (32, 8, 3, 1), (28, 4, 8, 1), (64, 4, 8, 2), (64, 4, 4, 2), (64, 4, 8, 4), (12, 2, 6, 3),
            (10, 2, 10, 4), (6, 2, 6, 2),
        )
    ],
    *[("experts", {"width": n, "block": [128, 128], "tp": tp}) for n, tp in ((768, 1), (192, 4), (384, 2), (96, 8))],
    ("experts", {"width": 192, "block": [64, 128], "tp": 4}),
    *[
        ("linear", {"input": n, "output": [512], "cut": "input", "block": [128, 128], "tp": tp})
        for n, tp in ((3584, 4), (1792, 8), (4736, 4), (2368, 8))
    ],
    *[
        ("linear", {"input": 512, "output": [n, n], "cut": "output", "block": [128, 128], "tp": tp})
        for n, tp in ((3584, 4), (1792, 8), (4736, 4), (2368, 8))
    ],
    ("memory", {"total": 80 * GIB, "free": 79 * GIB, "utilization": 0.92}),
    ("memory", {"total": 80 * GIB, "free": 73 * GIB, "utilization": 0.92}),
    ("memory", {"total": 1000, "free": 920, "utilization": 0.92}),
    ("memory", {"total": 130_663_546_880, "free": 111_000_000_000, "utilization": 0.9}),
    ("mamba", {"max_num_seqs": 1024, "num_blocks": 403, "eager": False}),
    ("mamba", {"max_num_seqs": 403, "num_blocks": 403, "eager": False}),
    ("mamba", {"max_num_seqs": 404, "num_blocks": 403, "eager": False}),
    ("mamba", {"max_num_seqs": 1024, "num_blocks": 403, "eager": True}),
    ("multimodal", {"item": 16_384, "batched": 8_192, "whole": True}),
    ("multimodal", {"item": 8_192, "batched": 8_192, "whole": True}),
    ("multimodal", {"item": 16_384, "batched": 8_192, "whole": False}),
]  # fmt: skip


def main() -> int:
    """Ask once, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, help="its python")
    a = parser.parse_args()
    script = os.path.join(HERE, "membudget", "engines", "vllm", "oracle", "_child", "refusals.py")
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = os.path.join(folder, "cases.json"), os.path.join(folder, "answers.json")
        with open(asked, "w", encoding="utf-8") as file:
            json.dump(CASES, file)
        subprocess.run([a.vllm, script, asked, answer], check=True)
        with open(answer, encoding="utf-8") as file:
            found = json.load(file)
    rows = ",\n  ".join(json.dumps(row) for row in found["rows"])
    source = f"vLLM {found['version']}'s own functions, asked with tools/golden_start.py"
    with open(PATH, "w", encoding="utf-8") as file:
        file.write(
            f'{{"source": {json.dumps(source)}, "version": {json.dumps(found["version"])}, "rows": [\n  {rows}]}}\n'
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
