"""Write fixtures/census.json: parameter counts of every causal-LM model_type, by transformers itself.

    python tools/census.py [--draws 3] [type ...]

For each type the count of its class's default config, and of `draws` random small configs
(tests_math/model/random_configs.py) with a digest of the tensors' names and shapes.  Needs torch
and transformers; about three minutes on two cores.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import pathlib
import random
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests_math.model import family_reference as ref  # noqa: E402
from tests_math.model.random_configs import draw  # noqa: E402


def digest(tensors: dict[str, tuple[int, ...]]) -> str:
    """Of all names and shapes, in order."""
    return hashlib.sha256(
        json.dumps(sorted((name, list(shape)) for name, shape in tensors.items())).encode()
    ).hexdigest()[:16]


def one(model_type: str, draws: int, seed: str) -> dict[str, Any]:
    """The census of one type."""
    found: dict[str, Any] = {}
    try:
        defaults, under = ref.text_defaults(model_type)
        if under:
            found["under"] = under
    except ref.refusals() as error:
        return {"why": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    try:
        built = ref.reference(model_type, {}, under, names=False)
        found.update({"class": built.class_name, "default": built.params})
    except ref.refusals() as error:
        found["why"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    rng, rows = random.Random(model_type + seed), []
    for _ in range(3 * draws):
        if len(rows) == draws:
            break
        overrides = draw(model_type, defaults, rng)
        try:
            built = ref.reference(model_type, overrides, under)
        except ref.refusals():
            continue
        row = {"config": overrides, "params": built.params}
        if model_type not in ref.NAMES_DIFFER and not under:
            row["tensors"] = digest(built.tensors)
        rows.append(row)
        found["class"] = built.class_name
    found["random"] = rows
    return found


def main() -> None:
    """Take the census and write it."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", default="")
    parser.add_argument("--out", default=str(ROOT / "fixtures" / "census.json"))
    parser.add_argument("types", nargs="*")
    args = parser.parse_args()
    types: dict[str, Any] = {}
    for model_type in args.types or ref.causal_types():
        types[model_type] = one(model_type, args.draws, args.seed)
        gc.collect()
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(found, sort_keys=True)}" for name, found in sorted(types.items())
    )
    head = {"transformers": transformers.__version__, "torch": torch.__version__, "by": "tools/census.py"}
    pathlib.Path(args.out).write_text(f'{json.dumps(head)[:-1]},\n"types": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
