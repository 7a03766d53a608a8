"""A log in a `RecordStore`, written and read: the rules are those of the log in files; the store says what is kept where."""

from __future__ import annotations

import logging
import math
import secrets
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import NoReturn, Self

from trident.errors import AlreadyRunningError, CorruptLogError, FencedError, LogError, LogHeldError
from trident.log.framing import decode, encode
from trident.log.lock import SegmentName, holder_facts, holder_text, is_running
from trident.log.log_interface import AT_ONCE, DurableLog, claim_log, first_kept
from trident.log.log_state import CommittedUpTo, LogState, header_of, state_of
from trident.log.record_store import (
    CHUNKS,
    HEAD,
    NO_SEGMENT,
    Chunks,
    Head,
    LaterWrites,
    LogChunk,
    NotWrittenError,
    RecordStore,
    frame_payloads,
    read_payloads,
    segment_of,
)
from trident.log.records import Record, record_from_data
from trident.nodes.interface import StoredNode
from trident.retention import Retention
from trident.roles import Closes, close_on_error

logger = logging.getLogger(__name__)

_RECORDS = 1000
_NAMES = 2 * (AT_ONCE + 1) * _RECORDS  # that a sweep looks at: more than all of the segments that it may remove have
_LAST_HEAD = "-0"  # an id that no chunk has
_TRIES = 20

held_here: set[str] = set()  # the ids of the claims of this process


class StoredClaim:
    """The right to write a log as epoch `epoch`, until another driver claims it. `head`: the one that it has put there."""

    def __init__(self, store: RecordStore, head: Head) -> None:
        self.head, self.epoch, self._store = head, head.epoch, store
        held_here.add(head.id)

    @classmethod
    def take(cls, store: RecordStore, takeover: bool) -> StoredClaim:
        """Claim the next epoch. `LogHeldError`: another process is the writer, or has claimed at the same time."""
        first = before = read_head(store) or Head()
        if first.id and not takeover and (holder := holder_of(store, first, wait=True)) is not None:
            raise (AlreadyRunningError if first.id in held_here else LogHeldError)(store.place, holder)
        epoch, own, about = first.epoch + 1, secrets.token_hex(8), holder_facts(first.epoch + 1)
        while True:
            head = replace(before, epoch=epoch, id=own, about=about, is_held=True, turn=0)
            tag = store.claim(head, before)
            if tag is not None:
                return cls(store, head.known_as(tag))
            before = read_head(store) or Head()
            if not first.id or before.id != first.id:  # else the driver before has appended meanwhile
                holder = holder_text(before.about, before.epoch) if before.id else "another driver"
                raise LogHeldError(store.place, holder)

    def check(self) -> None:
        known = self.head.data  # before the request: a thread may append meanwhile
        (found,) = self._store.get([HEAD])
        if found is None or found.data != known:
            self._check_head(found and Head.of(found.data, f"{self._store.place}/{HEAD}"))

    def put(self, head: Head, chunks: Chunks, committed: CommittedUpTo, beside: LaterWrites = ()) -> None:
        tag = self._store.replace(head, chunks, committed, beside)
        if tag is None:
            self._check_head(read_head(self._store))
            raise LogError("its newest records were removed while it was written (was it restored from a copy?)")
        self.head = head.known_as(tag)

    def release(self) -> None:
        """Say that the writer has ended. The claim stays, because epochs are never used twice."""
        if self.head.id in held_here:
            self.abandon()
            self._store.release(self.head)

    def abandon(self) -> None:
        """Forget the claim, in a forked child as well."""
        held_here.discard(self.head.id)

    def _check_head(self, now: Head | None) -> None:
        if now is not None and now.id == self.head.id:
            return
        if now is not None and now.epoch > self.epoch:
            successor = holder_text(now.about, now.epoch)
        else:
            successor = f"an unknown driver: the claim {self.head.name} is gone (was the log removed?)"
        raise FencedError(f"transaction log {self._store.place}", f"epoch {self.epoch}", successor)


class StoredLog(DurableLog):
    """The log at an address of a `RecordStore`; a record that need not be durable goes with the next one that must."""

    def __init__(
        self, store: RecordStore, reader: StoredReader, claim: StoredClaim, state: LogState, segment_bytes: int
    ) -> None:
        """Not for callers: use `open`."""
        self._store, self._reader, self._claim, self._segment_bytes = store, reader, claim, segment_bytes
        self._size = self._roll_at = 0
        self._waiting: list[bytes] = []  # records for the next durable one
        super().__init__(store.place, state, claim.check)

    @classmethod
    def open(
        cls,
        store: RecordStore,
        topology: str,
        takeover: bool = False,
        *,
        segment_bytes: int = 512 << 10,
        history: Retention | None = None,
    ) -> Self:
        """Open the log in a store, or make one there, and become its writer; see `FileLog.open`."""
        reader = StoredReader(store, closes=False)
        with close_on_error(store.close):
            claim, state = claim_log(
                store.place, topology, reader.state_if_there,
                lambda: StoredClaim.take(store, takeover), history,
            )  # fmt: skip
            with close_on_error(claim.release):
                log = cls(store, reader, claim, state, segment_bytes)
                log._begin_segment()
        store.patience.seconds = math.inf  # a running topology waits for its log
        return log

    def carry(self, timeout_s: float) -> None:
        self._store.carry(timeout_s)

    def stop_waiting(self) -> None:
        self._store.stop()

    def _append(self, payload: bytes, record: Record, durable: bool, beside: LaterWrites) -> None:
        self._waiting.append(payload)
        if durable:
            self._send(record, beside)

    def close(self) -> None:
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

    def _send(self, last: Record | None, beside: LaterWrites = ()) -> None:
        """Make the records that wait durable, the `last` of which is not folded yet; in one request, if they fit."""
        try:
            if self._size >= self._roll_at or self._claim.head.count >= _RECORDS:
                self._begin_segment()
                del self._waiting[:-1]  # the state has what is folded
            self._write(self._claim.head, self._waiting, self.state.committed_with(last), beside)
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
        state, last, epoch = self.state, self._claim.head, self.epoch
        segment = SegmentName(epoch, last.segment.seq + 1 if last.segment.epoch == epoch else 1)
        payload = encode(header_of(segment, state))
        # A driver that was replaced may write the last head again: it has the same records, as no other one appended them.
        is_kept = state.retention is not None and last.segment.seq
        kept = {f"{_chunk_place(last.segment, last.count)}{_LAST_HEAD}": last.data} if is_kept else {}
        begun = replace(last, segment=segment, count=0, chunks=(), records=())
        self._write(begun, [payload], state.committed_with(None), kept=kept)
        self._size = len(payload)
        # A state that is larger than a segment must not be written again with every record.
        self._roll_at = len(payload) + max(self._segment_bytes, len(payload))
        try:
            self._sweep(last.segment if last.segment.seq else segment)
        except LogError as error:
            logger.warning("transaction log %s: cannot remove old segments: %s", self._place, error)

    def _write(
        self, head: Head, payloads: Sequence[bytes], committed: CommittedUpTo, beside: LaterWrites = (),
        kept: Chunks = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Add records behind those of a head; where they begin a segment, or do not fit, all that are in it go into a chunk."""
        records, chunks, made = (*head.records, *payloads), head.chunks, dict(kept)
        count = head.count + len(payloads)
        if not head.count or sum(map(len, records)) > self._store.head_bytes:
            data = frame_payloads(records)
            name = f"{_chunk_place(head.segment, count - len(records))}-{secrets.token_hex(8)}"
            if len(data) > self._store.part_bytes:
                name += f".{-(-len(data) // self._store.part_bytes)}"
            made[name], chunks, records = data, (*chunks, LogChunk(name, len(records))), ()
        new = replace(head, count=count, turn=head.turn + 1, chunks=chunks, records=records)
        self._claim.put(new, made, committed, beside)

    def _sweep(self, keep: SegmentName) -> None:
        names, state, segment = self._store.names(_NAMES), self.state, self._claim.head.segment
        if state.retention is not None:
            old = self._reader.note_kept(names, segment)
            first = first_kept(
                old[: AT_ONCE + 1] or [keep], state, lambda name: self._reader.read_old(name, header_only=True)
            )
            keep = self._store.first_kept(old, first)
        gone = [name for name in names if (of := segment_of(name)) is not None and of < keep]
        # The last heads first: no chunk goes that one names.
        for each in (True, False):
            if some := [name for name in gone if name.endswith(_LAST_HEAD) is each]:
                self._store.remove(some)

    def _fail(self, error: LogError) -> NoReturn:
        self._dead = LogError(
            f"cannot append to the transaction log {self._place}: {error}. "
            f"Batch {self.state.txid} is the last one known to be committed; whether the next one is, the log says when "
            f"{self._store.patience.server} answers again. Start again then: the topology continues from there"
        )
        raise self._dead from error


class StoredReader(Closes):
    """Follows a log; never writes. For one thread. An append is valid or does not happen, so nothing is ever torn."""

    torn = 0

    def __init__(self, store: RecordStore, closes: bool = True) -> None:
        self._store, self._place = store, store.place
        self._end = weakref.finalize(self, store.close if closes else lambda: None)  # for those that forget to close it
        self._state: LogState | None = None
        self._claim = (0, "")  # that was there when the state was read, and from which segment
        self.segment = NO_SEGMENT
        self._number = 0
        self._last_heads: dict[SegmentName, str] = {}  # of the segments that were listed last

    def is_there(self) -> bool:
        return self._begun() is not None

    def holder(self) -> str | None:
        head = read_head(self._store)
        return None if head is None else holder_of(self._store, head)

    def refresh(self) -> LogState:
        state = self.state_if_there()
        if state is None:
            raise LogError(f"there is no transaction log at {self._place}; a topology's first start makes one")
        return state

    def state_if_there(self) -> LogState | None:
        for _ in range(_TRIES):
            head = self._begun()
            if head is None:
                return None
            # Another one of the same name, of a log that was removed and begun again, is read from its header on.
            is_same = (head.epoch, head.id) == self._claim or head.epoch > self._claim[0]
            if head.segment != self.segment or head.count < self._number or not is_same:
                self.segment, self._number, self._state = head.segment, 0, None
            self._claim = head.epoch, head.id
            if self._read(head):
                return self._state
        raise LogError(
            f"cannot read the transaction log {self._place}: records of its newest segment were missing {_TRIES} times. If "
            "its writer compacts it all the time, try again; otherwise they were removed"
        )

    def segments(self) -> list[SegmentName]:
        head = self._begun()
        return [] if head is None else [*self.note_kept(self._store.names(), head.segment), head.segment]

    def note_kept(self, names: Iterable[str], before: SegmentName) -> list[SegmentName]:
        """Return the segments, ascending, that can be read although they are older than that of the head; from all names."""
        last = [(segment, name) for name in names if name.endswith(_LAST_HEAD) and (segment := segment_of(name))]
        self._last_heads = {segment: name for segment, name in last if segment < before}
        return sorted(self._last_heads)

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        head = self._begun() if segment == self.segment else None  # the one that `refresh` has read
        if head is not None and head.segment == segment:
            return iter(self._records(head, 0) or ())
        if head is not None:  # a newer one has begun meanwhile
            self.note_kept(self._store.names(), head.segment)
        return self.read_old(segment, header_only)

    def read_old(self, segment: SegmentName, header_only: bool) -> Iterator[bytes]:
        """Yield the records of a segment that was listed; see `TransactionLogReader.read_segment`."""
        name = self._last_heads.get(segment)
        found = None if name is None else self._store.get([name])[0]
        if name is None or found is None:
            return
        head = Head.of(found.data, f"{self._place}/{name}")
        chunks = head.chunks[:1] if header_only else head.chunks
        for chunk, data in zip(chunks, self._store.get([each.name for each in chunks]), strict=True):
            if data is None:
                if self._store.get([name]) == [None]:
                    return  # the history is being shortened: last heads go first
                raise CorruptLogError(f"{self._place}/{chunk.name}", 0, "it is missing")
            yield from self._records_of(chunk, data)
        yield from head.records

    def close(self) -> None:
        self._end()

    def _begun(self) -> Head | None:
        head = read_head(self._store)
        return head if head is not None and head.segment.seq > 0 else None

    def _read(self, head: Head) -> bool:
        """Fold the records up to the position of the head; False if some are gone, as when a newer segment has replaced it."""
        payloads = [] if head.count == self._number else self._records(head, self._number)
        for payload in payloads or ():
            self._fold(head.segment, payload)
            self._number += 1
        return payloads is not None

    def _records(self, head: Head, first: int) -> list[bytes] | None:
        """Return the records of a head's segment from number `first` on; None if some are gone."""
        ends = accumulate(chunk.length for chunk in head.chunks)
        wanted = [chunk for chunk, end in zip(head.chunks, ends, strict=True) if end > first]
        payloads: list[bytes] = []
        for chunk, found in zip(wanted, self._store.get([each.name for each in wanted]), strict=True):
            if found is None:
                return None
            payloads += self._records_of(chunk, found)
        payloads += head.records
        return payloads[len(payloads) - (head.count - first) :]

    def _records_of(self, chunk: LogChunk, found: StoredNode) -> list[bytes]:
        where = f"{self._place}/{chunk.name}"
        records = read_payloads(found.data, where)
        if len(records) != chunk.length:
            raise CorruptLogError(where, 0, f"it has {len(records)} records, not {chunk.length}")
        return records

    def _fold(self, segment: SegmentName, payload: bytes) -> None:
        try:
            content = decode(payload)
            if self._state is None:
                self._state = state_of(content, segment, f"{self._place}, segment {segment.file}")
            else:
                self._state.apply(record_from_data(content))
        except (ValueError, KeyError) as error:
            where, self.segment = f"{self._place}, segment {segment.file}, record {self._number}", NO_SEGMENT
            raise CorruptLogError(where, 0, str(error)) from error


def read_head(store: RecordStore) -> Head | None:
    (found,) = store.get([HEAD])
    return None if found is None else Head.of(found.data, f"{store.place}/{HEAD}", found.version)


def holder_of(store: RecordStore, head: Head, wait: bool = False) -> str | None:
    """Say who holds a claim; None if its holder has ended. `wait`: see `RecordStore.is_held`, of another machine."""
    runs = head.id in held_here or is_running(head.about)
    if runs is False or not store.is_held(head, wait and runs is None):
        return None
    return holder_text(head.about, head.epoch)


def _chunk_place(segment: SegmentName, number: int) -> str:
    return f"{CHUNKS}/{segment.epoch:08d}-{segment.seq:04d}-{number:08d}"
