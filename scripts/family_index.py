"""Write membudget/model/families/index.py: which module declares which model_type.

python scripts/family_index.py
"""

from __future__ import annotations

import pathlib
import sys
from importlib import import_module

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "membudget" / "model" / "families" / "index.py"


def source() -> str:
    """The file's content, from the modules as they are."""
    from membudget.model.families import MODULES
    from membudget.model.families.base import FAMILIES

    found: dict[str, str] = {}
    for module in MODULES:
        import_module(f"membudget.model.families.{module}")
        for model_type, family in FAMILIES.items():
            if family.module == f"membudget.model.families.{module}":
                found[model_type] = module
    lines = [f'    "{model_type}": "{module}",' for model_type, module in sorted(found.items())]
    return "\n".join(
        (
            '"""Which module declares which model_type; written by scripts/family_index.py."""',
            "",
            "from __future__ import annotations",
            "",
            "MODULE_OF: dict[str, str] = {",
            *lines,
            "}",
            "",
        )
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    OUT.write_text(source())
