"""Write docs/budgets.md from the table that the loader uses: `python tools/budget_docs.py`."""

# ruff: noqa: E501  (a table, one row a line)
from __future__ import annotations

from pathlib import Path

from membudget.budgets.field_words import CountOr, Parsed, Switch
from membudget.budgets.fields import (
    Allowance,
    Boolean,
    Choice,
    Count,
    Expected,
    Field,
    Fields,
    Json,
    Kind,
    Many,
    Share,
    Size,
    Text,
    Tokens,
)
from membudget.budgets.schema import documented

#: What the tables call a kind of value; Values explains each.
TYPES: dict[type[Kind], str] = {
    Allowance: "tolerance",
    Boolean: "boolean",
    Choice: "word",
    Count: "count",
    CountOr: "count or word",
    Expected: "expected",
    Json: "object",
    Parsed: "text",
    Share: "share",
    Size: "size",
    Switch: "word",
    Text: "text",
    Tokens: "tokens",
}
TARGET = Path(__file__).parents[1] / "docs" / "budgets.md"

HEAD = """\
# Budget files

<!-- Written by tools/budget_docs.py from membudget/schema.py; change those. -->

A budget says what must fit where: one model, in one format, for so many users at one
context, on one machine. Every file in `budgets/` is one test, or one for each combination
of its lists.

```yaml
model: Qwen/Qwen3-8B
format: bf16
kv_cache_dtype: bf16
ctx: 32Ki
users: 8
machine: dgx-spark

expect:
  params: 8_190_735_360   # transformers, meta device
  kv_per_token: 144 KiB   # 2 x 36 layers x 8 KV heads x 128 x 2 bytes
  fits: true
```

```text
pytest -m math                                  all budgets in budgets/
pytest -m math --membudget-budgets=team/budgets those of another folder and its subfolders (write the =)
pytest -m math -k qwen3-8b-bf16.dgx-spark       one of them
membudget check budgets/                        the same arithmetic without pytest
```

The name of a test is the file's name. What a list varies is appended, for example
`qwen3-8b-bf16.dgx-spark-32Ki-8users`. Files of one name are told apart by their folders
(`team-b/chat`), in one folder by their suffix. A failure ends with the command that runs that
budget alone.

In a project of your own, with membudget installed, the test ships with the package:

```text
pytest --pyargs membudget.tests                 all budgets in budgets/, without a test file
pytest --pyargs membudget.tests --membudget-budgets=team/budgets
```

Any test of yours that asks for the fixture `budget` runs once for every budget:

```python
from membudget.planning.ledger import predict

def test_leaves_room_for_the_reranker(budget):
    assert predict(budget).headroom >= 4 * 2**30
```

## Values

| type | write | not |
|---|---|---|
| count (`ctx`, `users`) | `8192`, `8_192`, `8Ki` (x 1,024), `1Mi` | `8k`, `8,192`, `1e3`, `010` |
| size | `512 MiB`, `1.5 GiB`, `16 GB` | `8G`, `8.5`, a number without a unit |
| expected | a size, or all digits of its bytes: `8_405_385_216`; or approximately: `within 1% of 16.06 GB`, `below 8 MB` | `8.4e9` |
| expected count | `8_030_261_248`, `within 2 of 100`, `within 1% of 100`, `below 10` | `8B` |
| boolean | `true`, `false` | `yes`, `on`, `True` |
| tolerance | `exact`, `within 1%`, `within 64 MiB`, `within +64 MiB` (never under), `below 1 GiB`; of counts `within 2` | `1%`, `about 1%` |
| share | `0.85`: above 0, at most 1 | `85`, `85%` |
| word, text | as listed, in this spelling | |

GB is 10^9 bytes and GiB 2^30. Whatever YAML readers disagree about (`010`, `12:30`, `1e3`,
`on`, a key written twice) is an error with file and line, as are unknown fields, anchors,
aliases and tags. All errors of fields are reported together, then all of names that are looked up; a bad file fails as a
test of its own name; the others run.

## Editors

The first line `# yaml-language-server: $schema=./budgets.schema.json` gives completion and
underlines mistakes in editors with a YAML language server. `membudget schema >
budgets/budgets.schema.json` writes the schema beside your own budgets.

## What is checked

Without hardware: every number in `expect`, every number and outcome in `break`, and that the
budget fits, or with `fits: false` that it does not. A budget that must not fit and does is a
failure too. `measure` and `break` are for the tests on hardware.

`capacity: reported` plans with what the driver reports, 121.69 GiB on a DGX Spark;
`nominal` with the number on the box read as GiB, 128.
"""


def document() -> str:
    """The whole page."""
    parts = [HEAD, "\n## Fields\n", _table("")]
    for path, _, kind in documented():
        if isinstance(_inner(kind), Fields):
            parts += [f"\n### {_title(path, kind)}\n", _table(_prefix(path, kind))]
    return "\n".join(parts)


def _table(prefix: str) -> str:
    rows = ["| field | what | type: allowed | left out | example |", "|---|---|---|---|---|"]
    for path, field, kind in documented():
        if path.startswith(prefix) and not any(mark in path[len(prefix) :] for mark in ".["):
            example = f"`{field.example}`" if field.example else ""
            cells = (
                f"`{path[len(prefix) :]}`",
                field.doc,
                _allowed(kind),
                _left_out(field),
                example.replace("|", "\\|"),
            )
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _allowed(kind: Kind) -> str:
    """The type and what it allows; long ones are told once, under Values."""
    inner = _inner(kind)
    if isinstance(inner, Fields):
        return "fields, see below" if inner is kind else "a list of fields, see below"
    for of, name in TYPES.items():
        if type(inner) is of:
            count = getattr(inner, "unit", "") == "count"
            name = f"{name} count" if of is Expected and count else name
            text = f"{name}: {inner.allowed}" if of in (Choice, Text, Share) else f"{name}{_bounds(inner)}"
            return (text + (", or a list of them" if inner is not kind else "")).replace("|", "\\|")
    raise TypeError(f"{type(inner).__name__} has no name in TYPES")


def _bounds(kind: Kind) -> str:
    return f": {kind.low:,} to {kind.high:,}" if isinstance(kind, Count) else ""


def _left_out(field: Field) -> str:
    return "**required**" if field.required else field.default.replace("|", "\\|")


def _inner(kind: Kind) -> Kind:
    return kind.kind if isinstance(kind, Many) else kind


def _prefix(path: str, kind: Kind) -> str:
    return f"{path}{'[]' if isinstance(kind, Many) else ''}."


def _title(path: str, kind: Kind) -> str:
    return f"`{path}`{', each' if isinstance(kind, Many) else ''}"


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(document(), encoding="utf-8")
    print(TARGET)
