"""What a log is: its interface for writers and readers, a log in memory, and what those share that outlive their process."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Protocol, TypeVar

from trident.errors import AlreadyRunningError, FencedError, ForeignLogError, LogError
from trident.log.framing import decode, encode
from trident.log.lock import SegmentName
from trident.log.log_state import LogState, header_state
from trident.log.records import Record, record_from_data
from trident.retention import Retention
from trident.servers import local_processes
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)
C = TypeVar("C", bound="LogClaim")


class TransactionLog(Protocol):
    """The interface of a log, as the driver uses it."""

    state: LogState
    epoch: int

    def append(self, record: Record, durable: bool = True) -> None:
        """Write a record. When it returns the record is applied to `state`, and it and all before it are durable.

        `durable`: False: it is durable once a later one is, which checks whether another driver has claimed the log. Raises
        `ValueError`: it cannot come next, or is not plain data; the log can still be used. After `FencedError` (another
        driver has claimed the log) or `LogError` (it could not be made durable) every later append fails as well.
        """

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has claimed a later epoch."""

    def stop_waiting(self) -> None:
        """Let calls that wait for the log's servers end soon, with `LogError`. For any thread: the driver is to stop."""
        return  # no call of a log without servers waits

    def close(self) -> None:
        """Release the log."""


class TransactionLogReader(Protocol):
    """The interface of what follows a log, and never writes. For one thread."""

    torn: int  # bytes of an unfinished last record that the latest `refresh` passed over

    def is_there(self) -> bool:
        """Whether there is a log."""

    def refresh(self) -> LogState:
        """Read what was appended since, and return the state, which the next call may change."""

    def segments(self) -> list[SegmentName]:
        """Return the segments that are kept, oldest first."""

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        """Yield the records of a segment, its header first; none if it was removed, some if it is damaged."""

    def holder(self) -> str | None:
        """Say who writes the log; None if no driver does."""

    def close(self) -> None:
        """Release what reading needs, if it needs something."""
        return


class MemoryLog(TransactionLog):
    """A log in this process, for topologies whose states are in memory as well; of epoch 0 it needs `reopen`."""

    def __init__(self, topology: str, epoch: int = 1) -> None:
        self.epoch = epoch
        self.state = LogState(incarnation=secrets.token_hex(8), topology=topology, epoch=epoch)
        self.closed = False
        self._lock = threading.Lock()
        self._holders: set[int] = set()  # epochs of writers that are not closed; shared by all writers of the log

    def reopen(self, takeover: bool = False) -> MemoryLog:
        """Return the writer of the next epoch, which fences all earlier ones; `AlreadyRunningError`: one still writes."""
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
        if self.state.epoch != self.epoch:
            what = f"transaction log of topology {self.state.topology!r} in memory"
            raise FencedError(what, f"epoch {self.epoch}", f"epoch {self.state.epoch}")

    def close(self) -> None:
        self.closed = True
        with self._lock:
            self._holders.discard(self.epoch)


class DurableLog(TransactionLog):
    """A log that is open for writing. Threads may append at the same time; a forked child may not."""

    def __init__(self, place: object, state: LogState, check_claim: Callable[[], None]) -> None:
        self.state, self.epoch = state, state.epoch
        self._place, self._check_claim = place, check_claim
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._dead: FencedError | LogError | None = None
        # A forked child must not hold the claim after its parent ends, nor write to the parent's files and sockets.
        local_processes.abandon_in_children(self)

    def append(self, record: Record, durable: bool = True, beside: Sequence[LaterWrite] = ()) -> None:
        """Write a record, and writes of states `beside` in the same transaction; see `TransactionLog.append`."""
        # `NotWrittenError`: a state refuses its write; nothing was written, and the log goes on.
        with self._lock:
            self._check_usable()
            payload = encode(record.to_data())
            written = record_from_data(decode(payload))  # a copy of the caller's record, as a reader will see it
            self.state.check(written)
            try:
                self._append(payload, written, durable, beside)
            except (FencedError, LogError) as error:
                self._dead = error
                raise
            self.state.fold(written)

    @abstractmethod
    def _append(self, payload: bytes, record: Record, durable: bool, beside: Sequence[LaterWrite]) -> None:
        """Write the bytes of a record, which is not folded yet."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the log in a forked child, which has its files and sockets, but none of its threads."""

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has claimed the log, `LogError` if the log can no longer be used."""
        self._check_usable()
        try:
            self._check_claim()
        except (FencedError, LogError) as error:
            self._dead = error
            raise

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._pid

    def _check_usable(self) -> None:
        if not self._is_ours:
            raise LogError(
                f"the transaction log {self._place} was opened by process {self._pid} and cannot be used by "
                f"process {os.getpid()}, forked from it"
            )
        if self._dead is not None:
            raise type(self._dead)(*self._dead.args)

    def _refuse_all(self) -> None:
        """Refuse all further calls: the log is closed. In a forked child they must not hang either."""
        self._dead = self._dead or LogError(f"the transaction log {self._place} is closed")
        if not self._is_ours:
            self._lock = threading.Lock()  # no thread is left to release the old one


class LogClaim(Protocol):
    """The right to write a log as epoch `epoch`, until another driver claims it."""

    epoch: int

    def release(self) -> None:
        """Give it up."""


def claim_log(
    place: object,
    topology: str,
    stored: Callable[[], LogState | None],
    take: Callable[[], C],
    history: Retention | None,
) -> tuple[C, LogState]:
    """Become the writer of a log; return the claim, and the state with which the writer begins.

    `stored`: reads what the log holds, None if there is none. `take`: claims it.
    """

    def read() -> LogState | None:
        state = stored()
        if state is not None and state.topology != topology:
            raise ForeignLogError(str(place), f"topology {state.topology!r}", f"topology {topology!r}")
        return state

    read()  # before the claim, because a refused open must not fence the rightful writer
    claim = take()
    try:
        # After the claim, because no later append of another driver is valid, so this is all of the log.
        state = read() or LogState(incarnation=secrets.token_hex(8), topology=topology)
    except BaseException:
        claim.release()
        raise
    state.epoch = claim.epoch
    if history is not None:
        state.retention = None if history.keeps_nothing else history
    elif state.retention is not None:
        logger.info(
            "topology %s keeps the history that its log has, history=%s, which this start does not set; history=0 gives it up",
            topology, state.retention,
        )  # fmt: skip
    return claim, state


AT_ONCE = 10  # segments that are looked at when one begins, however many there are: a start must not take longer


def first_kept(
    names: Sequence[SegmentName], state: LogState, read: Callable[[SegmentName], Iterator[bytes]]
) -> SegmentName:
    """Return the first segment that stays of the old ones, ascending, the last of which stays in any case."""
    # A segment may go when the header of the one behind it says that all before is old enough. One that cannot be read is
    # passed over: what is behind it decides.
    retention = state.retention
    if retention is None or not state.history:
        return names[-1 if retention is None else 0]
    first, last = names[0], state.history[-1]
    for name in names[1 : AT_ONCE + 1]:
        try:
            payload = next(read(name), None)
            header = None if payload is None else header_state(payload, name, name.file)
        except LogError as error:
            logger.warning("transaction log of topology %r: its history is damaged: %s", state.topology, error)
            continue
        if header is None:
            continue
        at_ms = header.history[-1].at_ms if header.history else 0
        if not retention.lets_go(header.txid, at_ms, state.txid, last.at_ms):
            break
        first = name
    return first
