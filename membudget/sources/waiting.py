"""A bound of our own on how long the hub is waited for, whatever its library retries and the server asks for.

huggingface_hub waits as long as a Retry-After says, five times over, and a server that sends a byte a minute never
ends.  The call runs in a thread that ends with the process; Ctrl-C ends the waiting.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from membudget.errors import NotAvailableError

T = TypeVar("T")

#: Seconds for one small file, and for the headers of a whole repository.
FILE_SECONDS, HEADER_SECONDS = 15, 300
#: Seconds without an answer after which a line says what is waited for.
_SAY_AFTER = 3


class HubTooSlow(NotAvailableError):
    """The hub did not answer within our own bound."""


def bounded(call: Callable[[], T], what: str, seconds: float) -> T:
    """What `call` returns or raises; `HubTooSlow` where it takes longer than `seconds`.

    what: the thing asked for, for the line on stderr that a terminal shows while it waits.
    """
    result: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # handed to the caller's thread, whatever it is
            raised.append(error)

    thread = threading.Thread(target=run, name="membudget-hub", daemon=True)
    start, said = time.monotonic(), False
    thread.start()
    while thread.is_alive():
        waited = time.monotonic() - start
        if waited >= seconds:
            raise HubTooSlow(f"did not answer within {seconds:g} s")
        if waited >= _SAY_AFTER and not said and sys.stderr.isatty():
            print(f"waiting for the hub: {what} (at most {seconds:g} s, Ctrl-C ends it)", file=sys.stderr)
            said = True
        thread.join(min(0.2, seconds - waited))
    if raised:
        raise raised[0]
    return result[0]
