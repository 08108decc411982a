"""Write fixtures/cache_coverage.json: whose caches are byte-exact, for docs/coverage.md.

    python tools/cache_coverage.py && python tools/coverage.py

Torch-free: compares membudget.engines.transformers.caches with fixtures/cache_census.json.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.engines.transformers.caches import cache_bytes  # noqa: E402
from membudget.model import build  # noqa: E402
from tests_math.model.cache_reference import UNMEASURED  # noqa: E402


def verdict(model_type: str, row: dict[str, Any], census: dict[str, Any]) -> str:
    """``exact``, or what is not."""
    if "draws" not in row:
        return f"not run: {row['why']}"
    for draw in row["draws"]:
        under = row.get("under")
        model = build({"model_type": model_type, **({under: draw["config"]} if under else draw["config"])})
        for prompt, measured in draw["runs"].items():
            for step, held in zip((0, *census["steps"]), measured, strict=True):
                ours = cache_bytes(
                    model,
                    int(prompt) + step,
                    census["batch"],
                    stage="decode" if step else "prefill",
                    encoder_tokens=draw["encoder"],
                )
                if [ours.tensors, ours.storage] != held:
                    return f"off by {ours.storage - held[1]:,} B of {held[1]:,} B"
    return "exact"


def main() -> None:
    """Compare and write."""
    census = json.loads((ROOT / "fixtures" / "cache_census.json").read_text(encoding="utf-8"))
    found = {name: verdict(name, row, census) for name, row in census["types"].items()}
    found.update({name: f"not run: {why}" for name, why in UNMEASURED.items()})
    text = json.dumps(found, indent=1, sort_keys=True)
    (ROOT / "fixtures" / "cache_coverage.json").write_text(text + "\n", encoding="utf-8")
    print(sum(value == "exact" for value in found.values()), "exact of", len(found))


if __name__ == "__main__":
    main()
