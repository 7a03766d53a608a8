"""Commits offsets to a group from time to time, each as far as everything before it is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.client_settings import error_of
from spouts.kafka_messages.partition_work import PartitionWork

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

__all__ = ["Commits", "Limits"]

_log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """How much of its partitions a task may hold.

    Attributes
    ----------
    max_pending
        The most records that are taken and not acknowledged, and the most that are acknowledged and not committed: if the
        task dies they come again.
    max_uncommitted
        The most offsets of a partition from the lowest that is not done on.
    commit_every_s
        How often is committed.
    """

    max_pending: int
    max_uncommitted: int
    commit_every_s: float


class Commits:
    """The commits of one task."""

    def __init__(self, work: Mapping[Spot, PartitionWork], limits: Limits) -> None:
        self._work, self._every_s, self._most, self._done = work, limits.commit_every_s, limits.max_pending, 0
        self._due = time.monotonic() + self._every_s
        self.succeeded = False
        """Whether a commit has succeeded; whoever looks at it sets it back."""

    def done(self, count: int) -> None:
        """Note that so many more records are done."""
        self._done += count

    def if_due(self, consumer: Consumer) -> None:
        """Commit, without waiting for the answer, if it is time to."""
        now = time.monotonic()
        if now >= self._due or self._done >= self._most:
            self._due, self._done = now + self._every_s, 0
            self.now(consumer, waits=False)

    def now(self, consumer: Consumer, waits: bool) -> None:
        """Commit what was not committed yet."""
        from confluent_kafka import KafkaException

        offsets = [found for spot, work in self._work.items() if (found := work.to_commit(spot)) is not None]
        if not offsets:
            return
        try:
            if waits:
                consumer.commit(offsets=offsets, asynchronous=False)
            else:
                consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.answered(error_of(error), offsets)

    def answered(self, error: KafkaError | None, offsets: Sequence[Any]) -> None:
        """Take the answer to a commit, which comes in a later call of the consumer."""
        if error is None:
            self.succeeded = True
            return
        _log.warning("offsets were not committed, which is tried again: %s", error.str())
        for each in offsets:
            self._work[Spot(each.topic, each.partition)].commit_again()
