"""What a config class assumes for keys that a config.json leaves out.

One JSON file a model_type, ``{"aliases": {attribute: key}, "values": {key: value}}``, written
by tools/class_defaults.py from transformers.  Absent is not null: a key that is there
and null keeps its null.
"""

from __future__ import annotations

import os
from json import loads
from typing import Any

HERE = os.path.dirname(__file__)


def class_defaults(model_type: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(values, aliases) of a model_type; both empty where no class is known."""
    if not model_type.replace("_", "").replace("-", "").isalnum():
        return {}, {}
    try:
        with open(os.path.join(HERE, f"{model_type}.json"), encoding="utf-8") as file:
            table = loads(file.read())
    except OSError:
        return {}, {}
    return table["values"], table["aliases"]
