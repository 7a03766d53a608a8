"""What a server must do to keep a log: one **head**, changed by compare-and-set alone, and chunks of older records.

::

    head        the claim of the writer, the position that the log has come to, the names of chunks, the newest records
    chunks/…    {epoch:08d}-{segment:04d}-{first:08d}-{id}: records of a segment, from number `first` on
                {epoch:08d}-{segment:04d}-{count:08d}-0: the last head of a segment that is kept as history

Both are frames, as in files. A head has the id of a claim and a number that rises, so no content of it comes twice: a condition
that has failed once never holds again. So a driver that was replaced, or whose log was set back, appends nothing, and a request
whose answer was lost may be made again. A chunk is there before a head names it, and removed when no head will.
"""

from __future__ import annotations

import logging
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from trident.errors import CorruptLogError, LogError
from trident.log.framing import decode, encode, frame, read_frames
from trident.log.lock import SegmentName
from trident.log.log_state import CommittedUpTo
from trident.nodes.interface import StoredNode
from trident.nodes.object_store import ObjectStore, Tag
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)

FORMAT = "trident-log-head"
VERSION = 1
HEAD, CHUNKS = "head", "chunks"
NO_SEGMENT = SegmentName(0, 0)
Chunks = Mapping[str, bytes]  # by name
LaterWrites = Sequence[LaterWrite]
_ANSWER_S = 15.0  # within which an object store answers
_CHUNK = re.compile(r"(\d{8,})-(\d{4,})-\d{8,}-[0-9a-f]+(?:\.\d+)*")


class NotWrittenError(Exception):
    """Neither a record nor what goes with it was written, because of `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class LogChunk(NamedTuple):
    """A chunk and how many records it has."""

    name: str
    length: int


@dataclass(frozen=True)
class Head:
    """What a head holds; that of a log that is not there yet has only defaults.

    `epoch`, `id`: of the claim; no two claims have the same id. `turn` counts the heads of one claim.
    `segment`, `count`: the newest segment (of number 0: none yet), and how many records that has with its header.
    `tag`: what a condition knows the head by that is there, or is to be replaced by this one; None: no head.
    """

    epoch: int = 0
    id: str = ""
    about: str = ""  # what the claim says of its holder, as JSON
    segment: SegmentName = NO_SEGMENT
    count: int = 0
    is_held: bool = True
    turn: int = 0
    chunks: tuple[LogChunk, ...] = ()
    records: tuple[bytes, ...] = ()
    tag: Any = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return f"{self.epoch:08d}-{self.id}"

    @cached_property
    def data(self) -> bytes:
        about = {
            "format": FORMAT, "version": VERSION, "epoch": self.epoch, "id": self.id, "about": self.about,
            "position": [*self.segment, self.count], "is_held": self.is_held, "turn": self.turn, "chunks": self.chunks,
        }  # fmt: skip
        return frame_payloads([encode(about), *self.records])

    def known_as(self, tag: Any) -> Head:
        """Return this head with another tag; its data stays, and need not be made again."""
        head = replace(self, tag=tag)
        vars(head)["data"] = self.data
        return head

    @staticmethod
    def of(data: bytes, where: str, tag: Any = None) -> Head:
        """Return the head whose data this is; another one is an error that says where it is."""
        first, *records = read_payloads(data, where)
        try:
            about = decode(first)
            if about.pop("format") != FORMAT:
                raise ValueError("it is not the head of a transaction log")
            if about.pop("version") != VERSION:
                raise LogError(f"{where} is of another format version; use the version that wrote the log")
            *segment, count = about.pop("position")
            about |= {"segment": SegmentName(*segment), "chunks": tuple(LogChunk(*each) for each in about["chunks"])}
            return Head(**about, count=count, records=tuple(records), tag=tag)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLogError(where, 0, f"not a head of a log: {error}") from error


class RecordStore(Protocol):
    """Keeps one log: bytes by name. Its methods wait for the server as `patience` says, and raise `LogError` if it refuses.

    `part_bytes`: how many bytes are kept under one name; the name of a chunk that is larger says in how many parts it is.
    """

    place: str  # where, as messages have it
    patience: Patience
    head_bytes: int  # how many bytes of records the head holds before they go into a chunk
    part_bytes: int = sys.maxsize

    @abstractmethod
    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        """Return what each name stands for, with what a condition knows it by as its version; None if nothing."""

    @abstractmethod
    def claim(self, head: Head, before: Head) -> Any:
        """Make the place ready, and put a head with another claim in place of the one before; as `replace`."""

    @abstractmethod
    def replace(self, head: Head, chunks: Chunks, committed: CommittedUpTo, beside: LaterWrites = ()) -> Any:
        """Make chunks, then put a head in place of the one with its tag; return the new tag, None if another head is there.

        `committed`: what is committed then, for stores that other programs ask for it. `beside`: what is written in the same
        transaction or not at all, where there are any. `NotWrittenError`: the store of a state refuses that; nothing was
        written.
        """

    @abstractmethod
    def names(self, most: int | None = None) -> Sequence[str]:
        """Return the names of all chunks; or of at least so many of the first ones, in the order of names."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Remove chunks; harmless if some are not there."""

    def is_held(self, head: Head, wait: bool) -> bool:
        """Whether the holder of a claim has not said that it ended. It may have been killed."""
        # `wait`: as long as the server itself may take to notice that, if it does notice.
        return head.is_held

    def release(self, head: Head) -> None:
        """Say that the holder of a claim has ended, where the end of its session or connection does not."""
        return

    def first_kept(self, old: Sequence[SegmentName], keep: SegmentName) -> SegmentName:
        """Return the first segment to keep of the old ones, ascending, where the history needs those from `keep` on."""
        return keep

    def carry(self, timeout_s: float) -> None:
        """From now on also take what is `beside` records; only for a store that has transactions."""
        return

    def stop(self) -> None:
        """From now on let each request wait for some seconds at most. For any thread."""
        self.patience.stop()

    def close(self) -> None:
        """Close the connection, if one lasts."""
        return

    def abandon(self) -> None:
        """Leave the connection to the process that this one was forked from, whose threads do not exist here."""
        return


class ObjectRecords(RecordStore):
    """The log at an address of an object store: the head is replaced by compare-and-set."""

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        self.patience, self.place = Patience("the object store", address), str(address)
        self._objects = ObjectStore(address, "a log", self.patience, LogError, _ANSWER_S)

    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        return [self._objects.get(name) for name in names]

    def claim(self, head: Head, before: Head) -> Tag | None:
        self._objects.check_conditions()
        return self._objects.swap(HEAD, head.data, head.tag)

    def replace(self, head: Head, chunks: Chunks, committed: CommittedUpTo, beside: LaterWrites = ()) -> Tag | None:
        for name, data in chunks.items():
            self._objects.put(name, data)
        return self._objects.swap(HEAD, head.data, head.tag)

    def names(self, most: int | None = None) -> list[str]:
        return list(self._objects.tags(CHUNKS, most))

    def remove(self, names: Sequence[str]) -> None:
        self._objects.remove(names)

    def release(self, head: Head) -> None:
        try:
            self._objects.swap(HEAD, replace(head, is_held=False, turn=head.turn + 1).data, head.tag)
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self.place, error)


def segment_of(name: str) -> SegmentName | None:
    found = _CHUNK.fullmatch(name.rpartition("/")[2])
    return None if found is None else SegmentName(int(found[1]), int(found[2]))


def frame_payloads(payloads: Iterable[bytes]) -> bytes:
    data = bytearray()
    for payload in payloads:
        data += frame(payload, len(data))
    return bytes(data)


def read_payloads(data: bytes, where: str) -> list[bytes]:
    frames, torn = read_frames(data, 0, where)
    if torn or not frames:
        raise CorruptLogError(where, len(data) - torn, "the record there has a wrong checksum")
    return [each.payload for each in frames]
