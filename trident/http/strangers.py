"""`stranger`: whether a request comes from a page of another site, which a user's browser was made to send.

Every HTTP server of this package asks it, whether or not it wants a token: a browser on this machine reaches what listens on
this machine, no matter who wrote the page that it shows.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit


def stranger(host: str, origin: str | None, loopback: bool) -> str | None:
    """Return why a request is one of another site, None if it is not.

    `host`, `origin`: the request's headers; browsers send the second with all that may change something.
    `loopback`: whether the server listens on this machine only. Then a request must name this machine: a page of another site
    whose name was made to lead here (DNS rebinding) names that site.
    """
    if loopback and not is_loopback(_split(f"//{host}").hostname or ""):
        return f"this server is for its own machine, and the request names the host {host!r}"
    if origin is not None and _split(origin).netloc != host:
        return f"a page of {origin!r} may not ask this server"
    return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by itself: its name is `localhost`, or its address begins with 127 or is `::1`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
