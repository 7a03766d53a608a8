"""`UIServer`: serves the page and the REST interface over `ClusterPages`, in the shape of Storm UI's.

`docs/monitoring.md` has the table of addresses; `UIServer.routes` says what answers each.
"""

import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from trident import __version__, errors
from trident.servers.plain_json import json_answer, plain
from trident.servers.server_thread import ServerThread, body_within
from trident.web.cluster_pages import Action, ClusterPages, LogOf, Page, TopologyPages
from trident.web.log_pages import LEVELS, ReadLog, end_of_log, matching

DEFAULT_PORT = 8080  # the port of Storm UI
STATIC = Path(__file__).parent / "static"  # the files of the page
_TOPOLOGY = "/api/v1/topology/{topology_id}"
_VIEWS = ("component/{component}", "visualization", "series", "batches", "dead-letters")
_WINDOWS = {"600": 600, "10800": 10_800, "86400": 86_400, "0": 0, ":all-time": 0}
_MOST_S = 86_400

logger = logging.getLogger(__name__)

_STATUS: Mapping[int, tuple[type[Exception], ...]] = {  # the first one that an error belongs to decides
    404: (errors.NoSuchTopology, KeyError),
    401: (errors.NotAllowed,),
    409: (errors.NameTaken, errors.NotRunning, errors.UpgradeRefused),
    503: (errors.ClusterUnreachable, errors.NoLeader, errors.BackendError, errors.SourceAwayError),
    400: (errors.BadPackage, errors.UnsupportedOperation, ValueError),
}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


class UIServer(ServerThread):
    """Serves `ClusterPages` over HTTP. A context manager: leaving it closes it.

    `pages`: what is served. Its calls may block: each runs in a thread of a pool.
    `token`: what all that changes something needs, and `extra_routes`. None: nothing can be changed.
    `token_for_all`: whether reading needs the token too.
    """

    what, cannot, extra, grace_s = "the page", "the page cannot be served at", "ui", 2
    raw_paths = True

    def __init__(
        self,
        pages: ClusterPages,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        *,
        token_for_all: bool = False,
        extra_routes: Sequence[BaseRoute] = (),
        listener: socket.socket | None = None,
    ) -> None:
        self._pages, self._for_all, self._more = pages, token_for_all, extra_routes
        super().__init__(host, port, 256, token, listener)

    def needs_token(self, scope: Scope) -> bool:
        if scope["method"] not in ("GET", "HEAD") or (self._for_all and scope["path"].startswith(API)):
            return True
        return any(route.matches(scope)[0] is Match.FULL for route in self._more)

    def refusal(self, scope: Scope, status: int, cause: str) -> Response:
        return problem(Request(scope), PageError(status, cause))

    async def answer_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            here = f"{request.method} {request.url.path}: there is no such page"
            error = PageError(error.status_code, here if error.status_code == 404 else "only GET, and POST of actions")
        return problem(request, error)

    def headers(self, scope: Scope) -> Mapping[str, str]:
        return {**_PAGE_HEADERS, "Cache-Control": "no-store" if scope["path"].startswith(API) else "no-cache"}

    def routes(self) -> list[BaseRoute]:
        pages, page = self._pages, {"tokenForAll": self._for_all, "version": __version__}
        reading: dict[str, Callable[[Request], Any]] = {
            "/api/v1/page": lambda request: {**page, "readOnly": self._token is None or pages.read_only},
            "/api/v1/cluster/summary": lambda request: pages.cluster_summary(),
            "/api/v1/nimbus/summary": lambda request: pages.nimbus_summary(),
            "/api/v1/supervisor/summary": lambda request: pages.supervisor_summary(),
            "/api/v1/topology/summary": lambda request: pages.topology_summary(),
            _TOPOLOGY: lambda request: self._of(request).topology(_window(request)),
            **{f"{_TOPOLOGY}/{name}": partial(self._view, name) for name in _VIEWS},
            _TOPOLOGY + "/lookup": self._lookup,
            _TOPOLOGY + "/log": self._log,
        }
        return [
            *self._more,
            *(Route(path, replying(ask), methods=["GET"]) for path, ask in reading.items()),
            Route(_TOPOLOGY + "/log/download", replying(self._download, lambda made: made), methods=["GET"]),
            *(
                Route(f"{_TOPOLOGY}/{each}", self._acting(each.partition("/")[0]), methods=["POST"])
                for each in ("activate", "deactivate", "dead-letters", "kill/{wait}", "rebalance/{wait}")
            ),
            Route("/", lambda request: FileResponse(STATIC / "index.html"), methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def _of(self, request: Request) -> TopologyPages:
        return self._pages.of_topology(_path_parameter(request, "topology_id"))

    def _view(self, name: str, request: Request) -> Page:
        named = {key: _path_parameter(request, key) for key in request.path_params}
        return self._of(request).view(name.format(**named), _window(request))

    def _lookup(self, request: Request) -> Page:
        state = request.query_params.get("state")
        if state is None:
            raise PageError(400, "name the state, as in lookup?state=count&key=the")
        return dict(plain(self._of(request).lookup(state, request.query_params.getlist("key"))))

    def _log(self, request: Request) -> Page:
        offset = request.query_params.get("offset")
        if offset is not None and not (offset.isascii() and offset.isdigit()):
            raise PageError(400, f"offset={offset!r}: expected a number of bytes")
        start, level = None if offset is None else int(offset), request.query_params.get("level") or None
        search = request.query_params.get("search", "")
        if level is not None and level not in LEVELS:
            raise PageError(400, f"level={level!r}: expected one of {', '.join(LEVELS)}")
        read = self._reader(request)
        return matching(read, start, level, search) if level or search else read(start)

    def _download(self, request: Request) -> Response:
        pieces = end_of_log(self._reader(request))
        first = next(pieces, None)  # here, where an error is still an answer
        texts = () if first is None else (page["text"] for page in chain([first], pieces))
        file = re.sub(r"[^\w.-]+", "-", _path_parameter(request, "topology_id"), flags=re.ASCII)
        headers = {"Content-Disposition": f'attachment; filename="{file}.log"'}
        return StreamingResponse(texts, headers=headers, media_type="text/plain")

    def _reader(self, request: Request) -> ReadLog:
        topology_id, of = _path_parameter(request, "topology_id"), request.query_params.get("of", "driver")
        if of not in ("driver", "output"):
            raise PageError(400, f"of={of!r}: expected driver, or output")
        named: LogOf = "output" if of == "output" else "driver"
        return lambda offset: self._pages.log(topology_id, offset, named)

    def _acting(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Page:
            if self._pages.read_only:
                raise PageError(403, "this server can only be read")
            parameters, topology_id = await _parameters(request, action), _path_parameter(request, "topology_id")
            done = await run_in_threadpool(lambda: self._pages.of_topology(topology_id).act(action, parameters))
            return {"topologyOperation": action, "topologyId": topology_id, "status": "success", **(done or {})}

        return awaiting(act)


def _path_parameter(request: Request, name: str) -> str:
    return unquote(request.path_params[name])


def _window(request: Request) -> int:
    asked = request.query_params.get("window", "0")
    if asked not in _WINDOWS:
        raise PageError(400, f"window={asked!r}: expected one of {', '.join(_WINDOWS)}")
    return _WINDOWS[asked]


async def _parameters(request: Request, action: Action) -> dict[str, Any]:
    body = await body_of(request, 64 << 10)
    if action == "dead-letters":
        letters, reason = body.get("letters"), body.get("reason")
        if not isinstance(letters, list) or not all(isinstance(each, str) for each in letters):
            raise PageError(400, 'letters: expected a list of ids, as in ["12-0"]')
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise PageError(400, "reason: expected a text that says why")
        return {"letters": letters, "reason": reason}
    parameters = _options(body)
    if "wait" in request.path_params:
        wait = _path_parameter(request, "wait")
        try:
            parameters["wait_s"] = float(wait)
        except ValueError:
            parameters["wait_s"] = -1.0
        if not 0 <= parameters["wait_s"] <= _MOST_S:
            raise PageError(400, f"{wait!r}: expected a number of seconds, from 0 to {_MOST_S}")
    return parameters


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a rebalance: Storm UI's `{"rebalanceOptions": {"numWorkers": 2, "executors": {"split": 4}}}`."""
    options = body.get("rebalanceOptions", {})
    if not isinstance(options, dict):
        raise PageError(400, "rebalanceOptions: expected an object")
    values: dict[str, Any] = {}
    workers, executors = options.get("numWorkers"), options.get("executors")
    if workers is not None:
        values["workers"] = _count("numWorkers", workers)
    if executors is not None:
        if not isinstance(executors, dict):
            raise PageError(400, "executors: expected an object of components with their numbers of executors")
        values["executors"] = {name: _count(f"executors of {name!r}", count) for name, count in executors.items()}
    return values


def _count(what: str, value: Any) -> int:
    try:
        count = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        count = 0
    if count < 1:
        raise PageError(400, f"{what}: expected a number, at least 1")
    return count


class PageError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


async def body_of(request: Request, most: int) -> Mapping[str, Any]:
    """Return the JSON object that a request brings, an empty one if it brings nothing; else raise `PageError`."""
    body = await body_within(request, most)
    if body is None:
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
    async def reply(request: Request) -> Response:
        try:
            return json_answer(await ask(request))
        except Exception as error:  # noqa: BLE001  whatever it is
            return problem(request, error)

    return reply


def problem(request: Request, error: Exception) -> Response:
    """Return an error as JSON, in Storm UI's shape; an unexpected one is logged, and its text is not sent."""
    status, message = _status_and_text(request, error)
    phrase, kind = HTTPStatus(status).phrase, type(error).__name__  # for programs
    body = {"error": f"{status} {phrase}", "errorMessage": message, "kind": kind}
    return json_answer(body, status, _HEADERS.get(status))


def _status_and_text(request: Request, error: Exception) -> tuple[int, str]:
    if isinstance(error, PageError):
        return error.status, error.message
    for status, kinds in _STATUS.items():
        if isinstance(error, kinds):
            return status, str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, errors.TridentError):
        return (409 if request.method == "POST" else 500), str(error)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return 500, f"{request.method} {request.url.path} failed; the log of the server says why"


API = "/api/"  # what begins with this is data; all else are the files of the page, which reveal nothing
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
