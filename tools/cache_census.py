"""Write fixtures/cache_census.json: what transformers' caches hold, for every causal-LM model_type that runs.

    python tools/cache_census.py [--draws 2] [--out FILE] [type ...]

Tiny models with random weights (tests_math/model/cache_reference.py) get prompts of 7, 64 and 129 tokens in
two sequences, then decode steps; kept are the bytes of the cache's tensors and of the storages behind
them after the prompt and after steps 1 and 3, and StaticCache's where it runs.  Needs torch and
transformers; about ten minutes on one core.  Runs on older versions of transformers too.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests_math.model import cache_reference as caches  # noqa: E402
from tests_math.model import family_reference as ref  # noqa: E402


def one(model_type: str, draws: int) -> dict[str, Any]:
    """The census of one type: {"why": ...} where none of its draws runs."""
    found: dict[str, Any] = {}
    try:
        defaults, under = ref.text_defaults(model_type)
    except ref.refusals() as error:
        return {"why": shown(error)}
    if under:
        found["under"] = under
    rows: list[dict[str, Any]] = []
    for number in range(4 * draws):
        if len(rows) == draws:
            break
        config = caches.overrides(model_type, defaults, number)
        try:
            model = caches.build_real(model_type, config, under)
            runs = {str(prompt): caches.measure(model, prompt) for prompt in caches.PROMPTS}
            static = caches.measure_static(model)
        except ref.refusals() as error:
            found["why"] = shown(error)
            continue
        if not all(runs.values()):
            return {"why": "forward() returns no cache"}
        found["class"] = type(model).__name__
        row: dict[str, Any] = {"config": config, "runs": runs, "encoder": caches.source_tokens(model)}
        if static is not None:
            row["static"] = static
        rows.append(row)
    if rows:
        found.pop("why", None)
        found["draws"] = rows
    return found


def shown(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"


def main() -> None:
    """Measure and write."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", default=str(ROOT / "fixtures" / "cache_census.json"))
    parser.add_argument("types", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    types: dict[str, Any] = {}
    skipped = {*caches.UNMEASURED, *ref.UNBUILDABLE, *ref.TOWERS}
    for model_type in args.types or [name for name in ref.causal_types() if name not in skipped]:
        types[model_type] = one(model_type, args.draws)
        gc.collect()
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in sorted(types.items()))
    head = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "by": "tools/cache_census.py",
        "batch": caches.BATCH,
        "steps": caches.STEPS,
        "static_len": caches.STATIC_LEN,
    }
    pathlib.Path(args.out).write_text(f'{json.dumps(head)[:-1]},\n"types": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
