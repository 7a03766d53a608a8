"""Requests and answers of the REST interface: JSON, and errors in Storm UI's shape, each with its status."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

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
from trident.http.plain_json import to_json

__all__ = ["PageError", "answer", "body_of", "error_body", "problem"]

logger = logging.getLogger(__name__)

# The first class that an error belongs to decides.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NoSuchTopology, 404),
    (KeyError, 404),
    (NotAllowed, 401),
    (NameTaken, 409),
    (NotRunning, 409),
    (UpgradeRefused, 409),
    (BadPackage, 400),
    (ClusterUnreachable, 503),
    (NoLeader, 503),
    (BackendError, 503),
    (SourceAwayError, 503),
    (UnsupportedOperation, 400),
    (ValueError, 400),
)
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


class PageError(Exception):
    """An answer that is an error: its status, and what to tell."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


async def body_of(request: Request, most: int) -> Mapping[str, Any]:
    """Return the JSON object that a request brings, an empty one if it brings nothing.

    Raises
    ------
    PageError
        It is something else, or longer than `most` bytes.
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


def answer(page: Any, status: int = 200) -> Response:
    """Return a page as JSON."""
    return Response(to_json(page), status, media_type="application/json")


def problem(request: Request, error: Exception) -> Response:
    """Return an error as JSON; one that is not expected is logged, and its text is not told."""
    status, message = _told(request, error)
    return Response(
        to_json(error_body(status, message, type(error).__name__)),
        status,
        _HEADERS.get(status),
        media_type="application/json",
    )


def error_body(status: int, message: str, kind: str) -> dict[str, str]:
    """Return an error in Storm UI's shape; `kind` is the class of it, for programs."""
    return {"error": f"{status} {HTTPStatus(status).phrase}", "errorMessage": message, "kind": kind}


def _told(request: Request, error: Exception) -> tuple[int, str]:
    if isinstance(error, PageError):
        return error.status, error.message
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status, str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, TridentError):
        return (409 if request.method == "POST" else 500), str(error)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return 500, f"{request.method} {request.url.path} failed; the log of the server says why"
