"""`ZooKeeperState`: the nodes of a cluster in a ZooKeeper."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trident.cluster.state.cluster_state import ClusterEvent
from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.servers.log_addresses import ZooKeeperAddress
from trident.servers.nodes import Refusal, Step
from trident.servers.zookeeper_nodes import AUTH, SessionChange, ZooKeeperNodes

_log = logging.getLogger(__name__)


class ZooKeeperState(ZooKeeperNodes):
    """The nodes below an address; what is there is created if it is not.

    `timeout_s`: how long this process may be out of touch before the servers end its session, and a request without an answer.
    They may have bounds of their own.
    Raises `ClusterUnreachable`: no server answered within the timeout.
    Raises `EnvironmentProblem`: the package kazoo is missing.
    """

    needed_for, error = "a cluster's state in ZooKeeper", ClusterError

    def __init__(self, address: ZooKeeperAddress, timeout_s: float, tell: Callable[[ClusterEvent], None]) -> None:
        self._tell = tell
        super().__init__(address.hosts, address.path, timeout_s, f"the state of the cluster at {address.hosts}")
        try:
            self.make("/")
        except BaseException:
            self.close()
            raise

    def changed(self, change: SessionChange) -> None:
        if change != "connected":
            _log.warning("the session at the ZooKeeper %s is %s", self.hosts, change)
        self._tell(ClusterEvent(change, ""))

    def fired(self, path: str) -> None:
        self._tell(ClusterEvent("changed", path))

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        refusal = super().change(*steps, durable=durable)
        while refusal == "missing" and self.read(["/"]) == [None]:  # all of the cluster was deleted
            self.make("/")
            refusal = super().change(*steps, durable=durable)
        return refusal

    def check_patience(self, since: float) -> None:
        if time.monotonic() - since > self.timeout_s:
            raise self.unreachable()

    def unreachable(self) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"no ZooKeeper answers at {self.hosts} (tried for {self.timeout_s:g} s); is it up, and does it have a majority?"
        )

    def refused(self) -> ClusterError:
        return ClusterError(
            f"the ZooKeeper at {self.hosts} refuses access to the cluster: give {AUTH}=digest:USER:PASSWORD, of the user who "
            "made its nodes, to every daemon and client"
        )
