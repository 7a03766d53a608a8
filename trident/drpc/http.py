"""The ASGI application of the DRPC server: who may ask, how much, how long; answers and errors as JSON."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trident.drpc.local import DRPCFunction, LocalDRPC
from trident.errors import DRPCExecutionException, TridentError, describe
from trident.serving.strangers import stranger

__all__ = ["make_app"]

_STATUS = {
    "failed": 500, "unknown": 404, "invalid": 400, "unauthorized": 401, "forbidden": 403, "too_large": 413,
    "overloaded": 503, "timeout": 504, "stopped": 503,
}  # fmt: skip
_HEADERS = {
    "overloaded": {"Retry-After": "1"},
    "unauthorized": {"WWW-Authenticate": "Bearer", "Connection": "close"},  # the body of a stranger is not read
    "forbidden": {"Connection": "close"},
}


def make_app(
    drpc: LocalDRPC, token: str | None, loopback: bool, timeout_s: float, max_request_bytes: int, max_concurrency: int
) -> Starlette:
    """Return the application; `loopback` is that of `stranger`, the other arguments are those of `DRPCServer`."""
    service = _Service(drpc, token, timeout_s, max_request_bytes, max_concurrency)
    routes = [
        Route("/drpc/{function}", service.execute, methods=["POST"]),
        Route("/drpc", service.functions, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(_Guard, loopback)], exception_handlers={HTTPException: _no_such_page}
    )


class _Guard:
    """Refuses what pages of other sites send, whatever they ask for."""

    def __init__(self, app: ASGIApp, loopback: bool) -> None:
        self._app, self._loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        cause = stranger(headers.get("host", ""), headers.get("origin"), self._loopback)
        refused = None if cause is None else _problem(DRPCExecutionException("*", cause, reason="forbidden"))
        await (refused or self._app)(scope, receive, send)


class _Service:
    """The three pages."""

    def __init__(
        self, drpc: LocalDRPC, token: str | None, timeout_s: float, max_request_bytes: int, max_concurrency: int
    ) -> None:
        self._drpc, self._timeout_s, self._max_bytes = drpc, timeout_s, max_request_bytes
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._free = max_concurrency
        self._most = max_concurrency

    async def execute(self, request: Request) -> Response:
        function = request.path_params["function"]
        try:
            self._check_token(function, request)
            if self._free == 0:
                cause = f"{self._most} requests are in flight, the most that the server takes; try again later"
                raise DRPCExecutionException(function, cause, reason="overloaded")
            self._free -= 1
            try:
                async with asyncio.timeout_at(request.state.deadline):
                    answer = await self._answer(self._drpc.function(function), request)
            finally:
                self._free += 1
        except TimeoutError:
            cause = f"no answer within {self._timeout_s:g} s"
            return _problem(DRPCExecutionException(function, cause, reason="timeout"))
        except DRPCExecutionException as error:
            return _problem(error)
        except ClientDisconnect:
            return Response(status_code=400)  # the client does not read it
        return _json(_as_json(answer))

    async def functions(self, request: Request) -> Response:
        try:
            self._check_token("*", request)
        except DRPCExecutionException as error:
            return _problem(error)
        return _json(json.dumps({"topology": self._drpc.name, "functions": self._drpc.functions}))

    async def health(self, request: Request) -> Response:
        try:
            txid = await run_in_threadpool(lambda: self._drpc.txid)
        except TridentError as error:
            return _json(json.dumps({"status": "failing", "cause": describe(error)}), 503)
        if self._drpc.closed:
            return _json(json.dumps({"status": "stopped"}), 503)
        return _json(json.dumps({"status": "ok", "topology": self._drpc.name, "txid": txid}))

    async def _answer(self, function: DRPCFunction, request: Request) -> list[list[Any]]:
        answer = function.submit(_args_of(function.name, request, await self._body(function.name, request)))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:  # too late, or the client has gone
            function.forget(answer)
            raise

    async def _body(self, function: str, request: Request) -> bytes:
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large(function)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large(function)
        return bytes(body)

    def _too_large(self, function: str) -> DRPCExecutionException:
        cause = f"the request is longer than the {self._max_bytes} bytes that the server takes"
        return DRPCExecutionException(function, cause, reason="too_large")

    def _check_token(self, function: str, request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            cause = "the server wants its token, as the header Authorization: Bearer TOKEN"
            raise DRPCExecutionException(function, cause, reason="unauthorized")


def _args_of(function: str, request: Request, body: bytes) -> str:
    """Return the arguments: `args` of a JSON object, or the body itself if its content type is not JSON."""
    try:
        text = body.decode()
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return text
        args = json.loads(text)["args"]
        if isinstance(args, str):
            return args
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    cause = 'expected a JSON object as {"args": "a text"}, or with another content type the text itself, in UTF-8'
    raise DRPCExecutionException(function, cause, reason="invalid")


def _problem(error: DRPCExecutionException) -> Response:
    problem = {"function": error.function, "reason": error.reason, "step": error.step, "cause": error.cause}
    return _json(json.dumps({"error": problem}), _STATUS.get(error.reason, 500), _HEADERS.get(error.reason))


async def _no_such_page(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    cause = f"{request.method} {request.url.path}: there are POST /drpc/FUNCTION, GET /drpc and GET /health"
    problem = {"function": "*", "reason": "unknown", "step": None, "cause": cause}
    return _json(json.dumps({"error": problem}), status)


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, "application/json")


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers, texts, lists and mappings; anything else as text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
