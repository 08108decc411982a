"""A response of the hub whose body is read in pieces, never more of it than asked for."""

from __future__ import annotations

from typing import Any


def stream(url: str, headers: dict[str, str]) -> Any:
    """A response whose body is not read yet: huggingface_hub speaks httpx since 1.0, requests before."""
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # requests' session has a flag of that name
        return session.stream("GET", url, headers=headers, timeout=30)
    return session.get(url, headers=headers, timeout=30, stream=True)


def limited(response: Any, most: int) -> bytes:
    """At most `most` bytes of the body, unpacked where the server packed it."""
    chunks = response.iter_bytes(65536) if hasattr(response, "iter_bytes") else response.iter_content(65536)
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) >= most:
            break
    return bytes(content[:most])
