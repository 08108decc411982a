"""Compare our counts with another version of transformers; add the result to fixtures/census_versions.json.

    python tools/census_versions.py      # with that version installed

Takes the configs of fixtures/census.json, which name keys as the newest version does: a type or
a key that the other version does not know is left out or differs, and is listed.
"""

from __future__ import annotations

import copy
import gc
import json
import pathlib
import sys
import warnings
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.model import build  # noqa: E402
from tests_math.model.family_reference import TOWERS, UNBUILDABLE, raw, refusals  # noqa: E402

OUT = ROOT / "fixtures" / "census_versions.json"


def count(model_type: str, config: dict[str, Any], under: str | None) -> int | None:
    """Parameters by the installed transformers, or None where it cannot build this."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = copy.deepcopy(config)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = AutoConfig.for_model(model_type, **({under: given} if under and given else {} if under else given))
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(made)
    except refusals():
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Compare every type, and keep what differs."""
    import transformers

    transformers.logging.set_verbosity_error()
    census = json.loads((ROOT / "fixtures" / "census.json").read_text(encoding="utf-8"))["types"]
    exact, compared, differ, unknown = 0, 0, {}, []
    for model_type, row in sorted(census.items()):
        if model_type in TOWERS or model_type in UNBUILDABLE:
            continue
        under, off, known = row.get("under"), [], 0
        for config in ({}, *(one["config"] for one in row["random"][:3])):
            theirs = count(model_type, config, under)
            if theirs is None:
                continue
            ours = build(raw(model_type, config, under)).count.params
            known += 1
            exact += ours == theirs
            if ours != theirs:
                off.append(ours - theirs)
        compared += known
        if off:
            differ[model_type] = off[0]
        if not known:
            unknown.append(model_type)
        gc.collect()
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    found[transformers.__version__] = {"exact": exact, "compared": compared, "differ": differ, "unknown": unknown}
    OUT.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
