"""A small file of a repository, looked at before huggingface_hub saves it: its size as it unpacks, and a busy server.

huggingface_hub writes whatever a response unpacks to, without a limit, and waits as long as a Retry-After says.
"""

from __future__ import annotations

import time
from typing import Any

from membudget.checkpoint.entries import CheckpointError
from membudget.errors import NOT_AVAILABLE
from membudget.sources.stream import limited, stream

#: Seconds between tries where the server is busy (429, 500, 502, 503, 504); there is one more try than there are waits.
WAITS = (1.0, 2.0)
#: A longer Retry-After is not waited for.
PATIENCE = 5.0
BUSY = (429, 500, 502, 503, 504)


class HubBusy(CheckpointError):
    """The hub answered that it is busy, on every try."""

    reachable = False
    exit_code = NOT_AVAILABLE


def within(repo: str, name: str, most: int) -> None:
    """Return where the file is there and no larger than `most` bytes, however it is packed.

    Raises `CheckpointError` where it is larger, `HubBusy` where the server stays busy, and huggingface_hub's own
    errors where the file is missing or closed.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    url = hf_hub_url(repo, name)
    for wait in (*WAITS, None):
        with stream(url, {**build_hf_headers(), "Accept-Encoding": "identity"}) as response:
            if response.status_code in BUSY:
                pause = _pause(response, wait)
                if pause is None:
                    raise HubBusy(repo, None, f"the hub is busy: {_said(response)}")
            else:
                hf_raise_for_status(response)
                _check(response, f"{repo}/{name}", most)
                return
        time.sleep(pause)


def _check(response: Any, source: str, most: int) -> None:
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and "Content-Encoding" not in response.headers:
        size = int(length)
    else:  # packed, or of a length that the server does not say: no more than `most` is unpacked
        size = len(limited(response, most + 1))
    if size > most:
        raise CheckpointError(source, None, f"is larger than {most:,} bytes")


def _pause(response: Any, wait: float | None) -> float | None:
    """Seconds until the next try; None for none."""
    asked = response.headers.get("Retry-After", "")
    if wait is None or not asked.isdigit():
        return wait
    return max(wait, float(asked)) if float(asked) <= PATIENCE else None


def _said(response: Any) -> str:
    asked = response.headers.get("Retry-After", "")
    later = f", and asks to wait {int(asked[:9]):,} s" if asked.isdigit() else ""
    return f"it answers {response.status_code}{later}; try again later"
