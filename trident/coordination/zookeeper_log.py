"""The transaction log in ZooKeeper: any machine can take a topology over, without a disk that both see.

The rules are the same as in the log in files (`transaction_log.py`): a segment begins with the whole folded state, so opening
a log compacts it, and the newest segment is all that a reader needs. See `zookeeper_nodes.py` for the nodes and for requests
that get no answer, `zookeeper_claim.py` for what makes one driver the writer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Self

from trident.coordination.durable_log import check_topology, state_to_continue
from trident.coordination.log_state import LogState
from trident.coordination.remote_log import RemoteLog
from trident.coordination.zookeeper_claim import ZooKeeperClaim
from trident.coordination.zookeeper_nodes import LogNodes, ZooKeeperConnection
from trident.coordination.zookeeper_reader import ZooKeeperReader
from trident.coordination.zookeeper_segment import ZooKeeperSegments
from trident.errors import LogError
from trident.retention import Retention
from trident.servers.zookeeper_address import ZooKeeperAddress


class ZooKeeperLog(RemoteLog):
    """The log at an address. Threads may append at the same time; a forked child may not."""

    server = "ZooKeeper"
    segments_type: type[ZooKeeperSegments] = ZooKeeperSegments

    def __init__(
        self,
        address: ZooKeeperAddress,
        connection: ZooKeeperConnection,
        claim: ZooKeeperClaim,
        state: LogState,
        segment_bytes: int,
    ) -> None:
        """Not for callers: use `open`."""
        self.address, self._connection, self._claim = address, connection, claim
        self._segments = self.segments_type(connection, LogNodes(address.path), claim, segment_bytes)
        super().__init__(address, state, claim.check, self._segments)

    @classmethod
    def open(
        cls,
        address: str | ZooKeeperAddress,
        topology: str,
        takeover: bool = False,
        *,
        segment_bytes: int = 1 << 20,
        history: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the log at an address, or make one there, and become its writer.

        `takeover`: replace a driver that holds the log, running or paused: its next append raises `FencedError`.
        `segment_bytes`: the size in bytes, about, at which the next segment begins; it does after 1,000 records in any case.
        `history`: how long segments are kept; None: as long as the last start that said so asked for.
        Raises `LogHeldError`, `ForeignLogError`, `CorruptLogError`: nothing was changed.
        Raises `LogError`: ZooKeeper does not answer or refuses.
        """
        place = address if isinstance(address, ZooKeeperAddress) else ZooKeeperAddress.of(address)
        connection = ZooKeeperConnection(place)
        try:
            log = cls._open(place, connection, topology, takeover, segment_bytes, history, clock)
        except BaseException as error:
            connection.close()
            if _is_of_kazoo(error):
                raise LogError(f"cannot open the transaction log {place}: {error!r}") from error
            raise
        connection.patience_s = math.inf  # a running topology waits for ZooKeeper
        return log

    @classmethod
    def _open(
        cls,
        address: ZooKeeperAddress,
        connection: ZooKeeperConnection,
        topology: str,
        takeover: bool,
        segment_bytes: int,
        history: Retention | None,
        clock: Callable[[], float],
    ) -> Self:
        reader, nodes = ZooKeeperReader(address, connection), LogNodes(address.path)
        # Before the claim, because a refused open must not fence the rightful writer.
        check_topology(address, topology, reader.refresh() if reader.is_there() else None)
        for path in (nodes.claim, nodes.alive, nodes.segments):
            connection.call(lambda client, path=path: client.ensure_path_async(path))  # type: ignore[misc]
        claim = ZooKeeperClaim.take(connection, nodes, takeover, clock)
        try:
            # After the claim, because no later append of another driver is valid, so this is all of the log.
            stored = reader.read_all() if reader.is_there() else None
            check_topology(address, topology, stored)
            state = state_to_continue(stored, topology, claim.epoch, history)
            log = cls(address, connection, claim, state, segment_bytes)
            log._segments.begin(state, reader.segment)
        except BaseException:
            claim.release()
            raise
        return log

    def stop_waiting(self) -> None:
        """Let an append that waits for ZooKeeper wait for some seconds more at most."""
        self._connection.stop_waiting()

    def _release(self) -> None:
        self._claim.release()
        self._connection.close()

    def _forget(self) -> None:
        self._claim.abandon()  # the threads of the connection do not exist in a forked child

    def _is_of_server(self, error: BaseException) -> bool:
        return _is_of_kazoo(error)


def _is_of_kazoo(error: BaseException) -> bool:
    from kazoo.exceptions import KazooException

    return isinstance(error, KazooException)
