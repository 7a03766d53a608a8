"""`Guard`: what every request must satisfy before a server looks at it. Needs starlette."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trident.http.server_thread import stranger


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
