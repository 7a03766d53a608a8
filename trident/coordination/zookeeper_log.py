"""The transaction log in ZooKeeper: any machine can take a topology over, without a disk that both see.

The rules are the same as in the log in files (`transaction_log.py`): a segment begins with the whole folded state, so opening
a log compacts it, and the newest segment is all that a reader needs. See `zookeeper_nodes.py` for the nodes and for requests
that get no answer, `zookeeper_claim.py` for what makes one driver the writer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import NoReturn, Self

from trident.coordination.durable_log import DurableLog, check_topology, state_to_continue
from trident.coordination.log_state import LogState
from trident.coordination.records import Record
from trident.coordination.zookeeper_claim import ZooKeeperClaim
from trident.coordination.zookeeper_nodes import LogNodes, ZooKeeperConnection
from trident.coordination.zookeeper_reader import ZooKeeperReader
from trident.coordination.zookeeper_segment import ZooKeeperSegments
from trident.errors import FencedError, LogError
from trident.servers.zookeeper_address import ZooKeeperAddress

logger = logging.getLogger(__name__)


class ZooKeeperLog(DurableLog):
    """The log at an address. Threads may append at the same time; a forked child may not."""

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
        self._waiting: list[bytes] = []  # records for the next durable one
        super().__init__(address, state, claim.check)

    @classmethod
    def open(
        cls,
        address: str | ZooKeeperAddress,
        topology: str,
        takeover: bool = False,
        *,
        segment_bytes: int = 1 << 20,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the log at an address, or make one there, and become its writer.

        Parameters
        ----------
        takeover
            Replace a driver that holds the log, running or paused: its next append raises `FencedError`.
        segment_bytes
            The size in bytes, about, at which the next segment begins; it does after 1,000 records in any case.

        Raises
        ------
        LogHeldError, ForeignLogError, CorruptLogError
            Nothing was changed.
        LogError
            ZooKeeper does not answer or refuses.
        """
        place = address if isinstance(address, ZooKeeperAddress) else ZooKeeperAddress.of(address)
        connection = ZooKeeperConnection(place)
        try:
            log = cls._open(place, connection, topology, takeover, segment_bytes, clock)
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
            state = state_to_continue(stored, topology, claim.epoch)
            log = cls(address, connection, claim, state, segment_bytes)
            log._segments.begin(state, reader.segment)
        except BaseException:
            claim.release()
            raise
        return log

    def append(self, record: Record, durable: bool = True) -> None:
        """Write a record; see `TransactionLog.append`. It waits while no majority of ZooKeeper's servers is up."""
        with self._lock:
            payload, written = self._to_write(record)
            self._waiting.append(payload)
            if durable:
                self._send()
            self.state.fold(written)

    def stop_waiting(self) -> None:
        """Let an append that waits for ZooKeeper wait for some seconds more at most."""
        self._connection.stop_waiting()

    def close(self) -> None:
        """Release the log and end the session; harmless when it is closed already."""
        if not self._is_ours:
            self.abandon()
            return
        self.stop_waiting()
        with self._lock:  # not during an append
            if self._dead is None and self._waiting:
                try:
                    self._send()
                except (FencedError, LogError) as error:  # they are for a batch that is not committed
                    logger.debug("transaction log %s: %s", self.address, error)
            self._refuse_all()
            self._claim.release()
            self._connection.close()

    def abandon(self) -> None:
        """Close the log in a forked child, where the threads of the connection do not exist."""
        self._refuse_all()
        self._claim.abandon()

    def _send(self) -> None:
        """Make the records that wait durable, the last of which is not folded yet; one transaction, if they fit."""
        *folded, last = self._waiting
        try:
            if self._segments.is_full:
                self._segments.next(self.state)  # the state has what is folded
                folded = []
            self._segments.append([*folded, last])
        except FencedError as error:
            self._dead = error
            raise
        except BaseException as error:
            if not isinstance(error, LogError) and not _is_of_kazoo(error):
                # An interrupt leaves the fate of the record unknown; it must not be sent again with the next one.
                self._dead = LogError(f"an append to the transaction log {self.address} was interrupted")
                raise
            self._fail(error)
        self._waiting.clear()

    def _fail(self, error: BaseException) -> NoReturn:
        """Refuse all further records."""
        self._dead = LogError(
            f"cannot append to the transaction log {self.address}: {error if isinstance(error, LogError) else repr(error)}. "
            f"Batch {self.state.txid} is the last one known to be committed; whether the next one is, the log says when "
            "ZooKeeper answers again. Start again then: the topology continues from there"
        )
        raise self._dead from error


def _is_of_kazoo(error: BaseException) -> bool:
    from kazoo.exceptions import KazooException

    return isinstance(error, KazooException)
