"""Write docs/coverage.md: every model_type, its blocks, and what is proven about it.

    python tools/coverage.py

Torch-free: parameters against fixtures/census.json, caches against fixtures/cache_coverage.json
(``{model_type: "exact" or why not}``; written by whoever proves the caches, may be missing).
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from membudget.model import build  # noqa: E402
from membudget.model.blocks import NOTHING, Block  # noqa: E402
from membudget.model.families import Family, find  # noqa: E402
from membudget.model.wrappers import STYLE_OF, TEXT_TYPES  # noqa: E402
from tests_math.model.family_reference import NAMES_DIFFER, READ_OTHERWISE, TOWERS, UNBUILDABLE, beyond, inventory, raw  # noqa: E402
from tests_math.model.one_key_explained import EVERY, OLD, REFUSED  # noqa: E402
from tests_math.model.random_special import DROPPED  # noqa: E402
from tools.census import digest  # noqa: E402
from tools.witnesses import second  # noqa: E402

#: The blocks of membudget/model/{attention,latent,feedforward,state}.py; any other is one family's own.
SHARED = (
    "gqa",
    "mla",
    "glu",
    "mlp",
    "half_gated",
    "moe",
    "mamba1",
    "mamba2",
    "delta_net",
    "kda",
    "short_conv",
    "lightning",
)


def names(block: Block) -> list[str]:
    """The shared blocks in this one; ``own`` for code of the family's own."""
    if block.parts:
        return [name for part in block.parts for name in names(part)]
    if block is NOTHING:
        return []
    function = block.tensors.__qualname__.partition(".")[0]
    if function in SHARED:
        return [function]
    return [] if function in ("norms", "weight", "project", "buffer") else ["own"]


def blocks(family: Family) -> str:
    """The blocks of a family's layers, each once, shared ones first."""
    found = dict.fromkeys(name for block in family.layer for name in names(block))
    return " ".join(sorted(found, key=lambda name: name == "own")) or "own"


def params(model_type: str, row: dict[str, Any]) -> tuple[str, str]:
    """(default, random): exact, or what is not."""
    default = "not buildable"
    if "default" in row:
        model = build({"model_type": model_type})
        ours = model.count.params + beyond(model)
        default = "exact" if ours == row["default"] else f"off by {ours - row['default']:,}"
    right = 0
    for one in row["random"]:
        model = build(raw(model_type, one["config"], row.get("under")))
        named = model_type in NAMES_DIFFER or "tensors" not in one or digest(inventory(model.tensors)) == one["tensors"]
        right += model.count.params + beyond(model) == one["params"] and named
    drawn = len(row["random"])
    return default, f"exact {right} of {drawn}" if drawn else "not buildable"


def main() -> None:
    """Write the page."""
    census = json.loads((ROOT / "fixtures" / "census.json").read_text(encoding="utf-8"))
    path = ROOT / "fixtures" / "cache_coverage.json"
    caches: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows, exact, buildable, left_out = [], 0, 0, []
    reasons = {model_type: why for why, types in WHY.items() for model_type in types.split()}
    witnesses = second(sorted(census["types"]), reasons)
    for model_type, row in sorted(census["types"].items()):
        if model_type in UNBUILDABLE or model_type in TOWERS:
            family = find(TEXT_TYPES.get(model_type, model_type))
            why = UNBUILDABLE.get(model_type, "has a tower beside the text model")
            text = TEXT_TYPES.get(model_type)
            left_out.append(f"| `{model_type}` | {why} | {f'`{text}`' if text and family else ''} |")
            continue
        family = find(model_type) or find(TEXT_TYPES[model_type])
        assert family is not None, model_type
        default, drawn = params(model_type, row)
        buildable += 1
        good = "off" not in default and drawn.split()[1:2] == drawn.split()[3:4]
        exact += good
        cache = caches.get(model_type, "")
        rows.append(f"| `{model_type}` | {blocks(family)} | {default} | {drawn} | {cache} | {witnesses[model_type]} |")
    alone = sum("| none:" in row for row in rows)
    remote = sorted({t for t in _remote() if t not in census["types"]})
    known = sum(value == "exact" for value in caches.values())
    page = f"""# Coverage

**Parameters exact for {exact} of {buildable} causal-LM types** of transformers {census["transformers"]}\
{f", caches byte-exact for {known}" if known else ""}. \
Written by `python tools/coverage.py` from `fixtures/census.json`; do not edit.

Exact means: from config.json alone, the same number of parameters as the model that transformers builds on the \
meta device, for the class's default config and for random configs that vary every width, rank, pattern and flag. \
In the random ones every tensor's name and shape is compared as well, with the names that `save_pretrained` writes. \
The nightly run draws new ones (`MEMBUDGET_FULL=1 pytest -m transformers tests_math/model`).

## Types

`own` is a part that no shared block makes, written beside its family. The second witness is not 5.24's class: \
a published total that a test explains to the element (`fixtures/published_params.json`), vLLM's own model class on \
the meta device (`fixtures/vllm_params.json`; classes that vLLM borrows from transformers are no witness), or the \
oldest of two older versions of transformers that knows the type. {alone} types have none.

| type | blocks | default config | random configs | cache | second witness |
|---|---|---|---|---|---|
{chr(10).join(rows)}

## Left out

{len(left_out)} of the 196 names. A type without a recipe is refused by name; of a wrapper the text model is counted.

| type | why | text model |
|---|---|---|
{chr(10).join(left_out)}

## Wrappers

The text model inside {len(STYLE_OF)} multimodal wrappers is counted under the wrapper's own tensor names: \
{", ".join(f"`{name}`" for name in sorted(STYLE_OF))}.

## Remote code

Types whose code is not in transformers, checked against published totals where one is quoted \
(`fixtures/published_params.json`): {", ".join(f"`{name}`" for name in remote)}.

## Other versions of transformers

The same configs, counted by older versions. A recipe says what the newest version and the published checkpoints \
hold; where an older version differs, it is named here (ours less theirs, the first config that differs). \
Types that a version does not know are not compared.

{_versions()}

## llama.cpp

{_llama_cpp()}

## Where the class is not followed

Every key of every type is changed alone (doubled, 0, null, absent, flipped) and compared with the class \
(`pytest -m "transformers and slow" tests_math/model/test_one_key_transformers.py`): 9,063 changes of 180 types with \
5.24, more than 5,700 with 4.57.6. What differs:

{_list({f"`{kind}` `{key}`": why for (kind, key), why in EVERY.items()})}
{_list({f"4.x: `{kind}` `{key}`": why for (kind, key), why in OLD.items()})}

What the class builds and is refused here: {"; ".join(why for _, why in REFUSED)}.

Hub configs that today's class reads otherwise than their published checkpoints are:

{_list({f"`{name}`": why for name, why in READ_OTHERWISE.items()})}

What random configs leave to the class:

{_list({f"`{name}`": why for name, why in DROPPED.items()})}

## Three totals

- `params`: what the model holds.
- `active`: what one token reads; of experts, those it is sent to.
- `checkpoint`: `params` and what published files store beside them: router-bias buffers, multi-token-prediction \
heads, stale rotary tables. Files differ within a family: GLM-4.5 and 4.7 store an embedding and a head with their \
MTP layer (counted), GLM-4.6 does not; Qwen3-0.6B and 1.7B store a head although it is tied (not counted). \
Of Kimi-K2-Instruct's published total 3,416 elements are unexplained.
"""
    (ROOT / "docs" / "coverage.md").write_text(page, encoding="utf-8")


#: Why an older version's count is another, where that has been looked into.
WHY = {
    "second bias": (
        "bert bert-generation big_bird camembert data2vec-text megatron-bert roberta roberta-prelayernorm roc_bert "
        "roformer xlm-roberta xmod"
    ),
    "ties, or not, by the flag that 5.24 ignores": "bigbird_pegasus cpmant moshi xlstm",
}


def _list(rows: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {why}" for name, why in rows.items())


def _versions() -> str:
    path = ROOT / "fixtures" / "census_versions.json"
    lines = ["| version | exact | not known to it | differs |", "|---|---|---|---|"]
    reasons = {model_type: why for why, types in WHY.items() for model_type in types.split()}
    for version, found in json.loads(path.read_text(encoding="utf-8")).items():
        differ = "; ".join(
            f"`{model_type}` {off:+,}{f' ({reasons[model_type]})' if model_type in reasons else ''}"
            for model_type, off in found["differ"].items()
        )
        exact, unknown = f"{found['exact']} of {found['compared']}", len(found["unknown"])
        lines.append(f"| {version} | {exact} | {unknown} types | {differ} |")
    return "\n".join(lines)


def _llama_cpp() -> str:
    """Types that llama.cpp knows, too: what its own library said of our header (fixtures/llama_cpp/census.json)."""
    from membudget.checkpoint.gguf_header_keys import ARCHITECTURES
    from membudget.engines.llama_cpp.compute import proven

    found = json.loads((ROOT / "fixtures" / "llama_cpp" / "census.json").read_text(encoding="utf-8"))
    rows, exact, loaded = [], 0, 0
    for model_type, row in sorted(found["types"].items()):
        arch = ARCHITECTURES[model_type]
        if "why" in row:
            rows.append(f"| `{model_type}` | `{arch}` | refused by {row['refused']}: {row['why']} | | |")
            continue
        loaded += 1
        asked = [cell for cell in row["grid"] if "cache" in cell]
        kept = all(_equal(cell[name], 0.02 * 2**20) for cell in asked for name in ("cache", "state"))
        unknown = sum(cell["cache"][1] is None for cell in asked)
        caches = "exact" if kept and not unknown else "unknown" if unknown else "differs"
        exact += caches == "exact"
        if proven(arch):
            off = max(abs(cell["compute"][1] / cell["compute"][0] - 1) for cell in asked)
            compute = "exact" if off < 0.001 else f"within {100 * off:.1f}%"
        else:
            compute = "unknown: a range in plans"
        refused = len(row["grid"]) - len(asked)
        rows.append(f"| `{model_type}` | `{arch}` | {caches} | {compute} | {refused or ''} |")
    head = (
        f"**{loaded} of {len(found['types'])} types load in llama.cpp {found['llama.cpp']} from the header that we "
        f"write, with caches and states exact for {exact}**, in {found['settings']} settings each: contexts, slots, "
        "unified or not, batches, flash attention, cache types, full windows. Written by "
        f"`{found['by']}` with the real library; an eighth of it is asked again each day in the tests. Exact is to the "
        "print's hundredth of a MiB; of the compute buffer, to 0.1%. The last column counts settings that llama.cpp "
        "itself refuses for this model. Architectures of llama.cpp that have no family here are refused by name: "
        "encoders (BERT and its like), rwkv, plamo, grok, jais, arctic, refact, openelm, dream, llada, smallthinker, "
        "grovemoe and others."
    )
    return f"""{head}

| type | architecture | caches and states | compute buffer | refused settings |
|---|---|---|---|---|
{chr(10).join(rows)}"""


def _equal(pair: list[int | None], slack: float) -> bool:
    asked, ours = pair
    return asked is not None and ours is not None and abs(asked - ours) <= slack


def _remote() -> list[str]:
    from membudget.model.families import all_families

    return [name for name, family in all_families().items() if family.module.endswith(".remote")] + ["kimi_k2"]


if __name__ == "__main__":
    main()
