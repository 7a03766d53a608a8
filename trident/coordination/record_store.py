"""What a server must do to keep a log: `RecordStore`, one for PostgreSQL, one for ZooKeeper and one for object stores.

A log there has one **head**, which is changed by compare-and-set alone: the claim of the writer, and the position that the log
has come to (its newest segment and the number of records in it). A claim puts its id into the head. An append moves the
position, and does so only if the head has the writer's id and the position that it knows. So a driver that was replaced, or
whose log was set back to an earlier time, appends nothing, and a request whose answer was lost may be made again.

While the server is away, requests wait (`patience.py`): those of a running topology until it answers, those of a start some
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trident.coordination.lock import SegmentName
from trident.coordination.log_state import CommittedUpTo
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite


class LogEnd(NamedTuple):
    """How far a log goes: its newest segment (of number 0: none yet), and how many records that has with its header."""

    segment: SegmentName
    length: int


class NotWrittenError(Exception):
    """Neither a record nor what goes with it was written, because of `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True)
class Head:
    """What is said of a log in one place; a store may have more there.

    `epoch`, `id`: of the claim; no two claims have the same id.
    `about`: what the claim says of its holder, as JSON.
    """

    epoch: int
    id: str
    about: str
    position: LogEnd

    @property
    def name(self) -> str:
        """The name of the claim; no two claims have the same."""
        return f"{self.epoch:08d}-{self.id}"


class RecordStore(Protocol):
    """Keeps one log. Its methods wait for the server as `patience` says, and raise `LogError` if it refuses."""

    patience: Patience

    def look(self) -> Head | None:
        """Return the head; None if there is none."""

    def claim(self, before: Head | None, epoch: int, id: str, about: str) -> Head | None:
        """Put a claim into the head in place of the one before; None if that is no longer there."""

    def has(self, claim: Head) -> bool:
        """Whether the head still has this claim."""

    def is_held(self, claim: Head, wait: bool = False) -> bool:
        """Whether the holder of a claim has not said that it ended. It may have been killed.

        `wait`: as long as the server itself may take to notice that the holder was killed, if it does notice.
        """

    def release(self, claim: Head) -> None:
        """Say that the holder of a claim has ended, where the end of its session or connection does not."""
        return

    def write(
        self, claim: Head, before: LogEnd, after: LogEnd, payloads: Sequence[bytes], committed: CommittedUpTo,
        beside: Sequence[LaterWrite] = (),
    ) -> bool:  # fmt: skip
        """Make records durable, the last ones of the position `after`; False if the head is another one than expected.

        `committed`: what is committed then, for stores that other programs ask for it.
        `beside`: what is written in the same transaction, or not at all; only for a store that has transactions.
        Raises `NotWrittenError`: the store of a state refuses what is `beside`. Nothing was written.
        """

    def read(self, head: Head, first: int) -> list[bytes] | None:
        """Return the records of the head's segment from number `first` on; None if some are gone."""

    def keep(self) -> None:
        """Let the segment of the head that this writer put there be read when a newer one has begun, if it needs that."""
        return

    def segments(self, before: SegmentName, most: int | None = None) -> list[SegmentName]:
        """Return the oldest segments, ascending, that can be read although they are older than the one of the head."""

    def read_old(self, segment: SegmentName, header_only: bool) -> Iterator[bytes]:
        """Yield the records of one of `segments`; see `TransactionLogReader.read_segment`."""

    def sweep(self, keep: SegmentName) -> None:
        """Remove the segments before `keep`."""

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
