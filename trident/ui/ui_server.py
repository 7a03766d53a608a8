"""`UIServer`: serves the page and its REST interface from a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.serving.strangers import is_loopback
from trident.ui.cluster_pages import ClusterPages

if TYPE_CHECKING:
    from trident.serving.server_thread import ServerThread

__all__ = ["DEFAULT_PORT", "UIServer"]

DEFAULT_PORT = 8080
"""The port of Storm UI."""

_GRACE_S = 2
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
        self._server = _serve(pages, host, port, token, token_for_all, extra_routes)
        self.host: str = host
        self.port: int = self._server.port

    @property
    def url(self) -> str:
        """The address for clients."""
        return self._server.url

    def close(self) -> None:
        """Take no more requests, wait a little for those in flight, and end."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"UIServer({self.url!r})"


def _serve(
    pages: ClusterPages, host: str, port: int, token: str | None, token_for_all: bool, extra_routes: Sequence[Any]
) -> ServerThread:
    with needs_package("the page", "ui"):
        from trident.serving.server_thread import ServerThread
        from trident.ui.rest import app
    return ServerThread(
        app(pages, token, token_for_all=token_for_all, loopback=is_loopback(host), extra_routes=extra_routes),
        host,
        port,
        thread="trident-ui",
        cannot="the page cannot be served at",
        request_s=_REQUEST_S,
        connections=_MAX_CONNECTIONS,
        grace_s=_GRACE_S,
    )
