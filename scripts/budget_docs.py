"""Write docs/budgets.md from the table that the loader uses: `python scripts/budget_docs.py`."""

from __future__ import annotations

from pathlib import Path

from membudget.fields import Field, Fields, Kind, Many
from membudget.schema import documented

TARGET = Path(__file__).parents[1] / "docs" / "budgets.md"

HEAD = """\
# Budget files

<!-- Written by scripts/budget_docs.py from membudget/schema.py; change those. -->

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

```
pytest -m math                                  all budgets in budgets/
pytest -m math --budgets=team/budgets           those of another folder (write the =)
pytest -m math -k qwen3-8b-bf16.dgx-spark       one of them
membudget check budgets/                        the same arithmetic without pytest
```

The name of a test is the file's name. What a list varies is appended, for example
`qwen3-8b-bf16.dgx-spark-32Ki-8users`. Files of one name are told apart by their folders
(`team-b/chat`), in one folder by their suffix. A failure ends with the command that runs that
budget alone.

In a project of your own, with membudget installed, the test ships with the package:

```
pytest --pyargs membudget.tests                 all budgets in budgets/, without a test file
pytest --pyargs membudget.tests --budgets=team/budgets
```

Any test of yours that asks for the fixture `budget` runs once for every budget:

```python
from membudget.ledger import predict

def test_leaves_room_for_the_reranker(budget):
    assert predict(budget).headroom >= 4 * 2**30
```

## Values

| what | write | not |
|---|---|---|
| counts (`ctx`, `users`) | `8192`, `8_192`, `8Ki` (x 1,024), `1Mi` | `8k`, `8,192`, `1e3`, `010` |
| sizes | `512 MiB`, `1.5 GiB`, `16 GB` | `8G`, `8.5`, a number without a unit |
| expected bytes | a size, or all digits: `8_405_385_216` | `8.4e9` |
| booleans | `true`, `false` | `yes`, `on`, `True` |
| tolerances | `exact`, `within 1%`, `within 64 MiB`, `within +64 MiB` (never under), `below 1 GiB` | `1%`, `about 1%` |
| approximate expectations | `within 1% of 16.06 GB`, `within 2 of 100`, `below 8 MB` | |

GB is 10^9 bytes and GiB 2^30. Whatever YAML readers disagree about (`010`, `12:30`, `1e3`,
`on`, a key written twice) is an error with file and line, as are unknown fields, anchors,
aliases and tags. All errors of a file are reported together, and a bad file fails as a
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
    rows = ["| field | what | allowed | left out |", "|---|---|---|---|"]
    for path, field, kind in documented():
        if path.startswith(prefix) and not any(mark in path[len(prefix) :] for mark in ".["):
            rows.append(f"| `{path[len(prefix) :]}` | {field.doc} | {_allowed(field, kind)} | {_left_out(field)} |")
    return "\n".join(rows) + "\n"


def _allowed(field: Field, kind: Kind) -> str:
    inner = _inner(kind)
    text = "fields, see below" if isinstance(inner, Fields) else kind.allowed
    if isinstance(inner, Fields) and inner is not kind:
        text = "a list of fields, see below"
    return (text + (f"; `{field.example}`" if field.example else "")).replace("|", "\\|")


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
