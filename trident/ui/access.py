"""Who may ask the REST interface for what, and the headers that every answer has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from trident.http.guard import Rules
from trident.ui.answers import PageError, problem

__all__ = ["API", "RawPaths", "rules_of_pages"]

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


class RawPaths:
    """Lets routes be matched in the path as it was sent, so that a name may have a slash in it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        path = scope.get("raw_path", scope.get("path", "").encode()).decode("latin-1")
        await self._app({**scope, "path": path}, receive, send)


def rules_of_pages(token: str | None, token_for_all: bool, loopback: bool, extra_routes: Sequence[BaseRoute]) -> Rules:
    """Return what a request must satisfy.

    Parameters
    ----------
    token
        That for all that changes something, and for `extra_routes`. None: all that changes something is refused.
    token_for_all
        Whether reading needs the token too.
    loopback
        As of `Rules`.
    """

    def needs_token(scope: Scope) -> bool:
        if scope["method"] not in _READING or (token_for_all and scope["path"].startswith(API)):
            return True
        return any(route.matches(scope)[0] is Match.FULL for route in extra_routes)

    def refusal(scope: Scope, status: int, cause: str) -> ASGIApp:
        return problem(Request(scope), PageError(status, cause))

    def headers(scope: Scope) -> Mapping[str, str]:
        return {**_HEADERS, "Cache-Control": "no-store" if scope["path"].startswith(API) else "no-cache"}

    return Rules(token, loopback, needs_token, refusal, headers)
