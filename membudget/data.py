"""Where the files that ship with membudget lie: configs, example budgets, published sizes."""

from __future__ import annotations

import os


def data_path(kind: str) -> str:
    """The folder (or file) `kind`: ``models``, ``budgets``, ``logs``, ``sizes.yaml``.

    In a wheel it is package data (``membudget/_data/<kind>``); in a checkout it lies
    at the top level (``fixtures/<kind>`` or ``<kind>``).  Raises `FileNotFoundError`
    that says where it looked.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    packaged = os.path.join(package, "_data")
    if os.path.isdir(packaged):
        places = [os.path.join(packaged, kind)]
    else:
        root = os.path.dirname(package)
        places = [os.path.join(root, "fixtures", kind), os.path.join(root, kind)]
    for place in places:
        if os.path.exists(place):
            return place
    raise FileNotFoundError(
        f"membudget's own {kind!r} is not at {' or '.join(places)}: the installation is incomplete, install it again"
    )
