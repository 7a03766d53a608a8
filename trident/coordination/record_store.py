"""What a server must do to keep a log: `RecordStore`, one for PostgreSQL, one for ZooKeeper and one for object stores.

A log there has one **head**, which is changed by compare-and-set alone: the claim of the writer, and the position that the log
has come to (its newest segment and the number of records in it). A claim puts its id into the head. An append moves the
position, and does so only if the head has the writer's id and the position that it knows. So a driver that was replaced, or
whose log was set back to an earlier time, appends nothing, and a request whose answer was lost may be made again.

While the server is away, requests wait (`Patience`): those of a running topology until it answers, those of a start some
seconds.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from trident.coordination.lock import SegmentName
from trident.coordination.log_state import CommittedUpTo
from trident.errors import LogError
from trident.state.kinds import LaterWrite

T = TypeVar("T")
logger = logging.getLogger(__name__)

START_S = 10.0
STOP_S = 5.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_SILENCE_S = 1.0


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

    def stop(self) -> None:
        """From now on let each request wait for some seconds at most. For any thread."""
        self.patience.stop()

    def close(self) -> None:
        """Close the connection, if one lasts."""
        return

    def abandon(self) -> None:
        """Leave the connection to the process that this one was forked from, whose threads do not exist here."""
        return


class Patience:
    """How long requests to the server of a log wait while it is away.

    `server`, `place`: the kind of server and the address of the log, for messages.
    `is_away`: what an error says if it is one of a server that is away; None for others.
    `seconds`: how long a request waits; then it raises `LogError`.
    """

    def __init__(self, server: str, place: object, is_away: Callable[[Exception], str | None] = lambda _: None) -> None:
        self.server, self.seconds = server, START_S
        self._place, self._is_away = place, is_away
        self._stopping_since = math.inf
        self._waiting_since: float | None = None  # that it was said
        self._pauses = threading.Event()

    def stop(self) -> None:
        """From now on let each request wait for some seconds at most."""
        self._stopping_since = min(self._stopping_since, time.monotonic())
        self._pauses.set()  # the pause of now ends

    def run(self, request: Callable[[], T]) -> T:
        """Return what `request` returns; it is called again while the server is away, so it may write nothing twice."""
        since, pause = time.monotonic(), _PAUSE_S
        while True:
            try:
                result = request()
            except Exception as error:
                text = self._is_away(error)
                if text is None:
                    raise
                self.check(since, f": {text}", error)
            else:
                self.note_answer()
                return result
            self._pauses.wait(pause)
            self._pauses.clear()
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def check(self, since: float, why: str = "", error: Exception | None = None) -> None:
        """Raise `LogError` if a request that has waited since then is not to wait any longer; else say that it waits.

        `why`: what the server's last answer says; without one, it is said after a second.
        """
        now = time.monotonic()
        if now - since > self.seconds or now - max(since, self._stopping_since) > STOP_S:
            self._waiting_since = None
            raise LogError(
                f"no answer from {self.server} at {self._place} for {now - since:.0f} seconds{why}"
            ) from error
        if self._waiting_since is None and (why or now - since > _SILENCE_S):
            self._waiting_since = since
            logger.warning("no answer from %s for %s; waiting until there is one%s", self.server, self._place, why)

    def note_answer(self) -> None:
        """Say that the server answers again, if it was said that it did not."""
        since, self._waiting_since = self._waiting_since, None
        if since is not None:
            logger.warning(
                "%s answers again for %s, after %.1f seconds", self.server, self._place, time.monotonic() - since
            )
