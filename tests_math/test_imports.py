from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite

PACKAGE = Path(__file__).parents[1] / "membudget"
#: Data moves left to right: a package imports only from its own row or those before it.
TIERS = (
    ("errors", "units", "text", "data"),
    ("model", "formats"),
    ("checkpoint", "sources", "machines", "host"),
    ("budgets",),
    ("engines",),
    ("planning",),
    ("history", "measure"),
    ("doctor", "report"),
    ("api", "cli", "pytest_plugin", "tests"),
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
    modules = "membudget, membudget.planning.ledger, membudget.cli.main"
    heavy = ["torch", "transformers", "vllm", "numpy", "yaml", "huggingface_hub", "hypothesis"]
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
