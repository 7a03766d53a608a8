"""Keeps the log of a topology as one head, which is replaced by compare-and-set alone, and chunks of older records.

::

    <place>/head        the claim, the position, the names of chunks, the newest records
    <place>/chunks/…    {epoch:08d}-{segment:04d}-{first:08d}-{id}: records of a segment, from number `first` on
                        {epoch:08d}-{segment:04d}-{count:08d}-0: the last head of a segment that is kept as history

Both are frames, as in files (`framing.py`). A head is replaced only on condition that it is the one last seen. It is never
removed, and has the id of a claim and a number that rises, so no content of it comes twice: a condition that has failed once
never holds again. An append is one such request; when the head is full, its records go into a chunk, which is there before a
head names it, and removed when no head will.

What keeps the bytes says how: `object_records.py` and `zookeeper_records.py`.
"""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from trident.coordination.framing import decode, encode, frame, read_frames
from trident.coordination.lock import SegmentName
from trident.coordination.log_state import CommittedUpTo
from trident.coordination.record_store import Head, LogEnd, RecordStore
from trident.errors import CorruptLogError, LogError
from trident.nodes.interface import StoredNode
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

FORMAT = "trident-log-head"
VERSION = 1
HEAD, CHUNKS = "head", "chunks"
_LAST_HEAD = "-0"  # an id that no chunk has
_CHUNK = re.compile(r"(\d{8,})-(\d{4,})-\d{8,}-[0-9a-f]+(?:\.\d+)*")


class LogChunk(NamedTuple):
    """A chunk and how many records it has."""

    name: str
    length: int


@dataclass(frozen=True)
class HeadBody(Head):
    """What a head holds. `turn` counts the heads of one claim.

    `tag`: what a condition knows the head by that is there, or is to be replaced by this one; None: no head.
    """

    tag: Any = field(default=None, compare=False)
    is_held: bool = True
    turn: int = 0
    chunks: tuple[LogChunk, ...] = ()
    records: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        (segment, count), about = self.position, vars(self) | {"format": FORMAT, "version": VERSION}
        del about["records"], about["tag"]
        return _frame_payloads([encode({**about, "position": [*segment, count]}), *self.records])

    @staticmethod
    def of(data: bytes, where: str) -> HeadBody:
        """Return the head that `to_bytes` gave; another one is an error that says where it is."""
        first, *records = _read_payloads(data, where)
        try:
            about = decode(first)
            if about.pop("format") != FORMAT:
                raise ValueError("it is not the head of a transaction log")
            if about.pop("version") != VERSION:
                raise LogError(f"{where} is of another format version; use the version that wrote the log")
            *segment, count = about["position"]
            chunks = tuple(LogChunk(*each) for each in about["chunks"])
            about |= {"position": LogEnd(SegmentName(*segment), count), "chunks": chunks}
            return HeadBody(**about, records=tuple(records))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLogError(where, 0, f"not a head of a log: {error}") from error


class HeadRecords(RecordStore):
    """The log at an address; a subclass keeps bytes by name, and says who holds the log.

    `head_bytes`: how many bytes of records the head holds before they go into a chunk.
    """

    head_bytes: int

    def __init__(self, address: object, patience: Patience) -> None:
        self.patience, self._address = patience, address
        self._body: HeadBody | None = None  # of the head that this writer has put there
        self._listed: list[tuple[SegmentName, str]] = []  # for the next `sweep`
        self._last_heads: dict[SegmentName, str] = {}  # of the segments that were listed last

    @abstractmethod
    def _prepare(self) -> None:
        """Make the place ready for a claim; `LogError` if it cannot keep a log."""

    @abstractmethod
    def _get_each(self, names: Sequence[str]) -> list[StoredNode | None]:
        """Return what each name stands for, with what a condition knows it by as its version; None if nothing."""

    @abstractmethod
    def _replace(self, body: HeadBody, chunks: Mapping[str, bytes]) -> Any:
        """Make chunks, then put a head in place of the one with its tag, or of none if that is None.

        Returns the new head's tag; None if another head is there, or the claim is no longer the one of `body`.
        """

    @abstractmethod
    def _replace_claim(self, body: HeadBody, before: HeadBody) -> Any:
        """Put a head with another claim in place of the one before, as `_replace` does."""

    @abstractmethod
    def _put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name that has none, or the same already."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of all chunks."""

    @abstractmethod
    def _remove(self, names: Sequence[str]) -> None:
        """Remove what these names stand for."""

    def look(self) -> Head | None:
        found = self._get(HEAD)
        if found is None:
            return None
        return replace(HeadBody.of(found.data, self._place(HEAD)), tag=found.version)

    def claim(self, before: Head | None, epoch: int, id: str, about: str) -> Head | None:
        self._prepare()
        while True:
            old = HeadBody(0, "", "", LogEnd(SegmentName(0, 0), 0)) if before is None else _body(before)
            body = replace(old, epoch=epoch, id=id, about=about, is_held=True, turn=0)
            if self._keep(body, self._replace_claim(body, old)):
                return body
            now = self.look()
            if before is None or now is None or now.id != before.id:
                return None
            before = now  # the driver before has appended meanwhile

    def write(
        self, claim: Head, before: LogEnd, after: LogEnd, payloads: Sequence[bytes], committed: CommittedUpTo,
        beside: Sequence[LaterWrite] = (),
    ) -> bool:  # fmt: skip
        body = self._body
        assert body is not None, "a claim comes before a record"
        begins = after.segment != before.segment
        chunks, records = ((), tuple(payloads)) if begins else (body.chunks, (*body.records, *payloads))
        made: dict[str, bytes] = {}
        if begins or sum(map(len, records)) > self.head_bytes:
            data = _frame_payloads(records)
            name = self._chunk_name(after.segment, after.length - len(records), len(data))
            made[name], chunks, records = data, (*chunks, LogChunk(name, len(records))), ()
        new = replace(body, position=after, turn=body.turn + 1, chunks=chunks, records=records)
        return self._keep(new, self._replace(new, made))

    def read(self, head: Head, first: int) -> list[bytes] | None:
        body = _body(head)
        ends = accumulate(chunk.length for chunk in body.chunks)
        wanted = [chunk for chunk, end in zip(body.chunks, ends, strict=True) if end > first]
        payloads: list[bytes] = []
        for chunk, found in zip(wanted, self._get_each([each.name for each in wanted]), strict=True):
            if found is None:
                return None
            payloads += self._records_of(chunk, found)
        payloads += body.records
        return payloads[len(payloads) - (head.position.length - first) :]

    def keep(self) -> None:
        body = self._body
        assert body is not None, "a claim comes before a record"
        (segment, count) = body.position
        # A driver that was replaced may write it again: it has the same records, because no other one appended them.
        self._put(f"{CHUNKS}/{segment.epoch:08d}-{segment.seq:04d}-{count:08d}{_LAST_HEAD}", body.to_bytes())

    def segments(self, before: SegmentName, most: int | None = None) -> list[SegmentName]:
        self._listed = self._list()
        self._last_heads = {
            segment: name for segment, name in self._listed if name.endswith(_LAST_HEAD) and segment < before
        }
        return sorted(self._last_heads)[:most]

    def read_old(self, segment: SegmentName, header_only: bool) -> Iterator[bytes]:
        name = self._last_heads.get(segment)
        found = None if name is None else self._get(name)
        if name is None or found is None:
            return
        body = HeadBody.of(found.data, self._place(name))
        chunks = body.chunks[:1] if header_only else body.chunks
        for chunk, records in zip(chunks, self._get_each([each.name for each in chunks]), strict=True):
            if records is None:
                if self._get(name) is None:
                    return  # the history is being shortened: last heads go first
                raise CorruptLogError(self._place(chunk.name), 0, "the object is missing")
            yield from self._records_of(chunk, records)
        yield from body.records

    def sweep(self, keep: SegmentName) -> None:
        listed, self._listed = self._listed or self._list(), []
        old = [name for segment, name in listed if segment < keep]
        heads = [name for name in old if name.endswith(_LAST_HEAD)]
        # The last heads first: no chunk goes that one names.
        for names in filter(None, (heads, [name for name in old if not name.endswith(_LAST_HEAD)])):
            self._remove(names)

    def _keep(self, body: HeadBody, tag: Any) -> bool:
        """Note the head that is there now, if it is; whether it is."""
        if tag is not None:
            self._body = replace(body, tag=tag)
        return tag is not None

    def _get(self, name: str) -> StoredNode | None:
        return self._get_each([name])[0]

    def _list(self) -> list[tuple[SegmentName, str]]:
        """Return the names of chunks, and the segments that they are of."""
        return [(segment, name) for name in self._names() if (segment := segment_of(name)) is not None]

    def _chunk_name(self, segment: SegmentName, first: int, _size: int) -> str:
        """Return the name of a chunk of so many bytes that no other one has."""
        return f"{CHUNKS}/{segment.epoch:08d}-{segment.seq:04d}-{first:08d}-{secrets.token_hex(8)}"

    def _records_of(self, chunk: LogChunk, found: StoredNode) -> list[bytes]:
        records = _read_payloads(found.data, self._place(chunk.name))
        if len(records) != chunk.length:
            raise CorruptLogError(self._place(chunk.name), 0, f"it has {len(records)} records, not {chunk.length}")
        return records

    def _place(self, name: str) -> str:
        return f"{self._address}/{name}"


def segment_of(name: str) -> SegmentName | None:
    """Return the segment of a chunk's name, None if it is of something else."""
    found = _CHUNK.fullmatch(name.rpartition("/")[2])
    return None if found is None else SegmentName(int(found[1]), int(found[2]))


def _body(head: Head) -> HeadBody:
    assert isinstance(head, HeadBody), "it was read here"
    return head


def _frame_payloads(payloads: Iterable[bytes]) -> bytes:
    data = bytearray()
    for payload in payloads:
        data += frame(payload, len(data))
    return bytes(data)


def _read_payloads(data: bytes, where: str) -> list[bytes]:
    frames, torn = read_frames(data, 0, Path(where))
    if torn or not frames:
        raise CorruptLogError(where, len(data) - torn, "the record there has a wrong checksum")
    return [each.payload for each in frames]
