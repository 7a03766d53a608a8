"""`DurableLog`: what the logs have in common that outlive their process: who may write, and when no more."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

from trident.coordination.framing import decode, encode
from trident.coordination.log_state import LogState
from trident.coordination.records import Record, record_from_data
from trident.errors import FencedError, ForeignLogError, LogError
from trident.retention import Retention

logger = logging.getLogger(__name__)


class DurableLog(ABC):
    """A log that is open for writing. Threads may append at the same time; a forked child may not.

    Parameters
    ----------
    place
        Where it is, as errors name it.
    state
        What it says so far, in the epoch of this writer.
    check_claim
        Raises `FencedError` if another driver has claimed the log.
    """

    def __init__(self, place: object, state: LogState, check_claim: Callable[[], None]) -> None:
        self.state, self.epoch = state, state.epoch
        self._place, self._still_claimed = place, check_claim
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._dead: FencedError | LogError | None = None
        _open_logs.add(self)

    @abstractmethod
    def abandon(self) -> None:
        """Close the log in a forked child, which has its files and sockets, but none of its threads."""

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has claimed the log, `LogError` if the log can no longer be used."""
        self._check_usable()
        self._check_claim()

    @property
    def _is_ours(self) -> bool:
        """Whether this process opened it, and not one that it was forked from."""
        return os.getpid() == self._pid

    def _to_write(self, record: Record) -> tuple[bytes, Record]:
        """Return a record's bytes, and what a reader will see of it; `ValueError` if it cannot come next."""
        self._check_usable()
        payload = encode(record.to_data())
        written = record_from_data(decode(payload))  # a copy of the caller's record
        self.state.check(written)
        return payload, written

    def _check_usable(self) -> None:
        if not self._is_ours:
            raise LogError(
                f"the transaction log {self._place} was opened by process {self._pid} and cannot be used by "
                f"process {os.getpid()}, forked from it"
            )
        if self._dead is not None:
            raise type(self._dead)(*self._dead.args)

    def _check_claim(self) -> None:
        try:
            self._still_claimed()
        except (FencedError, LogError) as error:
            self._dead = error
            raise

    def _refuse_all(self) -> None:
        """Refuse all further calls: the log is closed. In a forked child they must not hang either."""
        self._dead = self._dead or LogError(f"the transaction log {self._place} is closed")
        if not self._is_ours:
            self._lock = threading.Lock()  # no thread is left to release the old one


def check_topology(place: object, topology: str, state: LogState | None) -> None:
    """Raise `ForeignLogError` if a log is of another topology."""
    if state is not None and state.topology != topology:
        raise ForeignLogError(str(place), f"topology {state.topology!r}", f"topology {topology!r}")


def state_to_continue(stored: LogState | None, topology: str, epoch: int, history: Retention | None) -> LogState:
    """Return the state with which a writer begins: what the log holds, or a new log's, with the writer's epoch.

    `history`: how long the log keeps its history from now on; None: as long as it does.
    """
    state = stored or LogState(incarnation=secrets.token_hex(8), topology=topology)
    state.epoch = epoch
    if history is not None:
        state.retention = None if history.keeps_nothing else history
    elif state.retention is not None:
        logger.info(
            "topology %s keeps the history that its log has, history=%s, which this start does not set; history=0 gives it up",
            topology, state.retention,
        )  # fmt: skip
    return state


_open_logs: weakref.WeakSet[DurableLog] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for log in list(_open_logs):
        log.abandon()


# A forked child must not hold the claim after its parent ends, nor write to the parent's files and sockets.
os.register_at_fork(after_in_child=_abandon_in_child)
