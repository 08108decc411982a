"""NVIDIA's management library, opened for a question: it makes no context, and is exact on unified memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NoAnswer(Exception):
    """The library or its driver is not there, or does not say: the reason, in words."""


@contextmanager
def opened() -> Iterator[Any]:
    """pynvml between its init and its shutdown.

    Raises `NoAnswer` where pynvml is not installed, finds no driver, or the driver refuses what is asked within.
    """
    try:
        import pynvml
    except ImportError:
        raise NoAnswer("pynvml is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoAnswer(f"pynvml finds no driver: {error}") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NoAnswer(f"the driver says {error}") from None
    finally:
        pynvml.nvmlShutdown()
