from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from membudget.budgets import schema
from membudget.budgets.file import load
from membudget.budgets.reader import Reader
from membudget.text.yaml_strict import parse
from tests_math.strategies import budget_documents

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install 'membudget[test]'")

pytestmark = pytest.mark.math

ROOT = Path(__file__).parents[2]


def shipped() -> list[Path]:
    """The budgets of this repository: a user's own beside them may be spelt as they like."""
    found = sorted((ROOT / "budgets").glob("*.yaml"))
    if not (ROOT / ".git").exists():
        return found
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "budgets"], capture_output=True, encoding="utf-8", check=False
    )
    names = {Path(name).name for name in listed.stdout.splitlines()}
    return [path for path in found if path.name in names] if listed.returncode == 0 and names else found


BUDGETS = shipped()
COMMITTED = ROOT / "budgets" / "budgets.schema.json"


VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())


def _faults(document: Any) -> list[str]:
    """What the JSON Schema has against a document."""
    return [error.message for error in VALIDATOR.iter_errors(document)]


def _loads(document: Any) -> bool:
    """Whether the loader takes a document, names apart: JSON is YAML."""
    node, problems = parse(json.dumps(document, indent=1).encode(), "b.yaml")
    assert node is not None, problems
    reader = Reader("b.yaml")
    values = schema.read(node, reader)
    assert (values is None) == bool(reader.problems)
    return values is not None and not problems


@settings(max_examples=150, deadline=None)
@given(document=budget_documents())
def test_schema_and_loader_agree(document: dict[str, Any]) -> None:
    """What an editor underlines is what the loader refuses, for good and for spoilt documents alike."""
    faults = _faults(document)
    assert _loads(document) == (not faults), faults


def test_the_schema_is_one() -> None:
    """It is valid by its own draft, 2020-12."""
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())


@pytest.mark.parametrize("path", BUDGETS, ids=lambda path: path.stem)
def test_shipped_budgets_are_valid(path: Path) -> None:
    """The examples pass the schema that their first line points editors to."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=./budgets.schema.json\n")
    node, problems = parse(text.encode(), path.name)
    assert node is not None
    assert not problems
    assert _faults(node.plain) == []


def test_the_committed_schema_is_the_one_of_the_loader() -> None:
    """`membudget schema > budgets/budgets.schema.json` was run after the last change."""
    assert COMMITTED.read_text(encoding="utf-8") == schema.schema_text()


def test_the_documentation_is_the_one_of_the_loader() -> None:
    """`python tools/budget_docs.py` was run after the last change."""
    import runpy

    made = runpy.run_path(str(ROOT / "tools" / "budget_docs.py"))["document"]()
    assert (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8") == made


def test_examples_in_the_documentation_are_read() -> None:
    """Every YAML block of the documentation is a budget that loads."""
    from membudget.budgets.file import Sources
    from membudget.budgets.file import parse as read

    text = (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(model:.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        budgets, problems = read(block.encode(), "docs/budgets.md", "example", str(ROOT), Sources())
        assert budgets
        assert not problems


def test_every_field_has_an_example_that_is_read() -> None:
    """The examples that errors and documentation show are good ones."""
    checked = 0
    for path, field, kind in schema.documented():
        if field.example:
            node, problems = parse(f"x: {field.example}\n".encode(), "x")
            assert node is not None
            reader = Reader("x")
            kind.read(node.fields["x"], path, reader)
            assert not problems + reader.problems, path
            checked += 1
    assert checked > 50


def test_shipped_budgets_tell_many_stories() -> None:
    """Every model and machine class is there, and several budgets that must not fit, in both conventions."""
    budgets = [budget for file in load([ROOT / "budgets"]) for budget in file.budgets]
    models = {budget.model.name for budget in budgets}
    assert {
        "meta-llama/Llama-3.2-1B",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-70B",
        "Qwen/Qwen2.5-7B",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-30B-A3B",
    } <= models
    machines = {budget.machine.name for budget in budgets}
    assert {
        "dgx-spark", "h100-80gb", "h200-141gb", "a100-40gb", "a100-80gb", "l40s", "l4", "rtx-3090", "rtx-4090",
        "rtx-5090", "rtx-pro-6000", "b200", "gb200", "mi300x", "apple-m1-16gb", "apple-m4-max-128gb",
    } <= machines  # fmt: skip
    assert {"fp32", "bf16", "fp8", "q8_0", "awq", "q4_k_m"} <= {budget.format.name for budget in budgets}
    assert {"reported", "nominal"} == {budget.convention for budget in budgets}
    assert sum(budget.expect.get("fits") is False for budget in budgets) >= 8


def test_measure_defaults_are_tolerances_for_every_line() -> None:
    """What a budget's `measure` leaves out has a documented default."""
    defaults = {name: str(tolerance) for name, tolerance in schema.measure_defaults().items()}
    assert defaults["weights"] == "within +64 MiB"
    assert defaults["kv_growth"] == "within 1%"
    assert "pool_tokens" not in defaults  # the range of the version's rule, which is another for each start
