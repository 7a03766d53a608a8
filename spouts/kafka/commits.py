"""Commits offsets to a group from time to time, each as far as everything before it is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.partition_work import PartitionWork
from trident.errors import SourceAwayError
from trident.servers.kafka_client import error_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_log = logging.getLogger(__name__)
_ASK_S = 5.0
_RENEW_S = (
    3600.0  # Kafka forgets an offset that was committed long ago (offsets.retention.minutes), however quiet it is
)


class ReadLimits(NamedTuple):
    """How much of its partitions a task may hold.

    `max_pending`: the most records that are taken and not acknowledged, and the most that are acknowledged and not committed:
    if the task dies they come again.
    `max_uncommitted`: the most offsets of a partition from the lowest that is not done on.
    `commit_every_s`: how often is committed.
    """

    max_pending: int
    max_uncommitted: int
    commit_every_s: float


class Commits:
    """The commits of one task."""

    def __init__(self, work: Mapping[Spot, PartitionWork], limits: ReadLimits) -> None:
        self._work, self._every_s, self._most, self._done = work, limits.commit_every_s, limits.max_pending, 0
        self._renewed = time.monotonic()
        self._due = self._renewed + self._every_s
        self.succeeded = False
        """Whether a commit has succeeded; the reader sets it back."""

    def done(self, count: int) -> None:
        """Note that so many more records are done."""
        self._done += count

    def if_due(self, consumer: Consumer) -> None:
        """Commit, without waiting for the answer, if it is time to."""
        now = time.monotonic()
        if now >= self._renewed + _RENEW_S:
            self._renewed = now
            for work in self._work.values():
                work.commit_again()
        if now >= self._due or self._done >= self._most:
            self._due, self._done = now + self._every_s, 0
            self.now(consumer, waits=False)

    def begin(self, consumer: Consumer, begun: Mapping[Spot, PartitionWork]) -> None:
        """Commit where partitions begin that are read from now on, and return once that is safe.

        The answer to a commit does not cover each partition, so it is read back.

        Raises `KafkaException`: the commit failed, or what was committed cannot be read.
        Raises `SourceAwayError`: another offset is committed.
        """
        from confluent_kafka import KafkaException

        offsets = {spot: offset for spot, each in begun.items() if (offset := each.to_commit(spot)) is not None}
        if not offsets:
            return
        consumer.commit(offsets=list(offsets.values()), asynchronous=False)
        for each in consumer.committed(list(offsets.values()), timeout=_ASK_S):
            if each.error is not None:
                raise KafkaException(each.error)
            spot = Spot(each.topic, each.partition)
            if each.offset != offsets[spot].offset:
                raise SourceAwayError(
                    f"committing where reading of {spot} begins: offset {offsets[spot].offset} was committed, and "
                    f"{'none' if each.offset < 0 else each.offset} was read back"
                )

    def now(self, consumer: Consumer, waits: bool) -> None:
        """Commit what was not committed yet."""
        from confluent_kafka import KafkaException

        offsets = [offset for spot, work in self._work.items() if (offset := work.to_commit(spot)) is not None]
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
        failed = [each for each in offsets if error is not None or each.error is not None]
        self.succeeded |= len(failed) < len(offsets)
        if not failed:
            return
        _log.warning("offsets were not committed, which is tried again: %s", (error or failed[0].error).str())
        for each in failed:
            if (work := self._work.get(Spot(each.topic, each.partition))) is not None:
                work.commit_again()
