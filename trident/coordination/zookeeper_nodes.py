"""The nodes of a log in ZooKeeper, and the bytes in them.

::

    <path>/claim                             who claimed last, as JSON; its version orders the claims
    <path>/claim/{epoch:08d}-{id}            the claim of the writer: the only one; every append checks that it exists
    <path>/alive/{epoch:08d}-{id}            ephemeral: the session of the writer is alive
    <path>/segments                          the name of the newest segment that is complete
    <path>/segments/{epoch:08d}-{seq:04d}    a segment
    <path>/segments/…/{number:08d}           its records, in order; the first one is the header: the whole folded state

A record is one node, or several with consecutive numbers if it is too large for one. Each node holds four bytes of magic,
the length and the checksum of its part (both u32, big-endian), then the part (msgpack). The magic of the last part differs;
without that part a record does not count. The checksum covers the number too.

The session of a log in ZooKeeper: says that it waits, and waits as long as the topology runs.
"""

from __future__ import annotations

import logging
import math
import re
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from trident.coordination.lock import SegmentName
from trident.errors import CorruptLogError, LogError
from trident.servers.zookeeper_address import ZooKeeperAddress
from trident.servers.zookeeper_session import AUTH, SessionChange, ZooKeeperSession

PART_BYTES = 900_000
"""A request to ZooKeeper has at most 1 MiB (`jute.maxbuffer`), with everything in it."""

_LAST = b"\xc1ZL\xb1"
_MORE = b"\xc1ZM\xb1"
_HEAD = struct.Struct(">4sII")
_NUMBER = struct.Struct(">QI")
_CLAIM = re.compile(r"(\d{8,})-([0-9a-f]+)")
_SEGMENT = re.compile(r"(\d{8,})-(\d{4,})")


class ClaimName(NamedTuple):
    """The name of a claim. No two claims have the same id, so a claim is never mistaken for another one."""

    epoch: int
    id: str

    @property
    def node(self) -> str:
        """The name of its nodes."""
        return f"{self.epoch:08d}-{self.id}"


class LogNodes(NamedTuple):
    """The paths of the nodes of the log at `path`."""

    path: str

    @property
    def claim(self) -> str:
        """The parent of the claim."""
        return f"{self.path}/claim"

    @property
    def alive(self) -> str:
        """The parent of the nodes that end with their session."""
        return f"{self.path}/alive"

    @property
    def segments(self) -> str:
        """The parent of the segments."""
        return f"{self.path}/segments"

    def segment(self, segment: SegmentName) -> str:
        """Return the path of a segment."""
        return f"{self.segments}/{segment_node(segment)}"

    def record(self, segment: SegmentName, number: int) -> str:
        """Return the path of a record's part."""
        return f"{self.segment(segment)}/{number:08d}"


def segment_node(segment: SegmentName) -> str:
    """Return the name of the node of a segment."""
    return segment.file.removesuffix(".log")


def segment_of(node: str) -> SegmentName | None:
    """Return the segment of a node's name, None if it is of something else."""
    match = _SEGMENT.fullmatch(node)
    return None if match is None else SegmentName(int(match[1]), int(match[2]))


def claim_of(node: str) -> ClaimName | None:
    """Return the claim of a node's name, None if it is of something else."""
    match = _CLAIM.fullmatch(node)
    return None if match is None else ClaimName(int(match[1]), match[2])


def parts_of(payload: bytes, first: int, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """Return what the nodes of a record hold, the first of which has the number `first`."""
    cut = [payload[at : at + part_bytes] for at in range(0, len(payload), part_bytes)] or [b""]
    for number, part in enumerate(cut, first):
        magic = _LAST if number == first + len(cut) - 1 else _MORE
        yield _HEAD.pack(magic, len(part), _checksum(part, number)) + part


def part_of(data: bytes, number: int) -> tuple[bytes, bool]:
    """Return the part in a node and whether it is the last one of its record; ValueError if it does not check."""
    if len(data) < _HEAD.size:
        raise ValueError("the record there is cut off")
    magic, length, checksum = _HEAD.unpack_from(data)
    part = data[_HEAD.size :]
    if magic not in (_LAST, _MORE) or len(part) != length or _checksum(part, number) != checksum:
        raise ValueError("the record there has a wrong checksum")
    return part, magic == _LAST


def _checksum(part: bytes, number: int) -> int:
    return crc32(part, crc32(_NUMBER.pack(number, len(part))))


logger = logging.getLogger(__name__)

SESSION_S = 10.0
_STOP_S = 5.0


class ZooKeeperConnection(ZooKeeperSession):
    """A session at an address.

    `patience_s`: how long a request waits while no server answers; then it raises `LogError`.
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
        if change != "suspended" and self._on_session is not None:
            self._client.handler.spawn(self._on_session)

    def check_patience(self, since: float) -> None:
        now = time.monotonic()
        if now - since > self.patience_s or now - max(since, self._stopping_since) > _STOP_S:
            self._waiting_since = None
            raise LogError(f"no answer from ZooKeeper at {self.hosts} for {now - since:.0f} seconds")
        if self._waiting_since is None and now - since > 1:
            self._waiting_since = since
            logger.warning("no answer from ZooKeeper for %s; waiting until there is one", self.address)

    def answered(self) -> None:
        since, self._waiting_since = self._waiting_since, None
        if since is not None:
            logger.warning("ZooKeeper answers again for %s, after %.1f seconds", self.address, time.monotonic() - since)

    def unreachable(self) -> LogError:
        return LogError(
            f"no ZooKeeper answers at {self.hosts} (waited {self.timeout_s:g} seconds for {self.address}). Start it, or "
            "correct the address; a majority of an ensemble's servers must be up"
        )

    def refused(self) -> LogError:
        return LogError(
            f"ZooKeeper refuses access to {self.address}: its access control list (ACL) does not allow it. Give the "
            f"credentials that the list names as {AUTH}=digest:USER:PASSWORD, or name another path"
        )


# A segment as it lies there: its records, and not what they come to.

AT_ONCE = 100


def get_records(connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, numbers: range) -> list[Any]:
    """Return what ZooKeeper answers for each of some records of a segment: data and facts, or an error."""
    from kazoo.exceptions import NoNodeError

    paths = [nodes.record(segment, number) for number in numbers]
    return connection.call_each(lambda client: map(client.get_async, paths), NoNodeError)


def read_payloads(
    connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, header_only: bool
) -> Iterator[bytes]:
    """Yield the records of a segment, or its header only; see `TransactionLogReader.read_segment`."""
    from kazoo.exceptions import NoNodeError

    path, step = nodes.segment(segment), 1 if header_only else AT_ONCE
    (found,) = connection.call_each(lambda client: (client.exists_async(path),), NoNodeError)
    count = 0 if found is None or isinstance(found, Exception) else int(found.numChildren)
    parts: list[bytes] = []
    is_begun = False
    for first in range(0, count, step):
        numbers = range(first, min(count, first + step))
        for number, record in zip(numbers, get_records(connection, nodes, segment, numbers), strict=True):
            where = f"{connection.address}{nodes.record(segment, number).removeprefix(nodes.path)}"
            if isinstance(record, Exception):
                if not is_begun:
                    return  # it was not finished, or is being removed, from its header on
                raise CorruptLogError(where, 0, "the record is missing")
            try:
                part, is_last = part_of(record[0], number)
            except ValueError as error:
                raise CorruptLogError(where, 0, str(error)) from error
            parts.append(part)
            if is_last:
                yield b"".join(parts)
                parts, is_begun = [], True
                if header_only:
                    return
