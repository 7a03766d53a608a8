"""Decides what follows a failure: another attempt after a pause, or the end of the topology (R4)."""

from __future__ import annotations

from trident.config import Config
from trident.coordination.coordinator import MasterBatchCoordinator
from trident.errors import BatchFailedError, RetriesUsedUpError
from trident.runtime.steps.failures import Failure
from trident.spout.interfaces import TransactionAttempt

__all__ = ["Retrying", "pause_after"]


class Retrying:
    """What follows the failures of a topology's batches, and the error that ends it.

    Attributes
    ----------
    fatal
        The error of the batch that is not tried again; None while there is none.
    """

    def __init__(self, config: Config, coordinator: MasterBatchCoordinator) -> None:
        self._config, self._coordinator = config, coordinator
        self.fatal: BatchFailedError | None = None
        self._waits: dict[int, int] = {}  # how often the source of a batch in flight was away

    def is_last_try(self, txid: int) -> bool:
        """Whether another failure of this batch ends the topology."""
        return self._tries(txid) >= self._config.max_batch_attempts

    def _tries(self, txid: int) -> int:
        """Return how often a batch has failed with the failure that just came, other than because its source was away."""
        return self._coordinator.failures(txid) + 1 - self._waits.get(txid, 0)

    def pause_after(self, attempt: TransactionAttempt, failure: Failure) -> float:
        """Return how many seconds pass before the next attempt; if there is none, note why the topology ends."""
        tries, may_retry = self._tries(attempt.txid), self._coordinator.retries_left > 0
        if failure.waits_for and may_retry:
            in_flight = {txid: waits for txid, waits in self._waits.items() if txid > self._coordinator.last_txid}
            waits = in_flight.get(attempt.txid, 0) + 1
            self._waits = {**in_flight, attempt.txid: waits}
            return _pause(self._config, waits)
        try:
            return pause_after(self._config, attempt, failure, tries, may_retry)
        except BatchFailedError as fatal:
            self.fatal = fatal
            return 0.0

    def excludes(self, txid: int) -> bool:
        """Whether this batch is not to be started: it has failed for good, or one before it."""
        return self.fatal is not None and txid >= self.fatal.txid

    def raise_fatal(self, committed: int) -> None:
        """Raise what ends the topology, once all batches before the one that failed are committed."""
        if self.fatal is not None and committed + 1 == self.fatal.txid:
            raise self.fatal


def pause_after(config: Config, attempt: TransactionAttempt, failure: Failure, tries: int, may_retry: bool) -> float:
    """Return how many seconds pass before the next attempt; they double with each try, up to a maximum.

    Parameters
    ----------
    tries
        How often this batch has failed by now.
    may_retry
        Whether this driver can number another attempt.

    Raises
    ------
    BatchFailedError
        The batch is not tried again. Earlier ones may be committed; a restart continues with this one.
    """
    if not may_retry or not failure.retry or tries >= config.max_batch_attempts:
        kind = BatchFailedError if may_retry else RetriesUsedUpError
        error = kind(attempt.txid, tries, failure.step, failure.row, failure.cause)
        error.writes_dead_letters, error.can_heal = config.on_poison == "dead_letter", failure.retry
        raise error
    return _pause(config, tries)


def _pause(config: Config, tries: int) -> float:
    doubled = config.retry_backoff_ms * 2 ** min(tries - 1, 30)
    return float(min(doubled, config.retry_backoff_max_ms)) / 1000
