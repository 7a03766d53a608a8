"""`Guard`: what every request must satisfy before it is looked at, and the headers that every answer has."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trident.serving.strangers import stranger
from trident.ui.answers import PageError, problem

__all__ = ["API", "Guard"]

API = "/api/"
"""What begins with this is data; all else are the files of the page, which tell nothing."""

_READING = ("GET", "HEAD")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Refuses requests of other sites and those without the token; adds the headers that keep browsers careful.

    Parameters
    ----------
    token
        What `Authorization: Bearer …` must have for all that changes something, and for `extra_routes`. None: all that
        changes something is refused.
    token_for_all
        Whether reading needs the token too.
    loopback
        As of `stranger`.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, token_for_all: bool, loopback: bool, extra_routes: Sequence[BaseRoute]
    ) -> None:
        self._app, self._token, self._for_all, self._loopback = app, token, token_for_all, loopback
        self._extra = extra_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        # Routes are matched in the path as it was sent, so that a name may have a slash in it.
        scope = {**scope, "path": scope.get("raw_path", scope["path"].encode()).decode("latin-1")}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith(API) else "no-cache")
            await send(message)

        try:
            self._check(scope)
        except PageError as error:
            await problem(Request(scope), error)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        cause = stranger(headers.get("host", ""), headers.get("origin"), self._loopback)
        if cause is not None:
            raise PageError(403, cause)
        if self._needs_token(scope):
            self._check_token(headers.get("authorization", ""))

    def _needs_token(self, scope: Scope) -> bool:
        if scope["method"] not in _READING:
            return True
        if self._for_all and scope["path"].startswith(API):
            return True
        return any(route.matches(scope)[0] is Match.FULL for route in self._extra)

    def _check_token(self, given: str) -> None:
        if self._token is None:
            raise PageError(403, "the server was started without a token, so it can only be read")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer":
            raise PageError(401, "this needs the token, as the header Authorization: Bearer TOKEN")
        if not hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token.encode()):
            raise PageError(401, "the token is wrong")
