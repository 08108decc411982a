"""Every key of every model_type, changed alone: our counts against the installed transformers.

    python tools/one_key.py OUT.jsonl [--part 1/3] [type ...]

One line a difference: ``{"type", "key", "value", "ours", "theirs"}``; ours is an error's text where we refuse what
transformers builds.  The last line has the figures.  What is explained stands in tests_math/model/one_key_explained.py.
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

from tests_math.model import family_reference as ref  # noqa: E402
from tests_math.model.one_key_reference import differences  # noqa: E402


def main() -> None:
    """Compare and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("types", nargs="*")
    args = parser.parse_args()
    census = json.loads((ROOT / "fixtures" / "census.json").read_text(encoding="utf-8"))["types"]
    names = [name for name in sorted(census) if name not in ref.TOWERS and name not in ref.UNBUILDABLE]
    part, parts = (int(number) for number in args.part.split("/"))
    figures: dict[str, Any] = {"types": 0, "compared": 0, "differ": 0}
    with open(args.out, "w", encoding="utf-8") as file:
        for name in args.types or names[part - 1 :: parts]:
            compared, found = differences(name, census[name])
            for one in found:
                print(json.dumps(one._asdict(), default=str), file=file, flush=True)
            figures["types"] += bool(compared)
            figures["compared"] += compared
            figures["differ"] += len(found)
            gc.collect()
        print(json.dumps(figures), file=file)


if __name__ == "__main__":
    main()
