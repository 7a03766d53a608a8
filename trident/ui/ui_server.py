"""`UIServer`: serves the page and its REST interface from a thread of its own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from trident.errors import ConfigError
from trident.http.server_thread import ServerThread
from trident.http.strangers import is_loopback
from trident.ui.cluster_pages import ClusterPages

DEFAULT_PORT = 8080
"""The port of Storm UI."""

_MAX_CONNECTIONS = 256


class UIServer(ServerThread):
    """Serves `ClusterPages` over HTTP. A context manager: leaving it closes it.

    `pages`: what is served.
    `host`, `port`: where to listen; port 0 takes a free one (see `port`).
    `token`, `token_for_all`, `extra_routes`: as of `trident.ui.rest.app`.
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

        def application() -> Any:
            from trident.ui.rest import app

            loopback = is_loopback(host)
            return app(pages, token, token_for_all=token_for_all, loopback=loopback, extra_routes=extra_routes)

        super().__init__(application, host, port, _MAX_CONNECTIONS, listener)
