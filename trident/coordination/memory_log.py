"""The interface of a log, and a log in memory for topologies whose states are in memory as well."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from copy import copy
from typing import Protocol

from trident.coordination.framing import decode, encode
from trident.coordination.lock import SegmentName
from trident.coordination.log_state import LogState
from trident.coordination.records import Record
from trident.errors import AlreadyRunningError, FencedError, LogError


class TransactionLog(Protocol):
    """The interface of a log, as the driver uses it."""

    state: LogState
    epoch: int

    def append(self, record: Record, durable: bool = True) -> None:
        """Write a record. When it returns the record is applied to `state`, and it and all before it are durable.

        Parameters
        ----------
        durable
            False: the record is durable once a later one is. Until then it survives the end of this process, but not of the
            machine, in a log in files; in ZooKeeper it is sent together with the later one. That append checks whether another
            driver has claimed the log.

        Raises
        ------
        ValueError
            The record cannot come next, or is not plain data. Nothing was written; the log can still be used.
        FencedError
            Another driver has claimed the log; the record is not valid. Every later append fails as well.
        LogError
            The record could not be made durable. Every later append fails as well.
        """

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has claimed a later epoch."""

    def stop_waiting(self) -> None:
        """Let calls that wait for the log's servers end soon, with `LogError`. For any thread: the driver is to stop."""
        return  # no call of a log without servers waits

    def close(self) -> None:
        """Release the log."""


class TransactionLogReader(Protocol):
    """The interface of what follows a log, and never writes. For one thread.

    `torn`: bytes of an unfinished last record that the latest `refresh` passed over.
    """

    torn: int

    def is_there(self) -> bool:
        """Whether there is a log."""

    def refresh(self) -> LogState:
        """Read what was appended since the last call and return the state; the next call may change that object.

        Raises `LogError`: there is no log, or it cannot be read.
        Raises `CorruptLogError`: a record that was durable does not check.
        """

    def segments(self) -> list[SegmentName]:
        """Return the segments that are kept, oldest first."""

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        """Yield the records of a segment, the first of which is its header; none if it was removed.

        Raises `CorruptLogError`: one is damaged or missing; those before it were given.
        """

    def holder(self) -> str | None:
        """Say who writes the log; None if no driver does."""

    def close(self) -> None:
        """Release what reading needs, if it needs something."""
        return


class MemoryLog(TransactionLog):
    """A log in this process, for topologies whose states are in memory as well.

    Parameters
    ----------
    epoch
        That of its writer; 0 for a log that is to be `reopened` before it is written.
    """

    def __init__(self, topology: str, epoch: int = 1) -> None:
        self.epoch = epoch
        self.state = LogState(incarnation=secrets.token_hex(8), topology=topology, epoch=epoch)
        self.closed = False
        self._lock = threading.Lock()
        self._holders: set[int] = set()  # epochs of writers that are not closed; shared by all writers of the log

    def reopened(self, takeover: bool = False) -> MemoryLog:
        """Return the writer of the next epoch of the same log; every earlier one is fenced.

        Raises `AlreadyRunningError` if a topology of this process still writes it, unless `takeover`.
        """
        successor = copy(self)
        with self._lock:
            if self._holders and not takeover:
                where, holder = f"of topology {self.state.topology!r} in memory", f"epoch {self.state.epoch}"
                raise AlreadyRunningError(where, holder)
            self.state.epoch += 1
            successor.epoch, successor.closed = self.state.epoch, False
            self._holders.clear()
            self._holders.add(successor.epoch)
        return successor

    def append(self, record: Record, durable: bool = True) -> None:
        with self._lock:
            self.check_owner()
            if self.closed:
                raise LogError(f"the transaction log of topology {self.state.topology!r} is closed")
            # Through the codec, as in a file: so it keeps a copy, and refuses what a file would refuse.
            self.state.apply(type(record)(*decode(encode(list(vars(record).values())))))

    def check_owner(self) -> None:
        """Raise `FencedError` if the log was reopened since."""
        if self.state.epoch != self.epoch:
            what = f"transaction log of topology {self.state.topology!r} in memory"
            raise FencedError(what, f"epoch {self.epoch}", f"epoch {self.state.epoch}")

    def close(self) -> None:
        """Refuse further records, and let the next writer in."""
        self.closed = True
        with self._lock:
            self._holders.discard(self.epoch)
