"""NVIDIA's management library, opened for a question: it makes no CUDA context, and is exact on unified memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from membudget.errors import NotAvailableError


class NoAnswer(NotAvailableError):
    """The library or its driver is missing, or refuses: says which.  code: no_library, no_driver, refused."""


@contextmanager
def opened() -> Iterator[Any]:
    """pynvml between its init and its shutdown.

    Raises `NoAnswer` where pynvml is not installed, finds no driver, or the driver refuses what is asked within.
    """
    try:
        import pynvml
    except ImportError:
        raise NoAnswer("pynvml is not installed: pip install nvidia-ml-py", code="no_library") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoAnswer(f"pynvml finds no driver: {error}", code="no_driver") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NoAnswer(f"the driver says {error}", code="refused") from None
    finally:
        pynvml.nvmlShutdown()


def handle(library: Any, uuid: str | None) -> Any:
    """The device of that UUID; the first one where none is given."""
    return library.nvmlDeviceGetHandleByIndex(0) if uuid is None else library.nvmlDeviceGetHandleByUUID(uuid)
