"""Where a partition begins, and where it goes on if what comes next is gone: decided here for all Kafka spouts.

Of a spout of batches the log of the topology has the positions; a task of `KafkaSpout` takes them from its group.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from zlib import crc32

from spouts.kafka.admin import BrokerView, OffsetBounds, TopicView
from spouts.kafka.batch_ranges import Spot
from spouts.kafka.clients import Consumer, KafkaException, TopicPartition, committed_in
from spouts.kafka.lost_records import LogPosition, lost_before, truncation_error
from spouts.kafka.offset_commits import PartitionWork
from spouts.kafka.options import EPOCH, KafkaOptions
from trident.errors import SourceAwayError, SpoutError

_log = logging.getLogger(__name__)
_ASK_S = 5.0


class PartitionPositions:
    """Decides where partitions are read, and asks the brokers what it has to know for that.

    `skipped`: how many offsets were left out because of `on_data_loss="skip"`.
    """

    def __init__(self, options: KafkaOptions, view: BrokerView) -> None:
        self._options, self._view, self.skipped = options, view, 0
        self._intact: dict[Spot, LogPosition] = {}  # with the epoch under which all before it was there
        self._ended: dict[Spot, int] = {}  # where a partition ended before what was read of it: more records hide that

    def choose_starts(self, spots: Collection[Spot], bounds: Mapping[Spot, OffsetBounds]) -> dict[Spot, int]:
        """Return where partitions begin of which `first_poll` decides; `SourceAwayError` if that is not answered."""
        first, starts = self._options.first_poll, {spot: bounds[spot].low for spot in spots}
        if first == "latest":
            return {spot: bounds[spot].end for spot in spots}
        if first == "committed" and spots:
            committed = self._view.committed_offsets(spots)
            starts.update((spot, offset) for spot, offset in committed.items() if offset is not None)
        if isinstance(first, datetime) and spots:
            # The first millisecond that is not before it; what is below 0 names other places to a broker, such as the end.
            ms = max(0, -((EPOCH - first) // timedelta(milliseconds=1)))
            found = self._view.at(spots, ms)
            return {spot: bounds[spot].end if offset is None else offset for spot, offset in found.items()}
        return starts

    def find_cuts(
        self, read: Mapping[Spot, LogPosition], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, int | None]:
        """Ask, where another leader leads since, at which offset partitions were cut off before what was read of them.

        None: all of it is still there. Partitions that do not say so are left out.
        """
        # Only a change of leader can cut a partition off, so as long as the epoch is the same nothing is asked.
        doubtful = {
            spot: place
            for spot, place in read.items()
            if 0 <= place.epoch < bounds[spot].epoch
            and place.offset > 0
            and self._intact.get(spot) != LogPosition(place.offset, bounds[spot].epoch)
        }
        answers = self._view.truncations(doubtful) if doubtful else {}
        # Asked once for each leader: what is intact under one stays so until the next.
        for spot, cut in answers.items():
            if cut is None:
                self._intact[spot] = LogPosition(read[spot].offset, bounds[spot].epoch)
        return {**{spot: None for spot in read if spot not in doubtful}, **answers}

    def go_on(self, spot: Spot, position: int, furthest: int, bounds: OffsetBounds, cut: int | None) -> int | None:
        """Return where records are, if those that come next are gone, or some that were read; None: reading goes on.

        `position`, `furthest`: what comes next, and what is behind all that was read.
        `cut`: where the partition was cut off, if that is known.

        Raises `SpoutError`: `on_data_loss` does not permit to leave anything out.
        """
        error: SpoutError
        # A cut comes first: behind it are other records, however well their numbers fit.
        if cut is not None:
            offset, error = cut, truncation_error(spot, furthest, cut)
        elif position < bounds.low:
            offset, error = bounds.low, lost_before(spot, position, bounds.low, bounds.end)
        else:
            end = self._ended.get(spot, bounds.end)
            high = end if furthest <= end or spot in self._ended else self._view.high(spot)
            if high is None or furthest <= high:  # behind an open transaction: the isolation was another one before
                return None
            offset, error = high, lost_before(spot, furthest, bounds.low, high)
            if self._options.on_data_loss == "fail":
                self._ended[spot] = high
        # Below 0 the broker does not know where to go on; any offset would be a guess.
        if self._options.on_data_loss == "fail" or offset < 0:
            raise error
        self.skipped += abs(position - offset)
        _log.warning(
            "on_data_loss=skip: %s; reading goes on at offset %d (%d offsets skipped)", error, offset, self.skipped
        )
        return offset


class OwnPartitions:
    """Finds the partitions of one task of several: always the same ones, however many topics there are.

    `options`, `view`: what is read, and who answers.
    `task`, `tasks`: the number of the task in its component, from 0, and how many there are.
    """

    def __init__(self, options: KafkaOptions, view: BrokerView, task: int, tasks: int) -> None:
        self._options, self._view, self._task, self._tasks = options, view, task, tasks
        self._positions = PartitionPositions(options, view)

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
        # A checksum and not Python's hash, which differs between processes; with the number, so that one topic spreads evenly.
        return {
            spot: is_led
            for spot, is_led in sorted(self._view.partitions_to_read(topics).items())
            if spot.topic != dead_letters and (crc32(spot.topic.encode()) + spot.partition) % self._tasks == self._task
        }

    def starts(
        self, new: Mapping[Spot, bool], topics: Mapping[str, TopicView], consumer: Consumer, is_first: bool
    ) -> dict[Spot, PartitionWork]:
        """Return the work on each partition, from where it begins: where the group has committed, or as `first_poll` says.

        Partitions that do not answer are left out. `is_first`: this task has not looked before.

        Raises `SourceAwayError`: `first_poll` would choose another beginning later for a partition that does not answer.
        """
        bounds = self._view.bounds([spot for spot, is_led in new.items() if is_led])
        # Of all partitions of these topics, not of this task's alone: only together they say what the group has seen.
        names = {spot.topic for spot in new}
        committed = self._committed_work([Spot(name, each) for name in names for each in topics[name].led], consumer)
        at_first = self._at_first(new, committed, is_first)
        silent = sorted(spot for spot in at_first if spot not in bounds)
        if silent and self._options.first_poll != "earliest":
            raise SourceAwayError(
                f"no leader answers for {silent[0]} at {self._options.bootstrap_servers}: where new partitions begin "
                f"is chosen for all of them at once (first_poll={self._options.first_poll!r})"
            )
        found = self._gone_on({spot: work for spot, work in committed.items() if spot in bounds}, topics, bounds)
        # What was added later begins at its first record.
        first = {spot: bounds[spot].low for spot in bounds if spot not in committed}
        first.update(self._positions.choose_starts([spot for spot in at_first if spot in bounds], bounds))
        found.update((spot, PartitionWork(offset, bounds[spot].epoch)) for spot, offset in first.items())
        for spot, work in found.items():
            work.begin(topics[spot.topic].id, len(topics[spot.topic].led))
        return found

    def _gone_on(
        self,
        committed: Mapping[Spot, PartitionWork],
        topics: Mapping[str, TopicView],
        bounds: Mapping[Spot, OffsetBounds],
    ) -> dict[Spot, PartitionWork]:
        """Return how to go on behind what is committed, of the partitions that say whether it is still there."""
        found = {}
        for spot, work in committed.items():
            # Without an id it was another program that committed, which does not know one.
            if work.topic_id not in ("", topics[spot.topic].id):
                _log.warning("%s was created again; it is read from its beginning", spot)
                found[spot] = PartitionWork(bounds[spot].low, bounds[spot].epoch)
        places = {
            spot: LogPosition(work.window.furthest, work.epoch) for spot, work in committed.items() if spot not in found
        }
        for spot, cut in self._positions.find_cuts(places, bounds).items():
            work, epoch = committed[spot], bounds[spot].epoch
            work.epoch = epoch if work.epoch < 0 else min(work.epoch, epoch)
            self._go_on(spot, work, places[spot].offset, bounds[spot], cut)
            found[spot] = work
        return found

    def learn_leaders(self, topics: Iterable[str], consumer: Consumer) -> None:
        """Have a consumer ask for the leaders of partitions; by itself it would do so after a second."""
        for topic in topics:
            with contextlib.suppress(KafkaException):  # it asks again by itself
                consumer.list_topics(topic, _ASK_S)

    def move(self, spot: Spot, work: PartitionWork, cut: int | None) -> bool:
        """Go on with a partition whose next records are gone; `SpoutError` if that is not permitted. Whether it answers.

        `cut`: where it was cut off, if that is known.
        """
        bounds = self._view.bounds([spot])
        if spot not in bounds:
            return False
        position, epoch = work.window.position, bounds[spot].epoch
        self._go_on(spot, work, position, bounds[spot], cut)
        if work.window.position == position:  # what is behind it may be other records than those that were done
            work.move(position, epoch, is_ahead=False)
        work.epoch = epoch
        return True

    def _go_on(self, spot: Spot, work: PartitionWork, furthest: int, limits: OffsetBounds, cut: int | None) -> None:
        """Go on where records are, if those that come next are gone, or those that were read, and that is permitted."""
        position = work.window.position
        offset = self._positions.go_on(spot, position, furthest, limits, cut)
        if offset is not None:
            work.move(offset, limits.epoch, is_ahead=cut is None and position < limits.low)

    def _committed_work(self, spots: list[Spot], consumer: Consumer) -> dict[Spot, PartitionWork]:
        with self._view.wrap_errors(f"asking for the offsets of group {self._options.group_id!r}"):
            answers = committed_in(consumer, [TopicPartition(*spot) for spot in spots], _ASK_S)
        return {Spot(each.topic, each.partition): PartitionWork.of(each) for each in answers if each.offset >= 0}

    def _at_first(self, new: Collection[Spot], committed: Mapping[Spot, PartitionWork], is_first: bool) -> list[Spot]:
        """Return the partitions of which `first_poll` decides: nothing is committed, and they were not added later."""
        # A number from this on is a partition that was added after the group began, and is read from its first record.
        before: dict[str, int] = {}
        for spot, work in committed.items():
            if work.partitions:
                before[spot.topic] = min(work.partitions, before.get(spot.topic, work.partitions))
        is_new = is_first and not any(work.partitions for spot, work in committed.items() if spot in new)
        # A topic that a pattern finds and the group does not know is later.
        finds_more = self._options.topics.pattern is not None and not is_new
        return [
            spot
            for spot in new
            if spot not in committed
            and spot.partition < before.get(spot.topic, 0 if finds_more else spot.partition + 1)
        ]
