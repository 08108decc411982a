"""Whether the hub can be reached, and why it did not answer: in words, without an access token."""

from __future__ import annotations

from urllib.parse import urlsplit

from membudget.text.sanitize import without_tokens


def unreachable() -> str | None:
    """Why no connection to the hub can be made, in words; None if one can.

    Asked first, because huggingface_hub retries for half a minute before it gives up.
    """

    from huggingface_hub import constants

    address, what = urlsplit(constants.ENDPOINT), ""
    import socket
    from urllib.request import getproxies, proxy_bypass  # ssl and email come with it: not for a plan without a hub

    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(address.hostname or ""):
        address, what = urlsplit(proxy if "://" in proxy else f"http://{proxy}"), "the proxy "
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=3).close()
    except (OSError, ValueError) as error:
        return f"could not be reached: {what}{address.hostname}: {getattr(error, 'strerror', None) or error}"
    return None


def reason(error: BaseException) -> str:
    """Why the hub did not answer, in words and without an access token."""
    kind = type(error).__name__
    known = {
        "GatedRepoError": "closed: accept its licence on the hub and log in (`hf auth login`, or HF_TOKEN)",
        "RepositoryNotFoundError": "does not have it, or it is private and you are not logged in",
        "OfflineModeIsEnabled": "not asked: offline",
        "LocalEntryNotFoundError": "could not be reached",
    }
    return known.get(kind, f"could not be asked: {kind}: {without_tokens(str(error)).splitlines()[0]}")
