"""`UIServer`: serves the page and its REST interface from a thread of its own; `TopologyPage`: the page of one topology."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.servers.server_thread import ServerThread, bearer, is_loopback, listening, url_of
from trident.web.cluster_pages import ClusterPages, OneTopology
from trident.web.log_pages import RecentLog

if TYPE_CHECKING:
    from trident.run.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology

DEFAULT_PORT = 8080
"""The port of Storm UI."""


class UIServer(ServerThread):
    """Serves `ClusterPages` over HTTP. A context manager: leaving it closes it.

    `pages`: what is served.
    `host`, `port`: where to listen; port 0 takes a free one (see `port`).
    `token`, `token_for_all`, `extra_routes`: as of `trident.web.rest.app`.
    `listener`: as of `ServerThread`.
    Raises `ConfigError`: the address cannot be listened on, or the token is empty.
    Raises `EnvironmentProblem`: the packages of the server are missing.
    """

    what, cannot, extra, grace_s = "the page", "the page cannot be served at", "ui", 2

    def __init__(
        self,
        pages: ClusterPages,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        *,
        token_for_all: bool = False,
        extra_routes: Sequence[Any] = (),
        listener: socket.socket | None = None,
    ) -> None:
        if token == "" or (token_for_all and token is None):
            raise ConfigError("the token of a server must not be empty; leave it out to serve what can only be read")
        if token is not None:
            bearer(token)  # or no client could send it

        def application() -> Any:
            from trident.web.rest import app

            loopback = is_loopback(host)
            return app(pages, token, token_for_all=token_for_all, loopback=loopback, extra_routes=extra_routes)

        super().__init__(application, host, port, 256, listener)


class TopologyPage:
    """The page of one topology: listens from the begin on, and answers once it runs. A request that comes before waits.

    `host`, `port`: where to listen; port 0 takes a free one.
    `token`: what actions need; None: the page can only be read.
    `url`: the address of the page.
    Raises `ConfigError`: the address cannot be listened on.
    Raises `EnvironmentProblem`: the packages of the server are missing.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        with needs_package(UIServer.what, UIServer.extra):  # before a topology has started, and not after
            import uvicorn  # noqa: F401

            import trident.web.rest  # noqa: F401
        self._token = token
        self._listener = listening(UIServer.cannot, host, port)
        self._at = host, int(self._listener.getsockname()[1])
        self.url = url_of(*self._at)
        self._log = RecentLog("trident")
        self._log.__enter__()
        self._server: UIServer | None = None

    def show(self, running: RunningTopology | RunningStormTopology) -> None:
        """Answer with the pages of a running topology from now on."""
        from trident.web.running_pages import pages_of

        one = OneTopology(running.name, pages_of(running), self._log.page)
        self._server = UIServer(one, *self._at, self._token, listener=self._listener)

    def close(self) -> None:
        """Free the port; harmless if done before."""
        self._log.__exit__(None, None, None)
        self._listener.close() if self._server is None else self._server.close()
