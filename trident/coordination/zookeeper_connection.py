"""The session of a log in ZooKeeper: says that it waits, and waits as long as the topology runs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from trident.errors import LogError
from trident.servers.zookeeper_address import ZooKeeperAddress
from trident.servers.zookeeper_session import AUTH, SessionChange, ZooKeeperSession

__all__ = ["SESSION_S", "ZooKeeperConnection"]

logger = logging.getLogger(__name__)

SESSION_S = 10.0
_STOP_S = 5.0


class ZooKeeperConnection(ZooKeeperSession):
    """A session at an address.

    Attributes
    ----------
    patience_s
        How long a request waits while no server answers; then it raises `LogError`.
    """

    needed_for, error = "a log in ZooKeeper", LogError

    def __init__(self, address: ZooKeeperAddress) -> None:
        self.address, self.patience_s = address, SESSION_S
        self._on_session: Callable[[], None] | None = None
        self._stopping_since = math.inf
        self._waiting_since: float | None = None
        super().__init__(address.hosts, SESSION_S, f"the connection to {address}")

    def on_session(self, act: Callable[[], None] | None) -> None:
        """Call `act` in a thread of its own whenever there is a connection again, perhaps in another session."""
        self._on_session = act

    def stop_waiting(self) -> None:
        """From now on let each request wait for some seconds at most."""
        self._stopping_since = min(self._stopping_since, time.monotonic())

    def changed(self, change: SessionChange) -> None:
        """See `on_session`."""
        if change != "suspended" and self._on_session is not None:
            self._client.handler.spawn(self._on_session)

    def check_patience(self, since: float) -> None:
        """Say once that a request waits."""
        now = time.monotonic()
        if now - since > self.patience_s or now - max(since, self._stopping_since) > _STOP_S:
            self._waiting_since = None
            raise LogError(f"no answer from ZooKeeper at {self.hosts} for {now - since:.0f} seconds")
        if self._waiting_since is None and now - since > 1:
            self._waiting_since = since
            logger.warning("no answer from ZooKeeper for %s; waiting until there is one", self.address)

    def answered(self) -> None:
        """Say that it answers again."""
        since, self._waiting_since = self._waiting_since, None
        if since is not None:
            logger.warning("ZooKeeper answers again for %s, after %.1f seconds", self.address, time.monotonic() - since)

    def unreachable(self) -> LogError:
        """Say what to start."""
        return LogError(
            f"no ZooKeeper answers at {self.hosts} (waited {self.timeout_s:g} seconds for {self.address}). Start it, or "
            "correct the address; a majority of an ensemble's servers must be up"
        )

    def refused(self) -> LogError:
        """Say which credentials are missing."""
        return LogError(
            f"ZooKeeper refuses access to {self.address}: its access control list (ACL) does not allow it. Give the "
            f"credentials that the list names as {AUTH}=digest:USER:PASSWORD, or name another path"
        )
