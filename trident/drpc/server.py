"""DRPC over HTTP: the server; who may ask, how much, how long."""

import asyncio
import json
import logging
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from trident.drpc.batching import DRPCFunction
from trident.drpc.local import LocalDRPC
from trident.errors import ConfigError, DRPCExecutionException, TridentError, describe
from trident.servers.plain_json import json_answer, to_json
from trident.servers.server_thread import ServerThread, body_within, is_loopback

DEFAULT_PORT = 3774  # Storm's port for DRPC over HTTP

logger = logging.getLogger(__name__)


class DRPCServer(ServerThread):
    """Serves the functions of a `LocalDRPC` from a thread of its own. A context manager: leaving it stops it.

    Parameters
    ----------
    drpc
        The functions that answer; the server does not close it.
    host, port
        Where to listen; port 0 takes a free one (see `port`).
    token
        Required of every request as `Authorization: Bearer <token>`, before its body is read; None: any client may ask, but no
        page of another site. Use one on any host but this one. `GET /health`, with the last committed batch, needs none.
    timeout_s
        Seconds within which a request is answered, its body included, once its head has come.
    max_request_bytes
        The longest body.
    max_concurrency, max_connections
        How many requests may be in flight, and connections open; more requests are answered 503, and may be sent again.

    Raises
    ------
    ConfigError
        An impossible limit, or an address that cannot be listened on.
    EnvironmentProblem
        The packages of the server are missing.
    """

    what, cannot, extra, grace_s = "the DRPC server", "DRPC cannot listen on", "drpc", 5

    def __init__(
        self,
        drpc: LocalDRPC,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        max_request_bytes: int = 1 << 20,
        max_concurrency: int = 512,
        max_connections: int = 1024,
    ) -> None:
        if timeout_s <= 0 or min(max_request_bytes, max_concurrency, max_connections) < 1:
            raise ConfigError("timeout_s and the limits of a DRPC server must be above 0")
        self._drpc, self._timeout_s, self._max_bytes = drpc, timeout_s, max_request_bytes
        self._free = self._most = max_concurrency
        self._asking = [
            Route("/drpc/{function}", self._execute, methods=["POST"]),
            Route("/drpc", self._functions, methods=["GET"]),
        ]
        super().__init__(host, port, max_connections, token)
        if token is None and not is_loopback(host):
            logger.warning("DRPC is served on %s without a token: any client that reaches the port may ask", host)

    def stop(self) -> None:
        """Take no more requests, wait a few seconds for those in flight, and close."""
        self.close()

    def routes(self) -> list[BaseRoute]:
        return [*self._asking, Route("/health", self._health, methods=["GET"])]

    def needs_token(self, scope: Scope) -> bool:
        return super().needs_token(scope) and any(route.matches(scope)[0] is Match.FULL for route in self._asking)

    def refusal(self, scope: Scope, status: int, cause: str) -> Response:
        return _problem("*", cause, None, "forbidden" if status == 403 else "unauthorized")

    async def answer_error(self, request: Request, error: Exception) -> Response:
        here = f"{request.method} {request.url.path}"
        if isinstance(error, HTTPException):
            cause = f"{here}: this server has POST /drpc/FUNCTION, GET /drpc and GET /health"
            return _problem("*", cause, None, "unknown", error.status_code)
        return _problem("*", f"{here} failed; the log of the server says why", None, "failed")

    async def _execute(self, request: Request) -> Response:
        function = request.path_params["function"]
        try:
            if self._free == 0:
                cause = f"{self._most} requests are in flight, the most that the server takes; try again later"
                raise DRPCExecutionException(function, cause, reason="overloaded")
            self._free -= 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._answer(self._drpc.function(function), request)
            finally:
                self._free += 1
        except TimeoutError:
            cause = f"no answer within {self._timeout_s:g} s"
            return _problem(function, cause, None, "timeout")
        except DRPCExecutionException as error:
            return _problem(error.function, error.cause, error.step, error.reason)
        except ClientDisconnect:
            return Response(status_code=400)  # the client does not read it
        return Response(to_json(answer, str), media_type="application/json")

    async def _functions(self, request: Request) -> Response:
        return json_answer({"topology": self._drpc.name, "functions": self._drpc.functions})

    async def _health(self, request: Request) -> Response:
        try:
            txid = await run_in_threadpool(lambda: self._drpc.txid)
        except TridentError as error:
            return json_answer({"status": "failing", "cause": describe(error)}, 503)
        if self._drpc.closed:
            return json_answer({"status": "stopped"}, 503)
        return json_answer({"status": "ok", "topology": self._drpc.name, "txid": txid})

    async def _answer(self, function: DRPCFunction, request: Request) -> list[list[Any]]:
        body = await body_within(request, self._max_bytes)
        if body is None:
            cause = f"the request is longer than the {self._max_bytes} bytes that the server takes"
            raise DRPCExecutionException(function.name, cause, reason="too_large")
        answer = function.submit(_args_of(function.name, request, body))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:  # too late, or the client has gone
            function.forget(answer)
            raise


_STATUS = {
    "failed": 500, "unknown": 404, "invalid": 400, "unauthorized": 401, "forbidden": 403, "too_large": 413,
    "overloaded": 503, "timeout": 504, "stopped": 503,
}  # fmt: skip
_HEADERS = {
    "overloaded": {"Retry-After": "1"},
    "unauthorized": {"WWW-Authenticate": "Bearer", "Connection": "close"},  # the body of a stranger is not read
    "forbidden": {"Connection": "close"},
    "timeout": {"Connection": "close"},  # nor the rest of one that did not come in time
}


def _args_of(function: str, request: Request, body: bytes) -> str:
    """Return the arguments: `args` of a JSON object, or the body itself if its content type is not JSON."""
    try:
        text = body.decode()
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return text
        args = json.loads(text)["args"]
        if isinstance(args, str):
            return args
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    cause = 'expected a JSON object as {"args": "a text"}, or, with another content type, the text itself in UTF-8'
    raise DRPCExecutionException(function, cause, reason="invalid")


def _problem(function: str, cause: str, step: str | None, reason: str, status: int | None = None) -> Response:
    problem = {"function": function, "reason": reason, "step": step, "cause": cause}
    return json_answer({"error": problem}, status or _STATUS.get(reason, 500), _HEADERS.get(reason))
