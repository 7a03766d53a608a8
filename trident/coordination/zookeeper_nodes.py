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
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from trident.coordination.lock import SegmentName

__all__ = ["PART_BYTES", "ClaimName", "LogNodes", "part_of", "parts_of"]

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
    found = _SEGMENT.fullmatch(node)
    return None if found is None else SegmentName(int(found[1]), int(found[2]))


def claim_of(node: str) -> ClaimName | None:
    """Return the claim of a node's name, None if it is of something else."""
    found = _CLAIM.fullmatch(node)
    return None if found is None else ClaimName(int(found[1]), found[2])


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
        raise ValueError("the record there does not check")
    return part, magic == _LAST


def _checksum(part: bytes, number: int) -> int:
    return crc32(part, crc32(_NUMBER.pack(number, len(part))))
