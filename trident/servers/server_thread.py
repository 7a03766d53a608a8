"""`ServerThread`: serves an application over HTTP from a thread of its own; `Guard`: what a request must satisfy before.

Every HTTP server of this package asks whether a request comes from a page of another site, which a user's browser was made to
send, whether or not it wants a token: a browser on this machine reaches what listens on this machine, no matter who wrote the
page that it shows.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.roles import Closes, close_on_error

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)


class ServerThread(Closes):
    """A server that listens and answers, from the begin to `close`. A context manager: leaving it closes it.

    `app`: makes the ASGI application; imports what that needs.
    `host`, `port`: where to listen; port 0 takes a free one (see `port`).
    `connections`: how many connections may be open; while there are more, requests are answered 503.
    `token`: what `app` wants of clients; refused if none could send it.
    `listener`: what `listening` returned for this host, if it listens already; closed with the server.
    `what`, `cannot`: what is served, and how the error begins that says that it cannot listen at an address.
    `extra`: the optional dependencies that have its packages.
    `grace_s`: how long requests in flight have at the end.
    `server`: that of uvicorn.
    `url`: the address for clients.
    Raises `ConfigError`: the address cannot be listened on, or the token cannot be one.
    Raises `EnvironmentProblem`: the packages of the server are missing.
    """

    what: ClassVar[str]
    cannot: ClassVar[str]
    extra: ClassVar[str]
    grace_s: ClassVar[int]

    def __init__(
        self,
        app: Callable[[], Any],
        host: str,
        port: int,
        connections: int,
        token: str | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        if token is not None:
            bearer(token)
        with needs_package(self.what, self.extra):
            import uvicorn

            config = uvicorn.Config(
                app(),
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
        from starlette.datastructures import MutableHeaders

        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers(scope).items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refusal(scope)
        app = self.app if refused is None else self.refusal(scope, *refused)
        await app(scope, receive, sending)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
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
        # Of spaces only: half a letter of UTF-8 may be one that `strip` takes for a space.
        if not hmac.compare_digest(token.strip(" \t").encode("latin-1", "replace"), self.token.encode()):
            return 401, "the token is wrong"
        return None


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
