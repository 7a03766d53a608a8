"""Reading a log in a `RecordStore` from any process, while it is written."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from trident.coordination import holders
from trident.coordination.framing import decode
from trident.coordination.lock import SegmentName
from trident.coordination.log_reader import state_of
from trident.coordination.log_state import LogState
from trident.coordination.record_store import Head, RecordStore
from trident.coordination.records import record_from_data
from trident.errors import CorruptLogError, LogError
from trident.roles import Closes

_TRIES = 20


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
        self._segment = SegmentName(0, 0)
        self._number = 0

    @property
    def segment(self) -> SegmentName | None:
        """The segment that the state was read from; None before the first `refresh`."""
        return self._segment if self._number else None

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
            if segment != self._segment or count < self._number or not is_same:
                self._segment, self._number, self._state = segment, 0, None
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
        if segment != self._segment:  # the one that `refresh` has read
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
            where, self._segment = f"{self.address}, segment {segment.file}, record {self._number}", SegmentName(0, 0)
            raise CorruptLogError(where, 0, str(error)) from error


def _is_begun(head: Head | None) -> bool:
    return head is not None and head.position.segment.seq > 0


held_here: set[str] = set()
"""The ids of the claims of this process."""


def holder_of(store: RecordStore, head: Head, wait: bool = False) -> str | None:
    """Say who holds a claim; None if its holder has ended. `wait`: see `RecordStore.is_held`, of another machine."""
    about = holders.read(head.about)
    is_running = head.id in held_here or holders.is_running(about)
    if is_running is False or not store.is_held(head, wait and is_running is None):
        return None
    return holders.described(about, head.epoch)
