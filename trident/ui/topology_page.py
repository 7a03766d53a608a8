"""`TopologyPage`: the page of one topology of this process. It has its port before the topology starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.extras import needs_package
from trident.http.server_thread import listening, url_of
from trident.ui.one_topology import OneTopology
from trident.ui.recent_log import RecentLog
from trident.ui.running_pages import pages_of
from trident.ui.ui_server import UIServer

if TYPE_CHECKING:
    from trident.runtime.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology


class TopologyPage:
    """Listens from the begin on, and answers once the topology runs: a request that comes before waits.

    `host`, `port`: where to listen; port 0 takes a free one.
    `token`: what actions need; None: the page can only be read.
    Raises `ConfigError`: the address cannot be listened on.
    Raises `EnvironmentProblem`: the packages of the server are missing.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        with needs_package(UIServer.what, UIServer.extra):  # before a topology has started, and not after
            import uvicorn  # noqa: F401

            import trident.ui.rest  # noqa: F401
        self._token = token
        self._listener = listening(UIServer.cannot, host, port)
        self.host: str = host
        self.port: int = self._listener.getsockname()[1]
        self._log = RecentLog("trident")
        self._log.__enter__()
        self._server: UIServer | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        return url_of(self.host, self.port)

    def show(self, running: RunningTopology | RunningStormTopology) -> None:
        """Answer with the pages of a running topology from now on."""
        one = OneTopology(running.name, pages_of(running), self._log.page)
        self._server = UIServer(one, self.host, self.port, self._token, listener=self._listener)

    def close(self) -> None:
        """Free the port; harmless if done before."""
        self._log.__exit__(None, None, None)
        self._listener.close() if self._server is None else self._server.close()
