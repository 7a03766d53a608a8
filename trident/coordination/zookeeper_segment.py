"""Writes the segments of a log in ZooKeeper: begins the next one with the whole folded state, appends, removes old ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from trident.coordination.framing import encode
from trident.coordination.kept_segments import first_kept
from trident.coordination.lock import SegmentName
from trident.coordination.log_reader import header_of
from trident.coordination.log_state import CommittedUpTo, LogState
from trident.coordination.zookeeper_claim import ZooKeeperClaim
from trident.coordination.zookeeper_nodes import (
    PART_BYTES,
    LogNodes,
    ZooKeeperConnection,
    parts_of,
    read_payloads,
    segment_node,
    segment_of,
)
from trident.errors import LogError
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)

_RECORDS = 1000
MOST_OLD = 100
"""Segments that the history has here at most: each has up to 1,000 nodes, or 1 MiB, all in the memory of every server."""
_OPERATIONS = 200  # of one transaction
_OVERHEAD = 300  # bytes of a request for each node, at most


class _Node(NamedTuple):
    path: str
    data: bytes


class ZooKeeperSegments:
    """Writes the segments of one claim; nothing is written without it."""

    part_bytes = PART_BYTES

    def __init__(
        self,
        connection: ZooKeeperConnection,
        nodes: LogNodes,
        claim: ZooKeeperClaim,
        segment_bytes: int,
    ) -> None:
        self._connection, self._nodes, self._claim = connection, nodes, claim
        self._segment_bytes, self._has_warned = segment_bytes, False
        self._segment = SegmentName(claim.epoch, 0)
        self._number = self._size = self._roll_at = 0

    @property
    def is_full(self) -> bool:
        return self._size >= self._roll_at or self._number >= _RECORDS

    def begin(self, state: LogState, previous: SegmentName | None) -> None:
        """Begin the next segment with `state` and write to it from now on; remove what is older than `previous`."""
        segment = SegmentName(self._segment.epoch, self._segment.seq + 1)
        node, payload = self._nodes.segment(segment), encode(header_of(segment, state))
        created = [_Node(node, b""), *self._of(segment, [payload], 0)]

        def name_it(transaction: Any) -> None:  # last: it may become the newest only when it is complete
            transaction.set_data(self._nodes.segments, segment_node(segment).encode())

        self._write(created, name_it)
        self._segment, self._number, self._size = segment, len(created) - 1, len(payload)
        self._roll_at = len(payload) + max(self._segment_bytes, len(payload))
        self._sweep(previous or segment, state)

    def next(self, state: LogState) -> None:
        self.begin(state, self._segment)

    def append(self, payloads: Sequence[bytes], _committed: CommittedUpTo, _beside: Sequence[LaterWrite] = ()) -> None:
        created = self._of(self._segment, payloads, self._number)
        self._write(created)
        self._number += len(created)
        self._size += sum(len(each.data) for each in created)

    def _of(self, segment: SegmentName, payloads: Iterable[bytes], number: int) -> list[_Node]:
        created: list[_Node] = []
        for payload in payloads:
            for part in parts_of(payload, number + len(created), self.part_bytes):
                created.append(_Node(self._nodes.record(segment, number + len(created)), part))
        return created

    def _write(self, created: Sequence[_Node], at_last: Callable[[Any], None] | None = None) -> None:
        """Create nodes in order, in as few transactions as they fit in; each of them only if the claim is there.

        The node before must be there too: a log that was set back to an earlier time is not continued.
        """
        before = self._nodes.record(self._segment, self._number - 1) if self._number and at_last is None else None
        together = list(_in_turn(created, self.part_bytes))
        for position, group in enumerate(together):
            self._carry_out(group, before, at_last if position == len(together) - 1 else None)
            before = group[-1].path

    def _carry_out(self, group: Sequence[_Node], before: str | None, also: Callable[[Any], None] | None) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        def fill(transaction: Any) -> None:
            transaction.check(self._claim.path, -1)
            if before is not None:
                transaction.check(before, -1)
            for node in group:
                transaction.create(node.path, node.data)
            if also is not None:
                also(transaction)

        results, _, repeated = self._connection.transaction(fill)
        wrong = [result for result in results if isinstance(result, Exception)]
        if not wrong:
            return
        if isinstance(results[0], NoNodeError):
            raise self._claim.fenced()
        # One transaction creates all of them: if our own node is there, an earlier try was carried out.
        if repeated and any(isinstance(each, NodeExistsError) for each in wrong) and self._is_ours(group[-1]):
            return
        causes = [each for each in wrong if _is_cause(each)]
        if before is not None and isinstance(results[1], NoNodeError):
            raise LogError("its newest records were removed while it was written (was ZooKeeper restored from a copy?)")
        raise LogError(f"{(causes or wrong)[0]!r}")

    def _is_ours(self, node: _Node) -> bool:
        found = self._connection.call(lambda client: client.get_async(node.path)).value
        return bool(found[0] == node.data)

    def _sweep(self, keep: SegmentName, state: LogState) -> None:
        """Remove the segments before `keep` that the history does not need."""
        from kazoo.exceptions import KazooException

        try:
            names = self._connection.call(lambda client: client.get_children_async(self._nodes.segments)).value
            old = sorted({each for name in names if (each := segment_of(name)) is not None and each <= keep} | {keep})
            first = first_kept(old, state, self._read)
            if len(old) > MOST_OLD and first < old[-MOST_OLD]:
                first = old[-MOST_OLD]
                self._warn_of_size()
            for each in (name for name in old if name < first):
                self._remove(self._nodes.segment(each))
        except (KazooException, LogError) as error:
            logger.warning("transaction log %s: cannot remove old segments: %r", self._connection.address, error)

    def _read(self, segment: SegmentName) -> Iterator[bytes]:
        return read_payloads(self._connection, self._nodes, segment, header_only=True)

    def _warn_of_size(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "transaction log %s: the oldest part of its history is removed, although history= would keep it: "
                "ZooKeeper keeps every record in memory, so a log there has %d segments of up to 1,000. Ask for less, "
                "or keep the log in files, PostgreSQL or an object store",
                self._connection.address, MOST_OLD,
            )  # fmt: skip

    def _remove(self, segment: str) -> None:
        from kazoo.exceptions import NoNodeError

        records = self._connection.call(lambda client: client.get_children_async(segment)).value
        paths = [*(f"{segment}/{record}" for record in sorted(records)), segment]  # without its header it is none
        for at in range(0, len(paths), _OPERATIONS):
            some = paths[at : at + _OPERATIONS]

            def fill(transaction: Any, some: Sequence[str] = some) -> None:
                transaction.check(self._claim.path, -1)  # a driver that was replaced removes nothing more
                for path in some:
                    transaction.delete(path)

            results = self._connection.transaction(fill).value
            wrong = [result for result in results if isinstance(result, Exception) and _is_cause(result)]
            if wrong and not isinstance(wrong[0], NoNodeError):  # an earlier try, or another driver, has removed it
                raise wrong[0]


def _is_cause(error: Exception) -> bool:
    """Whether this is why a transaction was refused: its other operations have errors too."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    return not isinstance(error, (RolledBackError, RuntimeInconsistency))


def _in_turn(created: Sequence[_Node], part_bytes: int) -> Iterable[list[_Node]]:
    """Cut nodes into groups that fit in one request each."""
    group: list[_Node] = []
    size = 0
    for node in created:
        more = len(node.data) + _OVERHEAD + len(node.path)
        if group and (size + more > part_bytes + 2 * _OVERHEAD or len(group) >= _OPERATIONS):
            yield group
            group, size = [], 0
        group.append(node)
        size += more
    yield group
