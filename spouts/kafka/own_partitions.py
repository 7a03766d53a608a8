"""Which partitions a task reads, and where it begins with each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.broker_view import BrokerView, OffsetBounds, TopicView
from spouts.kafka.client_settings import kafka_error
from spouts.kafka.lost_records import LogPosition, lost_before, truncated
from spouts.kafka.offset_notes import OffsetNotes
from spouts.kafka.options import KafkaOptions
from trident.errors import SourceAwayError, SpoutError
from trident.servers.kafka_client import Reports, error_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

_log = logging.getLogger(__name__)
_ASK_S = 5.0


class Start(NamedTuple):
    """Where reading of a partition begins, and what is known beside; no record that was read is of a later leader's `epoch`."""

    offset: int
    notes: OffsetNotes
    is_committed: bool
    epoch: int


class OwnPartitions:
    """Finds the partitions of one task of several: always the same ones, however many topics there are.

    `options`, `view`, `reports`: what is read, who answers, and what the client reports.
    `task`, `tasks`: the number of the task in its component, from 0, and how many there are.
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

    def of(self, topics: Mapping[str, TopicView], dead_letters: str | None) -> dict[Spot, bool]:
        """Return this task's partitions, and whether each has a leader."""
        return {
            Spot(name, partition): is_led
            for name, topic in sorted(topics.items())
            if name != dead_letters
            for partition, is_led in sorted(topic.led.items())
            if self._options.topics.hold(name, partition) and self._is_own(name, partition)
        }

    def _is_own(self, topic: str, partition: int) -> bool:
        return (crc32(topic.encode()) + partition) % self._tasks == self._task

    def starts(
        self, new: Mapping[Spot, bool], topics: Mapping[str, TopicView], consumer: Consumer, is_first: bool
    ) -> dict[Spot, Start]:
        """Return where each partition begins: where the group has committed, or as `first_poll` says.

        Partitions that do not answer are left out. `is_first`: this task has not looked before.

        Raises `SourceAwayError`: `first_poll` would choose another beginning later for a partition that does not answer.
        """
        bounds = self._view.bounds([spot for spot, is_led in new.items() if is_led])
        names = {spot.topic for spot in new}
        committed = self._committed([Spot(name, each) for name in names for each in topics[name].led], consumer)
        at_first = self._at_first(new, committed, is_first)
        silent = sorted(spot for spot in at_first if spot not in bounds)
        if silent and self._options.first_poll != "earliest":
            raise SourceAwayError(
                f"no leader answers for {silent[0]} at {self._options.bootstrap_servers}: where new partitions begin "
                f"is chosen for all of them at once (first_poll={self._options.first_poll!r})"
            )
        found = self._gone_on({spot: start for spot, start in committed.items() if spot in bounds}, topics, bounds)
        fresh = [spot for spot in bounds if spot not in committed]
        found.update(self._first(fresh, [spot for spot in at_first if spot in bounds], bounds))
        return {spot: self._noted(start, topics[spot.topic]) for spot, start in found.items()}

    def _gone_on(
        self, committed: Mapping[Spot, Start], topics: Mapping[str, TopicView], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, Start]:
        """Return where to go on behind what is committed, of the partitions that say whether it is still there."""
        found = {}
        for spot, start in committed.items():
            if start.notes.topic_id not in ("", topics[spot.topic].id):
                _log.warning("%s was created again; it is read from its beginning", spot)
                found[spot] = Start(bounds[spot].low, OffsetNotes(), False, bounds[spot].epoch)
        places = {
            spot: LogPosition(start.notes.furthest(start.offset), start.epoch)
            for spot, start in committed.items()
            if spot not in found and 0 <= start.epoch < bounds[spot].epoch
        }
        cuts = self._view.truncations(places) if places else {}
        for spot, start in committed.items():
            if spot not in found and (spot not in places or spot in cuts):
                epoch = start.epoch if spot in places else bounds[spot].epoch
                found[spot] = self._checked(spot, start._replace(epoch=epoch), bounds[spot], cuts.get(spot))
        return found

    def learn_leaders(self, topics: Iterable[str], consumer: Consumer) -> None:
        """Have a consumer ask for the leaders of partitions; by itself it would do so after a second."""
        from confluent_kafka import KafkaException

        for topic in topics:
            with contextlib.suppress(KafkaException):  # it asks again by itself
                consumer.list_topics(topic, _ASK_S)

    def moved(self, spot: Spot, position: int, cut: int | None) -> Start | None:
        """Return where to go on with a partition whose next records are gone; `SpoutError` if that is not permitted.

        None: it does not answer. `cut`: where it was cut off, if that is known.
        """
        bounds = self._view.bounds([spot])
        if spot not in bounds:
            return None
        return self._checked(spot, Start(position, OffsetNotes(), False, bounds[spot].epoch), bounds[spot], cut)

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
            Spot(each.topic, each.partition): Start(
                each.offset, OffsetNotes.of(each.metadata, each.offset), True, _epoch_of(each)
            )
            for each in answers
            if each.offset >= 0
        }

    def _at_first(self, new: Collection[Spot], committed: Mapping[Spot, Start], is_first: bool) -> list[Spot]:
        """Return the partitions of which `first_poll` decides: nothing is committed, and they were not added later."""
        before: dict[str, int] = {}
        for spot, start in committed.items():
            if start.notes.partitions:
                before[spot.topic] = min(start.notes.partitions, before.get(spot.topic, start.notes.partitions))
        is_new = is_first and not any(start.notes.partitions for spot, start in committed.items() if spot in new)
        finds_more = (
            self._options.topics.pattern is not None and not is_new
        )  # a topic that the group does not know is later
        return [
            spot
            for spot in new
            if spot not in committed
            and spot.partition < before.get(spot.topic, 0 if finds_more else spot.partition + 1)
        ]

    def _first(
        self, fresh: Sequence[Spot], at_first: Sequence[Spot], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, Start]:
        """Begin with partitions of which nothing is committed; those added later begin at their first record."""
        offsets = {spot: bounds[spot].low for spot in fresh}
        first = self._options.first_poll
        if first == "latest":
            offsets.update({spot: bounds[spot].end for spot in at_first})
        elif isinstance(first, datetime) and at_first:
            for spot, offset in self._view.at(at_first, int(first.timestamp() * 1000)).items():
                offsets[spot] = bounds[spot].end if offset is None else offset
        return {spot: Start(offset, OffsetNotes(), False, bounds[spot].epoch) for spot, offset in offsets.items()}

    def _checked(self, spot: Spot, start: Start, limits: OffsetBounds, cut: int | None) -> Start:
        """Go on where records are, if those that come next are gone, or those that were read, and that is permitted."""
        furthest, is_deleted = start.notes.furthest(start.offset), cut is None and start.offset < limits.low
        if cut is not None:
            offset, error = cut, truncated(spot, furthest, cut)
        elif is_deleted:
            offset, error = limits.low, lost_before(spot, start.offset, limits.low, limits.end)
        else:
            high = limits.end if furthest <= limits.end else self._view.high(spot)
            if high is None or furthest <= high:
                return start
            offset, error = high, lost_before(spot, furthest, limits.low, high)
        if self._options.on_lost == "fail" or offset < 0:
            raise error
        _log.warning("on_lost=skip: %s", error)
        if is_deleted:
            return Start(offset, start.notes, False, limits.epoch)
        return Start(min(start.offset, offset), start.notes.before(offset), False, limits.epoch)

    @staticmethod
    def _noted(start: Start, topic: TopicView) -> Start:
        done: Any = [(first, end) for first, end in start.notes.done if end > start.offset]
        notes = OffsetNotes(topic.id, start.notes.partitions or len(topic.led), done, start.notes.failures)
        return start._replace(notes=notes)


def _epoch_of(committed: TopicPartition) -> int:
    epoch: int | None = committed.leader_epoch
    return -1 if epoch is None else epoch
