"""`trident nimbus`: one Nimbus with its HTTP interface and the page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from trident import __version__
from trident.cluster.cluster_log import log_of
from trident.cluster.code.code_store import CodeStore
from trident.cluster.nimbus.leadership import leader_of
from trident.cluster.nimbus.nimbus import Nimbus, NimbusSettings
from trident.cluster.nimbus.nimbus_routes import nimbus_routes
from trident.cluster.nimbus.submissions import Submissions
from trident.cluster.pages import ClusterOverview
from trident.cluster.state.cluster_address import open_cluster_state
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterUnreachable, NoLeader
from trident.ui.cluster_pages import Action, Page
from trident.ui.ui_server import UIServer

__all__ = ["NimbusDaemon"]


class NimbusDaemon:
    """A Nimbus that runs in this process. A context manager: leaving it stops it; topologies go on.

    Parameters
    ----------
    address
        Of the cluster's state.
    token
        What clients, supervisors and drivers are asked for.
    code_dir
        Where the packages of code are; several Nimbuses of a cluster share it.
    host, port
        Where it answers; port 0 takes a free one.
    public_host
        The name of this machine for others; by default `host`.

    Raises
    ------
    ClusterUnreachable, ConfigError, EnvironmentProblem
    """

    def __init__(
        self,
        address: str,
        token: str,
        code_dir: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        public_host: str | None = None,
        settings: NimbusSettings | None = None,
        session_timeout_s: float = 10.0,
    ) -> None:
        self._open = ExitStack()
        try:
            cluster = StormClusterState(open_cluster_state(address, session_timeout_s))
            self._open.callback(cluster.disconnect)
            code = CodeStore(code_dir)
            self.submissions = Submissions(cluster, code, lambda name: log_of(address, name))
            overview = ClusterOverview(cluster, token, self._act)
            routes = nimbus_routes(self.submissions, self._check_leads)
            self.server = self._open.enter_context(UIServer(overview, host, port, token, extra_routes=routes))
            url = self.server.url if public_host is None else f"http://{public_host}:{self.server.port}"
            tidy = self.submissions.remove_unused_code
            self.nimbus = Nimbus(cluster, url, __version__, str(code_dir.absolute()), settings, tidy)
            self._open.callback(self.nimbus.stop)
            self.nimbus.start()
        except BaseException:
            self._open.close()
            raise
        self.url, self._cluster = url, cluster

    def wait_until_known(self, timeout_s: float = 15.0) -> None:
        """Wait until the cluster has a leader, this one or another. Raises `ClusterUnreachable` if none is there in time."""
        ends = time.monotonic() + timeout_s
        while leader_of(self._cluster.state) is None:
            if time.monotonic() > ends:
                raise ClusterUnreachable(f"no Nimbus leads the cluster after {timeout_s:g} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop; harmless if it has been."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _check_leads(self) -> None:
        if not self.nimbus.leads:
            leader = leader_of(self._cluster.state)
            where = "none leads just now; try again" if leader is None else f"ask the one at {leader['url']}"
            raise NoLeader(f"this Nimbus does not lead the cluster: {where}")

    def _act(self, storm_id: str, action: Action, parameters: Mapping[str, Any]) -> Page:
        self._check_leads()
        done = self.submissions.act(storm_id, action, parameters)
        self.nimbus.wake()
        return done
