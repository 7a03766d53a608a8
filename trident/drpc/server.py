"""DRPC over HTTP: `POST /drpc/<function>`, `GET /drpc`, `GET /health`; JSON both ways."""

from __future__ import annotations

import logging
from typing import Any

from trident.drpc.local import LocalDRPC
from trident.errors import ConfigError
from trident.http.server_thread import ServerThread
from trident.http.strangers import is_loopback

__all__ = ["DEFAULT_PORT", "DRPCServer"]

DEFAULT_PORT = 3774
"""Storm's port for DRPC over HTTP."""

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
        Asked of every request as `Authorization: Bearer <token>`, before its body is read; None: every client may ask, but no
        page of another site (see `trident.http.strangers`). Use one on any host but this one. What answers without it:
        `GET /health`, which tells the topology's name, its last committed batch and, where that cannot be read, the error; and
        what says that something is no request (400, 404 and 405 of other pages, 408, 431) or that there are too many
        connections (503).
    timeout_s
        Seconds within which a request is answered, from its first byte on. A client that has not sent it by then (its head
        within five seconds), or does not take its answer, is cut off.
    max_request_bytes
        The longest body. (The head may have 16 KiB and 100 headers.)
    max_concurrency
        How many requests may be in flight at once; the server refuses more at once, and clients may send them again.
    max_connections
        How many connections may be open; those beyond are answered 503 and closed, unless one address holds more than the
        newcomer's: then one of that address gives way. Half of the file descriptors that are
        free when the server starts at most: the others are for the topology beside it.

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
        if token == "":
            raise ConfigError("the token of a DRPC server must not be empty; leave it out to let every client ask")
        if token is None and not is_loopback(host):
            logger.warning("DRPC is served on %s without a token: any client that reaches the port may ask", host)

        def app() -> Any:
            from trident.drpc.http import make_app

            return make_app(drpc, token, is_loopback(host), timeout_s, max_request_bytes, max_concurrency)

        super().__init__(app, host, port, timeout_s, max_connections)

    def stop(self) -> None:
        """Take no more requests, wait a few seconds for those in flight, and close."""
        self.close()
