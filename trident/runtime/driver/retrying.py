"""Decides what follows a failure: another attempt after a pause, or the end of the topology (R4)."""

from __future__ import annotations

import logging

from trident.config import Config
from trident.errors import BatchFailedError, RetriesUsedUpError
from trident.runtime.steps.failures import Failure
from trident.spout.interfaces import TransactionAttempt

__all__ = ["pause_after"]

logger = logging.getLogger(__name__)


def pause_after(
    topology: str, config: Config, attempt: TransactionAttempt, failure: Failure, tries: int, may_retry: bool
) -> float:
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
        error.writes_dead_letters = config.on_poison == "dead_letter"
        raise error
    pause: float = min(config.retry_backoff_ms * 2 ** (tries - 1), config.retry_backoff_max_ms) / 1000
    logger.warning(
        "topology %s: batch %s failed in step %r (%s); trying again in %.1f s",
        topology, attempt, failure.step, failure.cause, pause,
    )  # fmt: skip
    return pause
