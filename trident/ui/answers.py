"""Requests and answers of the REST interface: who may ask for what, JSON, and errors in Storm UI's shape with their status."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from trident.cluster_errors import (
    BadPackage,
    ClusterUnreachable,
    NameTaken,
    NoLeader,
    NoSuchTopology,
    NotAllowed,
    NotRunning,
    UpgradeRefused,
)
from trident.errors import BackendError, SourceAwayError, TridentError, UnsupportedOperation
from trident.http.guard import Rules
from trident.http.plain_json import json_answer

logger = logging.getLogger(__name__)

_STATUS: Mapping[int, tuple[type[Exception], ...]] = {  # the first one that an error belongs to decides
    404: (NoSuchTopology, KeyError),
    401: (NotAllowed,),
    409: (NameTaken, NotRunning, UpgradeRefused),
    503: (ClusterUnreachable, NoLeader, BackendError, SourceAwayError),
    400: (BadPackage, UnsupportedOperation, ValueError),
}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


class PageError(Exception):
    """An answer that is an error: its status and its text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


async def body_of(request: Request, most: int) -> Mapping[str, Any]:
    """Return the JSON object that a request brings, an empty one if it brings nothing.

    Raises `PageError`: it is something else, or longer than `most` bytes.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise PageError(413, f"the request is longer than {most} bytes")
    try:
        read = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise PageError(400, "expected a JSON object")
    return read


def replying(
    ask: Callable[[Request], Any], made: Callable[[Any], Response] = json_answer
) -> Callable[[Request], Response]:
    """Return an endpoint that runs in a thread of the pool; whatever goes wrong, the client gets an answer."""

    def reply(request: Request) -> Response:  # not async: Starlette calls it in a thread of its pool
        try:
            return made(ask(request))
        except Exception as error:  # noqa: BLE001  whatever it is
            return problem(request, error)

    return reply


def awaiting(ask: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that waits for its request's body, as `replying`."""

    async def reply(request: Request) -> Response:
        try:
            return json_answer(await ask(request))
        except Exception as error:  # noqa: BLE001  whatever it is
            return problem(request, error)

    return reply


def problem(request: Request, error: Exception) -> Response:
    """Return an error as JSON; an unexpected one is logged, and its text is not sent."""
    status, message = _status_and_text(request, error)
    return json_answer(error_body(status, message, type(error).__name__), status, _HEADERS.get(status))


def error_body(status: int, message: str, kind: str) -> dict[str, str]:
    """Return an error in Storm UI's shape; `kind` is the class of it, for programs."""
    return {"error": f"{status} {HTTPStatus(status).phrase}", "errorMessage": message, "kind": kind}


def _status_and_text(request: Request, error: Exception) -> tuple[int, str]:
    if isinstance(error, PageError):
        return error.status, error.message
    for status, kinds in _STATUS.items():
        if isinstance(error, kinds):
            return status, str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, TridentError):
        return (409 if request.method == "POST" else 500), str(error)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return 500, f"{request.method} {request.url.path} failed; the log of the server says why"


API = "/api/"
"""What begins with this is data; all else are the files of the page, which reveal nothing."""

_PAGE_HEADERS = {
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

    `token`: that for all that changes something, and for `extra_routes`. None: all that changes something is refused.
    `token_for_all`: whether reading needs the token too.
    `loopback`: as of `Rules`.
    """

    def needs_token(scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD") or (token_for_all and scope["path"].startswith(API)):
            return True
        return any(route.matches(scope)[0] is Match.FULL for route in extra_routes)

    def refusal(scope: Scope, status: int, cause: str) -> ASGIApp:
        return problem(Request(scope), PageError(status, cause))

    def headers(scope: Scope) -> Mapping[str, str]:
        return {**_PAGE_HEADERS, "Cache-Control": "no-store" if scope["path"].startswith(API) else "no-cache"}

    return Rules(token, loopback, needs_token, refusal, headers)
