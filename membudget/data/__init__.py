"""Where the files that ship with membudget lie: configs of models, machines, known changes, example budgets."""

from __future__ import annotations

import os


def data_path(kind: str) -> str:
    """The folder or file `kind`: ``models``, ``machines.yaml``, ``known_changes.yaml``, ``budgets``.

    What tests and records share lies at the top level of a checkout (``budgets``, ``fixtures/<kind>``).
    Raises `FileNotFoundError` that says where it looked.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    places = [os.path.join(here, kind), os.path.join(root, kind), os.path.join(root, "fixtures", kind)]
    for place in places:
        if os.path.exists(place):
            return place
    raise FileNotFoundError(
        f"membudget's own {kind!r} is missing: looked for {', '.join(places)}; install membudget again"
    )
