"""A log in a `RecordStore`, written and read: the rules are those of the log in files; the store says what is kept where."""

from __future__ import annotations

import logging
import math
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, Self

from trident.coordination.framing import decode, encode
from trident.coordination.lock import SegmentName, holder_facts, holder_text, is_running
from trident.coordination.log_interface import AT_ONCE, DurableLog, claim_log, first_kept
from trident.coordination.log_state import CommittedUpTo, LogState, header_of, state_of
from trident.coordination.record_store import Head, LogEnd, NotWrittenError, RecordStore
from trident.coordination.records import Record, record_from_data
from trident.errors import AlreadyRunningError, CorruptLogError, FencedError, LogError, LogHeldError
from trident.retention import Retention
from trident.roles import Closes, close_on_error
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)

_RECORDS = 1000
_TRIES = 20

held_here: set[str] = set()
"""The ids of the claims of this process."""


class StoredClaim:
    """The right to write a log as epoch `epoch`, until another driver claims it."""

    def __init__(self, store: RecordStore, place: object, head: Head) -> None:
        self.head, self.epoch = head, head.epoch
        self._store, self._place = store, place
        held_here.add(head.id)

    @classmethod
    def take(cls, store: RecordStore, place: object, takeover: bool, clock: Callable[[], float]) -> StoredClaim:
        """Claim the next epoch.

        Raises `LogHeldError`: another process is the writer and `takeover` is False, or it claimed the log at the same time.
        """
        before = store.look()
        if before is not None and not takeover and (holder := holder_of(store, before, wait=True)) is not None:
            raise (AlreadyRunningError if before.id in held_here else LogHeldError)(str(place), holder)
        epoch = 1 if before is None else before.epoch + 1
        head = store.claim(before, epoch, secrets.token_hex(8), holder_facts(epoch, clock))
        if head is None:
            now = store.look()
            raise LogHeldError(str(place), "another driver" if now is None else holder_text(now.about, now.epoch))
        return cls(store, place, head)

    def check(self) -> None:
        """Raise `FencedError` unless this is still the claim."""
        if not self._store.has(self.head):
            raise self.fencing_error(self._store.look())

    def fencing_error(self, now: Head | None) -> FencedError:
        """Return the error that tells who has taken over."""
        if now is not None and now.epoch > self.epoch:
            successor = holder_text(now.about, now.epoch)
        else:
            successor = f"an unknown driver: the claim {self.head.name} is gone (was the log removed?)"
        return FencedError(f"transaction log {self._place}", f"epoch {self.epoch}", successor)

    def release(self) -> None:
        """Say that the writer has ended. The claim stays, because epochs are never used twice."""
        if self.head.id in held_here:
            self.abandon()
            self._store.release(self.head)

    def abandon(self) -> None:
        """Forget the claim, in a forked child as well."""
        held_here.discard(self.head.id)


class StoredLog(DurableLog):
    """The log at an address of a `RecordStore`. Threads may append at the same time; a forked child may not.

    A record that need not be durable goes with the next one that must.
    """

    def __init__(
        self, address: str, store: RecordStore, claim: StoredClaim, state: LogState, segment_bytes: int
    ) -> None:
        """Not for callers: use `open`."""
        self._store, self._claim, self._segment_bytes = store, claim, segment_bytes
        self._at = claim.head.position
        self._size = self._roll_at = 0
        self._waiting: list[bytes] = []  # records for the next durable one
        super().__init__(address, state, claim.check)

    @classmethod
    def open(
        cls,
        address: str,
        topology: str,
        store: RecordStore,
        takeover: bool = False,
        *,
        segment_bytes: int = 512 << 10,
        history: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the log in a store, or make one there, and become its writer; see `FileLog.open`.

        `segment_bytes`: the size in bytes, about, at which the next segment begins; it does after 1,000 records in any case.
        Raises `LogError`: the server does not answer or refuses.
        """
        reader = StoredReader(address, store, closes=False)
        with close_on_error(store.close):
            claim, state = claim_log(
                address, topology, reader.state_if_there,
                lambda: StoredClaim.take(store, address, takeover, clock), history,
            )  # fmt: skip
            with close_on_error(claim.release):
                log = cls(address, store, claim, state, segment_bytes)
                log._begin_segment()
        store.patience.seconds = math.inf  # a running topology waits for its log
        return log

    def carry(self, timeout_s: float) -> None:
        """Let records take writes of states along, each of which may take so long."""
        self._store.carry(timeout_s)

    def stop_waiting(self) -> None:
        """Let an append that waits for the server wait for some seconds more at most."""
        self._store.stop()

    def _append(self, payload: bytes, record: Record, durable: bool, beside: Sequence[LaterWrite]) -> None:
        self._waiting.append(payload)
        if durable:
            self._send(record, beside)

    def close(self) -> None:
        """Release the log and its connection; harmless when it is closed already."""
        if not self._is_ours:
            self.abandon()
            return
        self.stop_waiting()
        with self._lock:  # not during an append
            if self._dead is None and self._waiting:
                try:
                    self._send(None)
                except (FencedError, LogError) as error:  # they are for a batch that is not committed
                    logger.debug("transaction log %s: %s", self._place, error)
            self._refuse_all()
            self._claim.release()
            self._store.close()

    def abandon(self) -> None:
        self._refuse_all()
        self._claim.abandon()
        self._store.abandon()

    def _send(self, last: Record | None, beside: Sequence[LaterWrite] = ()) -> None:
        """Make the records that wait durable, the `last` of which is not folded yet; in one request, if they fit."""
        try:
            if self._size >= self._roll_at or self._at.length >= _RECORDS:
                self._begin_segment()
                del self._waiting[:-1]  # the state has what is folded
            after = LogEnd(self._at.segment, self._at.length + len(self._waiting))
            self._write(after, self._waiting, self.state.committed_with(last), beside)
            self._size += sum(map(len, self._waiting))
        except NotWrittenError:
            del self._waiting[-1]
            raise
        except FencedError as error:
            self._dead = error
            raise
        except LogError as error:
            self._fail(error)
        except BaseException:
            # An interrupt leaves the fate of the record unknown; it must not be sent again with the next one.
            self._dead = LogError(f"an append to the transaction log {self._place} was interrupted")
            raise
        self._waiting.clear()

    def _begin_segment(self) -> None:
        """Begin the next segment with the state and write to it from now on; remove what is older than the one before."""
        state, previous, epoch = self.state, self._at.segment, self.epoch
        segment = SegmentName(epoch, previous.seq + 1 if previous.epoch == epoch else 1)
        payload = encode(header_of(segment, state))
        if state.retention is not None and previous.seq:
            self._store.keep()
        self._write(LogEnd(segment, 1), [payload], state.committed_with(None))
        self._size = len(payload)
        # A state that is larger than a segment must not be written again with every record.
        self._roll_at = len(payload) + max(self._segment_bytes, len(payload))
        keep = previous if previous.seq else segment
        try:
            if state.retention is not None:
                old = self._store.segments(segment, AT_ONCE + 1)
                keep = first_kept(old or [keep], state, lambda name: self._store.read_old(name, header_only=True))
            self._store.sweep(keep)
        except LogError as error:
            logger.warning("transaction log %s: cannot remove old segments: %s", self._place, error)

    def _write(
        self, after: LogEnd, payloads: Sequence[bytes], committed: CommittedUpTo, beside: Sequence[LaterWrite] = ()
    ) -> None:
        if not self._store.write(self._claim.head, self._at, after, payloads, committed, beside):
            now = self._store.look()
            if now is None or now.id != self._claim.head.id:
                raise self._claim.fencing_error(now)
            raise LogError("its newest records were removed while it was written (was it restored from a copy?)")
        self._at = after

    def _fail(self, error: LogError) -> NoReturn:
        self._dead = LogError(
            f"cannot append to the transaction log {self._place}: {error}. "
            f"Batch {self.state.txid} is the last one known to be committed; whether the next one is, the log says when "
            f"{self._store.patience.server} answers again. Start again then: the topology continues from there"
        )
        raise self._dead from error


class StoredReader(Closes):
    """Follows a log; never writes. For one thread. An append is valid or does not happen, so nothing is ever torn.

    `closes`: whether the store is this reader's own.
    """

    torn = 0

    def __init__(self, address: object, store: RecordStore, closes: bool = True) -> None:
        self.address, self._store = address, store
        self._end = weakref.finalize(self, store.close if closes else lambda: None)  # for those that forget to close it
        self._state: LogState | None = None
        self._claim = (0, "")  # that was there when the state was read, and from which segment
        self.segment = SegmentName(0, 0)
        self._number = 0

    def is_there(self) -> bool:
        return _is_begun(self._store.look())

    def holder(self) -> str | None:
        head = self._store.look()
        return None if head is None else holder_of(self._store, head)

    def refresh(self) -> LogState:
        state = self.state_if_there()
        if state is None:
            raise LogError(f"there is no transaction log at {self.address}; a topology's first start makes one")
        return state

    def state_if_there(self) -> LogState | None:
        """Return what `refresh` does; None if there is no log."""
        for _ in range(_TRIES):
            head = self._store.look()
            if head is None or not _is_begun(head):
                return None
            segment, count = head.position
            # Another one of the same name, of a log that was removed and begun again, is read from its header on.
            is_same = (head.epoch, head.id) == self._claim or head.epoch > self._claim[0]
            if segment != self.segment or count < self._number or not is_same:
                self.segment, self._number, self._state = segment, 0, None
            self._claim = head.epoch, head.id
            if self._read(head):
                return self._state
        raise LogError(
            f"cannot read the transaction log {self.address}: records of its newest segment were missing {_TRIES} times. If "
            "its writer compacts it all the time, try again; otherwise they were removed"
        )

    def segments(self) -> list[SegmentName]:
        head = self._store.look()
        if head is None or not _is_begun(head):
            return []
        return [*self._store.segments(head.position.segment), head.position.segment]

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        if segment != self.segment:  # the one that `refresh` has read
            return self._store.read_old(segment, header_only)
        head = self._store.look()
        if head is None or head.position.segment == segment:
            return iter((head and self._store.read(head, 0)) or ())
        self._store.segments(head.position.segment)  # a newer one has begun meanwhile
        return self._store.read_old(segment, header_only)

    def close(self) -> None:
        self._end()

    def _read(self, head: Head) -> bool:
        """Fold the records up to the position of the head; False if some are gone, as when a newer segment has replaced it."""
        if head.position.length == self._number:
            return True
        payloads = self._store.read(head, self._number)
        for payload in payloads or ():
            self._fold(head.position.segment, payload)
            self._number += 1
        return payloads is not None

    def _fold(self, segment: SegmentName, payload: bytes) -> None:
        try:
            content = decode(payload)
            if self._state is None:
                self._state = state_of(content, segment, f"{self.address}, segment {segment.file}")
            else:
                self._state.apply(record_from_data(content))
        except (ValueError, KeyError) as error:
            where, self.segment = f"{self.address}, segment {segment.file}, record {self._number}", SegmentName(0, 0)
            raise CorruptLogError(where, 0, str(error)) from error


def _is_begun(head: Head | None) -> bool:
    return head is not None and head.position.segment.seq > 0


def holder_of(store: RecordStore, head: Head, wait: bool = False) -> str | None:
    """Say who holds a claim; None if its holder has ended. `wait`: see `RecordStore.is_held`, of another machine."""
    runs = head.id in held_here or is_running(head.about)
    if runs is False or not store.is_held(head, wait and runs is None):
        return None
    return holder_text(head.about, head.epoch)
