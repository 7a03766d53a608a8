"""`ServerThread`: serves routes over HTTP from a thread of its own.

Every server of this package asks whether a request comes from a page of another site, whether or not it wants a token: a
browser on this machine reaches what listens on this machine, no matter who wrote the page that it shows.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import socket
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import SplitResult, urlsplit

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.roles import Closes, close_on_error

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)


class ServerThread(Closes):
    """A server that listens and answers, from the begin to `close`. A context manager: leaving it closes it.

    A subclass says what it serves (`what`, `extra`: the optional dependencies that it needs), how an error begins that it
    cannot listen (`cannot`), how long requests in flight have at the end (`grace_s`), its routes and its refusals.

    `connections`: how many may be open; while there are more, requests are answered 503.
    `token`: what `Authorization: Bearer …` must have where it is needed; None: what needs it is refused.
    `listener`: what `listening` returned for this host, if it listens already; closed with the server.
    Raises `ConfigError`: the address cannot be listened on, or no client could send the token.
    Raises `EnvironmentProblem`: the packages of the server are missing.
    """

    what: ClassVar[str]
    cannot: ClassVar[str]
    extra: ClassVar[str]
    grace_s: ClassVar[int]
    raw_paths: ClassVar[bool] = False
    """Whether routes are matched in the path as it was sent, so that a name may have a slash in it."""

    def __init__(
        self, host: str, port: int, connections: int, token: str | None = None, listener: socket.socket | None = None
    ) -> None:
        if token is not None:
            bearer(token)
        self._token, self._loopback = token, is_loopback(host)
        with needs_package(self.what, self.extra):
            import uvicorn

            config = uvicorn.Config(
                self._app(),
                log_config=None,
                log_level="error",  # otherwise clients fill the log with their wrong requests
                access_log=False,
                lifespan="off",
                ws="none",
                http="h11",  # it bounds the head of a request, as httptools does not
                h11_max_incomplete_event_size=16 << 10,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=connections + 1,  # uvicorn refuses at as many, not beyond
                timeout_keep_alive=75,
                timeout_graceful_shutdown=self.grace_s,
            )
        self.server = uvicorn.Server(config)
        self._socket = listener or listening(self.cannot, host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self.url = url_of(host, self.port)
        self._thread = threading.Thread(target=self._run, name=f"trident-{self.extra}-{self.port}", daemon=True)
        self._thread.start()

    @abstractmethod
    def routes(self) -> list[BaseRoute]:
        """Return what answers; called once."""

    @abstractmethod
    def refusal(self, scope: Scope, status: int, cause: str) -> ASGIApp:
        """Return the answer to a request that is refused before a route sees it."""

    @abstractmethod
    async def answer_error(self, request: Request, error: Exception) -> Response:
        """Answer a request for which there is no route (`HTTPException`), or whose route raised."""

    def needs_token(self, scope: Scope) -> bool:
        """Whether a request needs the token; by default all do, if there is one."""
        return self._token is not None

    def headers(self, scope: Scope) -> Mapping[str, str]:
        """Return the headers that every answer to a request has, unless it sets them itself."""
        return {}

    def close(self) -> None:
        """Take no more requests, wait a little for those in flight, and end."""
        self.server.should_exit = True
        self._thread.join()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _run(self) -> None:
        try:
            self.server.run(sockets=[self._socket])
        except Exception:
            logger.exception("the server at %s ended", self.url)
        finally:
            self._socket.close()

    def _app(self) -> ASGIApp:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware

        made = Starlette(
            routes=self.routes(),
            middleware=[Middleware(self._guard)],
            exception_handlers={HTTPException: self.answer_error, Exception: self.answer_error},
        )
        made.router.redirect_slashes = False  # an answer without a reason
        return made

    def _guard(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind a guard, which refuses requests of other sites, and those without the token."""

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            from starlette.datastructures import MutableHeaders

            if scope["type"] != "http":
                return
            if self.raw_paths:
                scope = {**scope, "path": scope.get("raw_path", scope["path"].encode()).decode("latin-1")}

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    for name, value in self.headers(scope).items():
                        headers.setdefault(name, value)
                await send(message)

            refused = self._why_refused(scope)
            await (app if refused is None else self.refusal(scope, *refused))(scope, receive, sending)

        return guard

    def _why_refused(self, scope: Scope) -> tuple[int, str] | None:
        from starlette.datastructures import Headers

        headers = Headers(scope=scope)
        cause = stranger(headers.get("host", ""), headers.get("origin"), self._loopback)
        if cause is not None:
            return 403, cause
        if not self.needs_token(scope):
            return None
        if self._token is None:
            return 403, "the server was started without a token, so it can only be read"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return 401, "this needs the token, as the header Authorization: Bearer TOKEN"
        # Of spaces only: half a letter of UTF-8 may be one that `strip` takes for a space.
        if not hmac.compare_digest(token.strip(" \t").encode("latin-1", "replace"), self._token.encode()):
            return 401, "the token is wrong"
        return None


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def listens_at(cannot: str, host: str, port: int) -> Iterator[None]:
    """Run what makes a server listen; `ConfigError`, which begins with `cannot`, if the address cannot be had."""
    try:
        if not 0 <= port <= 65_535:  # getaddrinfo would take its last 16 bits
            raise OSError("a port is a number from 0 to 65535")
        yield
    except UnicodeError as error:  # a host's name that cannot be one
        raise ConfigError(f"{cannot} {host}:{port}: {error}") from error
    except OSError as error:
        hint = "; another program or topology has the port, choose another one, or 0 for a free one"
        in_use = hint if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"{cannot} {host}:{port}: {error.strerror or error}{in_use}") from error


def listening(cannot: str, host: str, port: int) -> socket.socket:
    with listens_at(cannot, host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        with close_on_error(listener.close):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
    return listener


def stranger(host: str, origin: str | None, loopback: bool) -> str | None:
    """Return why a request is one of another site, by its headers `Host` and `Origin`; None if it is not.

    `loopback`: the server is for this machine. Then a request must name this machine: a page of another site whose name
    was made to lead here (DNS rebinding) names that site.
    """
    if loopback and not is_loopback(_split(f"//{host}").hostname or ""):
        return f"this server is for its own machine, and the request names the host {host!r}"
    if origin is not None and _split(origin).netloc != host:
        return f"a page of {origin!r} may not ask this server"
    return None


def bearer(token: str) -> bytes:
    """Return the header `Authorization` with a token; `ConfigError`, without the token, if no header can have it as it is."""
    if token != token.strip() or not token.isprintable() or not token:
        raise ConfigError(
            "a token must be one line of text without spaces before and after it, and must not be empty; leave it out to want "
            "none. The one that was given is not that"
        )
    return f"Bearer {token}".encode()


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by itself: its name is `localhost`, or its address begins with 127 or is `::1`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def body_within(request: Request, most: int) -> bytes | None:
    """Return the body of a request; None if it is longer than `most` bytes, and then it is not read further."""
    length = request.headers.get("content-length", "0")
    body = bytearray()
    if length.isdigit() and int(length) > most:
        return None
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
