"""`Guard`: what a request must satisfy before a server looks at it (needs starlette); `stranger`: whose requests are refused.

Every HTTP server of this package asks whether a request comes from a page of another site, which a user's browser was made to
send, whether or not it wants a token: a browser on this machine reaches what listens on this machine, no matter who wrote the
page that it shows.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Guard:
    """Refuses requests of other sites, and those without the token, before `app` sees them.

    `token`: what `Authorization: Bearer …` must have where it is needed; None: what needs it is refused.
    `loopback`: as of `stranger`.
    `needs_token`: whether a request needs the token.
    `refusal`: returns the answer to a refused request, from its status and the cause.
    `headers`: returns the headers that every answer to a request has, unless it sets them itself.
    """

    app: ASGIApp
    token: str | None
    loopback: bool
    needs_token: Callable[[Scope], bool]
    refusal: Callable[[Scope, int, str], ASGIApp]
    headers: Callable[[Scope], Mapping[str, str]] = lambda scope: {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        from starlette.datastructures import MutableHeaders

        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers(scope).items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        app = self.app if refused is None else self.refusal(scope, *refused)
        await app(scope, receive, sending)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        from starlette.datastructures import Headers

        headers = Headers(scope=scope)
        cause = stranger(headers.get("host", ""), headers.get("origin"), self.loopback)
        if cause is not None:
            return 403, cause
        if not self.needs_token(scope):
            return None
        if self.token is None:
            return 403, "the server was started without a token, so it can only be read"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return 401, "this needs the token, as the header Authorization: Bearer TOKEN"
        if not hmac.compare_digest(token.strip().encode("latin-1", "replace"), self.token.encode()):
            return 401, "the token is wrong"
        return None


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
