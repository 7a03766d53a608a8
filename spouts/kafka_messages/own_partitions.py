"""Which partitions a task reads, and where it begins with each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.broker_view import Bounds, BrokerView, TopicView
from spouts.kafka.client_settings import Reports, error_of, kafka_error
from spouts.kafka.lost_records import lost_before
from spouts.kafka.options import KafkaOptions
from spouts.kafka_messages.offset_notes import OffsetNotes
from trident.errors import SpoutError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["OwnPartitions", "Start"]

_log = logging.getLogger(__name__)
_ASK_S = 5.0


class Start(NamedTuple):
    """Where reading of a partition begins, and what is known beside."""

    offset: int
    notes: OffsetNotes
    is_committed: bool


class OwnPartitions:
    """Finds the partitions of one task of several: always the same ones, however many topics there are.

    Parameters
    ----------
    options, view, reports
        What is read, who answers, and what the client reports.
    task, tasks
        The number of the task in its component, from 0, and how many there are.
    """

    def __init__(self, options: KafkaOptions, view: BrokerView, reports: Reports, task: int, tasks: int) -> None:
        self._options, self._view, self._reports, self._task, self._tasks = options, view, reports, task, tasks

    def topics(self, more: Iterable[str] = ()) -> Mapping[str, TopicView]:
        """Return the topics that are read, and `more`; `SpoutError` if one that was named is not there."""
        found = self._view.topics(more)
        for name in (*self._options.topics.names, *more):
            if name not in found:
                raise SpoutError(
                    f"topic {name!r} at {self._options.bootstrap_servers}: it is not there, or the user may not see it. "
                    "Create it, or permit Describe"
                )
        return found

    def of(self, topics: Mapping[str, TopicView], dead_letters: str | None) -> list[Spot]:
        """Return this task's partitions that have a leader."""
        assigned = self._options.topics.assigned
        return [
            Spot(name, partition)
            for name, topic in sorted(topics.items())
            if name != dead_letters
            for partition, is_led in sorted(topic.led.items())
            if is_led and (name not in assigned or partition in assigned[name]) and self._is_own(name, partition)
        ]

    def _is_own(self, topic: str, partition: int) -> bool:
        return (crc32(topic.encode()) + partition) % self._tasks == self._task

    def starts(self, new: list[Spot], topics: Mapping[str, TopicView], consumer: Consumer) -> dict[Spot, Start]:
        """Return where each partition begins: where the group has committed, or as `first_poll` says."""
        bounds = self._view.bounds(new)
        names = {spot.topic for spot in bounds}
        committed = self._committed([Spot(name, each) for name in names for each in topics[name].led], consumer)
        fresh, found = [], {}
        for spot, limits in bounds.items():
            start = committed.get(spot)
            if start is not None and start.notes.topic_id not in ("", topics[spot.topic].id):
                _log.warning("%s was created again; it is read from its beginning", spot)
                start = Start(limits.low, OffsetNotes(), False)
            if start is None:
                fresh.append(spot)
            else:
                found[spot] = self._checked(spot, start, limits)
        found.update(self._first(fresh, bounds, committed))
        return {spot: self._noted(spot, start, topics[spot.topic]) for spot, start in found.items()}

    def learn_leaders(self, topics: Iterable[str], consumer: Consumer) -> None:
        """Have a consumer ask for the leaders of partitions; by itself it would do so after a second."""
        from confluent_kafka import KafkaException

        for topic in topics:
            with contextlib.suppress(KafkaException):  # it asks again by itself
                consumer.list_topics(topic, _ASK_S)

    def moved(self, spot: Spot, position: int) -> int:
        """Return where to go on with a partition whose next records are gone; `SpoutError` if that is not permitted."""
        bounds = self._view.bounds([spot])
        if spot not in bounds:
            return position
        return self._checked(spot, Start(position, OffsetNotes(), False), bounds[spot]).offset

    def _committed(self, spots: list[Spot], consumer: Consumer) -> dict[Spot, Start]:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            answers = consumer.committed([TopicPartition(*spot) for spot in spots], timeout=_ASK_S) if spots else []
            for each in answers:
                if each.error is not None:
                    raise KafkaException(each.error)
        except KafkaException as error:
            doing = f"asking for the offsets of group {self._options.group_id!r}"
            raise kafka_error(doing, self._options.bootstrap_servers, error_of(error), self._reports) from error
        return {
            Spot(each.topic, each.partition): Start(each.offset, OffsetNotes.of(each.metadata, each.offset), True)
            for each in answers
            if each.offset >= 0
        }

    def _first(
        self, fresh: list[Spot], bounds: Mapping[Spot, Bounds], committed: Mapping[Spot, Start]
    ) -> dict[Spot, Start]:
        """Begin with partitions of which nothing is committed; those added later begin at their first record."""
        before: dict[str, int] = {}
        for spot, start in committed.items():
            if start.notes.partitions:
                before[spot.topic] = min(start.notes.partitions, before.get(spot.topic, start.notes.partitions))
        at_first = [spot for spot in fresh if spot.partition < before.get(spot.topic, spot.partition + 1)]
        offsets = {spot: bounds[spot].low for spot in fresh}
        first = self._options.first_poll
        if first == "latest":
            offsets.update({spot: bounds[spot].end for spot in at_first})
        elif isinstance(first, datetime) and at_first:
            for spot, offset in self._view.at(at_first, int(first.timestamp() * 1000)).items():
                offsets[spot] = bounds[spot].end if offset is None else offset
        return {spot: Start(offset, OffsetNotes(), False) for spot, offset in offsets.items()}

    def _checked(self, spot: Spot, start: Start, limits: Bounds) -> Start:
        """Go on where records are, if those that come next are gone and that is permitted."""
        high = limits.end if start.offset <= limits.end else self._view.high(spot)
        if limits.low <= start.offset and (high is None or start.offset <= high):
            return start
        error = lost_before(spot, start.offset, limits.low, limits.end)
        if self._options.on_lost == "fail":
            raise error
        _log.warning("on_lost=skip: %s", error)
        return Start(limits.low if start.offset < limits.low else limits.end, start.notes, False)

    @staticmethod
    def _noted(spot: Spot, start: Start, topic: TopicView) -> Start:
        done: Any = [(first, end) for first, end in start.notes.done if end > start.offset]
        notes = OffsetNotes(topic.id, start.notes.partitions or len(topic.led), done, start.notes.failures)
        return start._replace(notes=notes)
