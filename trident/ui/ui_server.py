"""`UIServer`: serves the page and its REST interface from a thread of its own."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from trident.errors import ConfigError, EnvironmentProblem
from trident.ui.cluster_pages import ClusterPages

if TYPE_CHECKING:
    import uvicorn

__all__ = ["DEFAULT_PORT", "LOOPBACK", "UIServer"]

DEFAULT_PORT = 8080
"""The port of Storm UI."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses that only this machine reaches."""

logger = logging.getLogger(__name__)

_GRACE_S = 2
_KEEP_ALIVE_S = 75
_REQUEST_S = 60.0
_MAX_CONNECTIONS = 256


class UIServer:
    """Serves `ClusterPages` over HTTP. A context manager: leaving it closes it.

    Parameters
    ----------
    pages
        What is served.
    host, port
        Where to listen; port 0 takes a free one (see `port`).
    token, token_for_all, extra_routes
        As of `trident.ui.rest.app`.

    Raises
    ------
    ConfigError
        The address cannot be listened on, or the token is empty.
    EnvironmentProblem
        The packages of the server are missing.
    """

    def __init__(
        self,
        pages: ClusterPages,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        *,
        token_for_all: bool = False,
        extra_routes: Sequence[Any] = (),
    ) -> None:
        if token == "" or (token_for_all and token is None):
            raise ConfigError("the token of a server must not be empty; leave it out to serve what can only be read")
        self._server = _server(pages, token, token_for_all, host in LOOPBACK, extra_routes)
        self._socket = _listening(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=f"trident-ui-{self.port}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def close(self) -> None:
        """Take no more requests, wait a little for those in flight, and end."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"UIServer({self.url!r})"

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            logger.exception("the server of the page at %s ended", self.url)
        finally:
            self._socket.close()


def _server(
    pages: ClusterPages, token: str | None, token_for_all: bool, loopback: bool, extra_routes: Sequence[Any]
) -> uvicorn.Server:
    try:
        import uvicorn

        from trident.drpc.connections import BoundedServer, affordable
        from trident.ui.rest import app
    except ImportError as error:
        raise EnvironmentProblem(
            f"the page needs packages that are missing ({error}); pip install 'trident-spark[ui]'"
        ) from error
    served: Any = app(pages, token, token_for_all=token_for_all, loopback=loopback, extra_routes=extra_routes)
    config = uvicorn.Config(
        served,
        log_config=None,
        log_level="error",  # otherwise clients fill the log with their wrong requests
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return BoundedServer(config, _REQUEST_S, affordable(_MAX_CONNECTIONS))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        hint = "; another program has the port, choose another one" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"the page cannot be served at {host}:{port}: {error.strerror or error}{hint}") from error
    return listener
