"""Reading a log in ZooKeeper from any process, while it is written."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from trident.coordination.framing import decode
from trident.coordination.lock import SegmentName
from trident.coordination.log_reader import state_of
from trident.coordination.log_state import LogState
from trident.coordination.records import record_from_data
from trident.coordination.zookeeper_claim import held_by
from trident.coordination.zookeeper_nodes import (
    AT_ONCE,
    LogNodes,
    ZooKeeperConnection,
    get_records,
    part_of,
    read_payloads,
    segment_of,
)
from trident.errors import CorruptLogError, LogError
from trident.roles import Closes
from trident.servers.zookeeper_address import ZooKeeperAddress

_TRIES = 20


class ZooKeeperReader(Closes):
    """Follows the log at an address; never writes. For one thread.

    An append is valid or does not happen, so every whole record counts, even if the log is claimed meanwhile.

    `torn`: bytes of a record, too large for one node, that was not yet whole at the latest `refresh`.
    """

    def __init__(self, address: ZooKeeperAddress, connection: ZooKeeperConnection | None = None) -> None:
        self.address, self.torn = address, 0
        self._nodes = LogNodes(address.path)
        self._connection = connection or ZooKeeperConnection(address)
        # For those that forget to close it.
        self._end = weakref.finalize(self, (lambda: None) if connection else self._connection.close)
        self._state: LogState | None = None
        self._segment: SegmentName | None = None
        self._number = self._made = 0
        self._parts: list[bytes] = []

    @property
    def segment(self) -> SegmentName | None:
        """The segment that the state was read from; None before the first `refresh`."""
        return self._segment

    def is_there(self) -> bool:
        return self._look()[0] is not None

    def holder(self) -> str | None:
        return held_by(self._connection, self._nodes)

    def refresh(self) -> LogState:
        for _ in range(_TRIES):
            newest, count = self._look()
            if newest is None:
                raise LogError(f"there is no transaction log at {self.address}; a topology's first start makes one")
            if newest != self._segment or count is None or count < self._number:
                self._segment, self._number, self._parts, self._state = newest, 0, [], None
                _, count = self._look()
            if count is not None and self._read(newest, count):
                assert self._state is not None, "a segment that is named has a header"
                return self._state
            self._segment = None  # a newer segment has replaced the one that was named
        raise LogError(
            f"cannot read the transaction log {self.address}: its segments were replaced {_TRIES} times while they were "
            "read. Try again"
        )

    read_all = refresh

    def segments(self) -> list[SegmentName]:
        newest, _ = self._look()
        if newest is None:
            return []
        names = self._connection.call(lambda client: client.get_children_async(self._nodes.segments)).value
        return sorted(each for name in names if (each := segment_of(name)) is not None and each <= newest)

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        return read_payloads(self._connection, self._nodes, segment, header_only)

    def close(self) -> None:
        self._end()

    def _look(self) -> tuple[SegmentName | None, int | None]:
        """Return the newest segment, None if there is no log; and how many nodes the segment that is being read has."""
        from kazoo.exceptions import NoNodeError

        nodes, known = self._nodes, self._segment
        path = nodes.segments if known is None else nodes.segment(known)
        # A server may be behind the others, unless it is asked to catch up first.
        _, named, stat = self._connection.call_each(
            lambda client: (
                client.sync_async(nodes.segments),
                client.get_async(nodes.segments),
                client.exists_async(path),
            ),
            NoNodeError,
        )
        if isinstance(named, Exception):
            return None, None
        newest = segment_of(named[0].decode(errors="replace"))
        if known is None or stat is None or isinstance(stat, Exception):
            return newest, None
        made, self._made = self._made, int(stat.czxid)
        # Another one of the same name, of a log that was removed and begun again, is read from its header on.
        return newest, int(stat.numChildren) if made == self._made or self._number == 0 else None

    def _read(self, segment: SegmentName, count: int) -> bool:
        """Fold the nodes up to `count`; False if the segment is no longer the newest and was removed."""
        while self._number < count:
            numbers = range(self._number, min(count, self._number + AT_ONCE))
            found = get_records(self._connection, self._nodes, segment, numbers)
            for number, record in zip(numbers, found, strict=True):
                if isinstance(record, Exception):
                    if self._look()[0] != segment:
                        return False
                    raise self._damaged(segment, number, "the record is missing")
                self._fold(segment, number, record[0])
                self._number = number + 1
        self.torn = sum(len(part) for part in self._parts)
        if self._state is None:
            raise self._damaged(segment, 0, "the header is missing")
        return True

    def _fold(self, segment: SegmentName, number: int, data: bytes) -> None:
        try:
            part, is_last = part_of(data, number)
            self._parts.append(part)
            if not is_last:
                return
            content = decode(b"".join(self._parts))
            if self._state is None:
                self._state = state_of(content, segment, f"{self.address}/segments/{segment.file}")
            else:
                self._state.apply(record_from_data(content))
        except (ValueError, KeyError) as error:
            raise self._damaged(segment, number, str(error)) from error
        self._parts = []

    def _damaged(self, segment: SegmentName, number: int, reason: str) -> CorruptLogError:
        node = self._nodes.record(segment, number).removeprefix(self._nodes.path)
        self._segment = None
        return CorruptLogError(f"{self.address}{node}", 0, reason)
