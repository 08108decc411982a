from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite

PACKAGE = Path(__file__).parents[1] / "membudget"
#: Data moves left to right: a module imports only from its own tier or those before it.
TIERS = (
    ("records", "printable", "quick_json", "asking", "units", "data", "yaml_strict", "tolerance"),
    ("model", "formats", "machines", "machine_file", "detect"),
    ("engines", "checkpoint", "locate"),
    ("budget", "budget_file", "budget_ids", "fields", "schema"),
    ("capacity", "changes", "ledger", "sharding", "fleet", "fleet_text", "node_layouts", "judge"),
    ("history", "report", "probe", "available"),
    ("doctor",),
    ("api", "cli", "plugin", "plugin_options", "commands", "tests"),
)
TIER = {name: index for index, tier in enumerate(TIERS) for name in tier}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "membudget":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("membudget.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    """units <- model, formats, machines <- engines, checkpoint <- budget <- ledger <- report <- cli, plugin."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    assert own in TIER, f"{own} has no place in the import order: give it one in TIERS"
    backwards = {name for name in _imports(path) if TIER.get(name, 0) > TIER[own]}
    assert not backwards, f"{path.name} (tier {TIER[own]}) imports {backwards} from a later tier"


def test_the_drawing_is_the_rule() -> None:
    """docs/structure.md shows the tiers that are held here, in their order."""
    text = (PACKAGE.parent / "docs" / "structure.md").read_text(encoding="utf-8")
    table = text.partition("<!-- tiers -->")[2].splitlines()
    rows = [line.split("|")[1] for line in table if "|" in line]
    drawn = tuple(tuple(row.split("`")[1::2]) for row in rows)
    assert drawn[2 : 2 + len(TIERS)] == TIERS


def test_import_stays_light() -> None:
    """The arithmetic leaves torch, transformers, vllm, numpy and yaml alone."""
    modules = "membudget, membudget.ledger, membudget.model, membudget.formats, membudget.machines, membudget.cli"
    heavy = ["torch", "transformers", "vllm", "numpy", "yaml", "huggingface_hub", "hypothesis"]
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_plan_starts_light() -> None:
    """A plan of a common model loads none of the modules that take longer than the plan itself."""
    heavy = ["typing", "re", "json", "argparse", "dataclasses", "pathlib", "inspect", "shutil", "yaml", "enum"]
    code = (
        "import sys, io; sys.stdout = io.StringIO(); from membudget.cli import main\n"
        "code = main('plan Qwen/Qwen3-8B --machine dgx-spark --ctx 32k --users 8'.split())\n"
        f"sys.__stdout__.write(repr((code, [m for m in {heavy!r} if m in sys.modules])))"
    )
    # -S: an environment's site packages may load anything at start
    command = [sys.executable, "-S", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert result.stdout == "(0, [])"
