"""`RemoteLog`: what the logs on servers have in common: a record that need not be durable goes with the next that must."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from trident.coordination.durable_log import DurableLog
from trident.coordination.log_state import CommittedUpTo, LogState
from trident.coordination.record_store import NotWrittenError
from trident.coordination.records import Record
from trident.errors import FencedError, LogError
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)


class RemoteSegments(Protocol):
    """What writes the segments of a log under one claim."""

    @property
    def is_full(self) -> bool:
        """Whether the next segment should begin."""

    def next(self, state: LogState) -> None:
        """Begin the next segment with `state`."""

    def append(self, payloads: Sequence[bytes], committed: CommittedUpTo, beside: Sequence[LaterWrite] = ()) -> None:
        """Append records; when this returns they are durable. `committed` and `beside` as of `RecordStore.write`."""


class RemoteLog(DurableLog):
    """A log on a server. Threads may append at the same time; a forked child may not.

    `server`: the kind of server, as errors name it.
    """

    server: str

    def __init__(
        self, place: object, state: LogState, check_claim: Callable[[], None], segments: RemoteSegments
    ) -> None:
        self._remote = segments
        self._waiting: list[bytes] = []  # records for the next durable one
        super().__init__(place, state, check_claim)

    @abstractmethod
    def stop_waiting(self) -> None:
        """Let calls that wait for the log's server end soon."""

    @abstractmethod
    def _release(self) -> None:
        """Say that the writer has ended, and close the connection."""

    @abstractmethod
    def _forget(self) -> None:
        """Let a forked child have no part in the claim and its connection."""

    def _is_of_server(self, _error: BaseException) -> bool:
        """Whether an error is one of the client of the server: most clients' become `LogError` before."""
        return False

    def append(self, record: Record, durable: bool = True, beside: Sequence[LaterWrite] = ()) -> None:
        """Write a record; see `TransactionLog.append`. It waits while the server does not answer.

        `beside`: writes of states that are made in the same transaction; only for a log that can.
        Raises `NotWrittenError`: a state refuses its write. Nothing was written, and the log goes on.
        """
        with self._lock:
            payload, written = self._to_write(record)
            self._waiting.append(payload)
            if durable:
                self._send(written, beside)
            self.state.fold(written)

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
            self._release()

    def abandon(self) -> None:
        self._refuse_all()
        self._forget()

    def _send(self, last: Record | None, beside: Sequence[LaterWrite] = ()) -> None:
        """Make the records that wait durable, the `last` of which is not folded yet; in one request, if they fit."""
        try:
            if self._remote.is_full:
                self._remote.next(self.state)
                del self._waiting[:-1]  # the state has what is folded
            self._remote.append(self._waiting, self.state.committed_with(last), beside)
        except NotWrittenError:
            del self._waiting[-1]
            raise
        except FencedError as error:
            self._dead = error
            raise
        except BaseException as error:
            if not isinstance(error, LogError) and not self._is_of_server(error):
                # An interrupt leaves the fate of the record unknown; it must not be sent again with the next one.
                self._dead = LogError(f"an append to the transaction log {self._place} was interrupted")
                raise
            self._fail(error)
        self._waiting.clear()

    def _fail(self, error: BaseException) -> NoReturn:
        """Refuse all further records."""
        self._dead = LogError(
            f"cannot append to the transaction log {self._place}: {error if isinstance(error, LogError) else repr(error)}. "
            f"Batch {self.state.txid} is the last one known to be committed; whether the next one is, the log says when "
            f"{self.server} answers again. Start again then: the topology continues from there"
        )
        raise self._dead from error
