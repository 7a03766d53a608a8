"""Where a partition begins, where it goes on if what comes next is gone, and what was lost: decided here for all Kafka spouts.

After an unclean leader election other records take the numbers of those that are lost, which offsets alone do not show once
there are enough of them. So what was read has the epoch of its leader, and a broker knows at which offset each epoch ended.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from zlib import crc32

from spouts.kafka.clients import GONE, Brokers, LogPosition, OffsetBounds, Spot, TopicPartition, TopicView
from spouts.kafka.offset_commits import PartitionWork
from spouts.kafka.options import EPOCH
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError

_log = logging.getLogger(__name__)
THERE_S = 2.0  # brokers learn of a new topic one after the other
_PAUSE_S = 0.2
_CHOICES = 'Bring the records back, or let on_data_loss="skip" go on without them (each skip is logged and counted)'
_NEW_LOG = "Start with a new log (a KafkaSpout: with a new group_id)"
_UNCLEAN = "(an unclean leader election: see unclean.leader.election.enable)"


class OffsetRange(NamedTuple):
    """The records from offset `start` to before offset `end` of a partition."""

    spot: Spot
    topic_id: str  # which a topic that was created again does not have
    start: int
    end: int
    epoch: int  # no record before the end has a later one; -1: not known
    since: int = -1  # the same of the start

    @property
    def offsets(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"the batch was defined as offsets {self.start} to {self.end} of {self.spot}"


def range_lost(one: OffsetRange, low: int, high: int) -> ReplayMismatchError:
    what = f"{one}, which has {low} to {high} now: "
    if one.start < low:
        return ReplayMismatchError(
            f"{what}its first {min(one.end, low) - one.start} offsets were deleted (retention, or delete-records). {_CHOICES}; "
            "and raise retention.ms or retention.bytes of the topic"
        )
    return ReplayMismatchError(
        f"{what}the end of the partition was lost (an unclean leader election, or the topic was created again). {_CHOICES}"
    )


def rewritten(one: OffsetRange, found: str) -> ReplayMismatchError:
    """Say that other records have the numbers of a batch, or of what was before it, by what was `found`."""
    return ReplayMismatchError(
        f"{one} under leader epoch {one.epoch}; {found}: an unclean leader election lost the records, and others have their "
        f"numbers. A replay cannot be the same; start with a new log. {_CHOICES}"
    )


def lost_before(spot: Spot, position: int, low: int, high: int) -> SpoutError:
    """Say that the records that come next are gone, or that the end of what was read is."""
    if position < low:
        return SpoutError(
            f"{spot} was read up to offset {position}, and begins at {low} now: {low - position} offsets were deleted before "
            f"they were read (retention, or delete-records). {_CHOICES}; and raise retention.ms or retention.bytes"
        )
    return _replaced_error(spot, position, high, f"ends at {high} now", "new records take their numbers")


def truncation_error(spot: Spot, position: int, offset: int) -> SpoutError:
    """Say that a partition was cut off before what was read, and has other records since."""
    if offset < 0:
        return SpoutError(
            f"{spot} was read up to offset {position}, and Kafka knows nothing of the leader that it was read from: what was "
            f"read was lost {_UNCLEAN}. {_NEW_LOG}"
        )
    left = f"only what is before offset {offset} is still what was read"
    return _replaced_error(spot, position, offset, left, "other records have or take their numbers")


def _replaced_error(spot: Spot, position: int, offset: int, found: str, so: str) -> SpoutError:
    return SpoutError(
        f"{spot} was read up to offset {position}, and {found}: {position - offset} offsets that were read were lost in Kafka "
        f'{_UNCLEAN}, and {so}. {_NEW_LOG}, or let on_data_loss="skip" go on at offset {offset}'
    )


def replaced_text(name: str, before: str, now: str) -> str:
    return (
        f"topic {name!r} had the id {before} when it was read and has {now} now: it was deleted and created again, so "
        "offsets mean other records"
    )


def topic_replaced(name: str, before: str, now: str) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"{replaced_text(name, before, now)}. What was not read of the old topic is lost. Start with a new log, or let "
        'on_data_loss="skip" read the new topic from its beginning'
    )


def gone_topic(name: str) -> SpoutError:
    return SpoutError(f"topic {name!r} was read before; {GONE}")


class TopicWatch:
    """The topics that are read, as last seen; `also` must be there too, and is not read even if a pattern finds it."""

    def __init__(self, brokers: Brokers, also: str | None = None, refuse_compacted: bool = False) -> None:
        self._brokers, self._options, self._refuse_compacted = brokers, brokers.options, refuse_compacted
        self._also = () if also is None else (also,)
        self._topics: Mapping[str, TopicView] = {}
        self._looked = float("-inf")
        self._policies: set[str] = set()
        self._missing: dict[str, float] = {}

    def start(self) -> None:
        """Make sure that a broker answers and that the named topics and partitions are there; `SpoutError` if not."""
        self._brokers.names(is_start=True)
        # Not there is believed only when it lasts: one broker may know a topic that another has not heard of yet.
        deadline = time.monotonic() + THERE_S
        while missing := self._not_there():
            if time.monotonic() > deadline:
                raise SpoutError(
                    f"{missing} is not there on {self._brokers.servers}, or the user may not see it. Create it, correct the "
                    "name, or permit Describe"
                )
            time.sleep(_PAUSE_S)
        if not self._topics.keys() - set(self._also):
            _log.warning("no topic matches %s on %s yet", self._options.topics, self._brokers.servers)

    def _not_there(self) -> str:
        self._look(())
        for name in (*self._options.topics.named, *self._also):
            if name not in self._topics:
                return f"topic {name!r}"
            for partition in self._options.topics.named.get(name) or ():
                if partition not in self._topics[name].leaders:
                    return str(Spot(name, partition))
        return ""

    def look_again(self) -> None:
        self._looked = float("-inf")

    def look(self, read: Collection[str]) -> Mapping[str, TopicView]:
        """Return the topics; `SourceAwayError` if no broker answers, or one that was read is not there at the moment."""
        if time.monotonic() - self._looked >= self._options.refresh_s or not self._topics.keys() >= set(read):
            self._look(read)
        missing = [name for name in read if name not in self._topics]
        # A broker that has just started may not know its topics yet, so one that is missing gets some seconds, each.
        self._missing = {name: self._missing.get(name, time.monotonic()) for name in missing}
        for name, since in self._missing.items():
            if time.monotonic() - since < THERE_S:
                raise SourceAwayError(f"topic {name!r} is not there at the moment")
            if self._options.on_data_loss == "fail":
                raise gone_topic(name)
        return self._topics

    def _look(self, read: Iterable[str]) -> None:
        choice = self._options.topics
        found = [] if choice.pattern is None else filter(choice.hold, self._brokers.names())
        # What was read is asked for even if no pattern finds it any more: only its id says whether it was created again.
        topics = self._brokers.topics({*choice.named, *self._also, *read, *found})
        if self._refuse_compacted:
            # Each topic is asked about once: the answer takes another request, and every look would wait for it.
            for name in self._brokers.compacted_topics(topics.keys() - self._policies):
                raise SpoutError(
                    f"topic {name!r} is compacted (cleanup.policy): Kafka may delete records between two attempts at a batch, "
                    "so a replay need not be the same. Use OpaqueTridentKafkaSpout, which promises no more than the topic "
                    "can keep"
                )
            self._policies |= topics.keys()
        self._topics, self._looked = topics, time.monotonic()

    def partitions(self) -> dict[Spot, bool]:
        """Return the partitions that are to be read, and whether each has a leader."""
        return {
            Spot(name, partition): leader is not None
            for name, topic in self._topics.items()
            for partition, leader in topic.leaders.items()
            if self._options.topics.hold(name, partition) and name not in self._also
        }


class KafkaPositions:
    """Decides where partitions are read, and asks the brokers what it has to know for that."""

    def __init__(self, brokers: Brokers) -> None:
        self._options, self._brokers, self.skipped = brokers.options, brokers, 0
        self._intact: dict[Spot, LogPosition] = {}  # with the epoch under which all before it was there
        self._ended: dict[Spot, int] = {}  # where a partition ended before what was read of it: more records hide that

    def choose(self, new: Collection[Spot], begun: Mapping[str, int], is_first: bool) -> list[Spot]:
        """Return the partitions of which `first_poll` decides where they begin; the others begin at their first record.

        `begun`: the topics that were begun with, and how many partitions each had then that need not have begun yet.
        """
        # Of all topics at first, and later of one that the user names; what is added to Kafka later begins at its first record.
        by_option = is_first or self._options.topics.pattern is None
        return [spot for spot in new if (spot.partition < begun[spot.topic] if spot.topic in begun else by_option)]

    def choose_starts(self, spots: Collection[Spot], bounds: Mapping[Spot, OffsetBounds]) -> dict[Spot, int]:
        """Return where partitions begin of which `first_poll` decides; `SourceAwayError` if that is not answered."""
        first, starts = self._options.first_poll, {spot: bounds[spot].low for spot in spots}
        if first == "latest":
            return {spot: bounds[spot].end for spot in spots}
        if first == "committed" and spots:
            committed = self._brokers.committed(TopicPartition(*spot) for spot in spots)
            starts.update((Spot(each.topic, each.partition), each.offset) for each in committed if each.offset >= 0)
        if isinstance(first, datetime) and spots:
            # The first millisecond that is not before it; what is below 0 names other places to a broker, such as the end.
            ms = max(0, -((EPOCH - first) // timedelta(milliseconds=1)))
            found = self._brokers.at(spots, ms)
            return {spot: bounds[spot].end if offset is None else offset for spot, offset in found.items()}
        return starts

    def find_cuts(
        self, read: Mapping[Spot, LogPosition], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, int | None]:
        """Return where partitions were cut off before what was read, as far as they say it; None: all is still there."""
        # Only a change of leader can cut a partition off, so as long as the epoch is the same nothing is asked.
        doubtful = {
            spot: place
            for spot, place in read.items()
            if 0 <= place.epoch < bounds[spot].epoch
            and place.offset > 0
            and self._intact.get(spot) != LogPosition(place.offset, bounds[spot].epoch)
        }
        answers = self._brokers.truncations(doubtful) if doubtful else {}
        # Asked once for each leader: what is intact under one stays so until the next.
        for spot, cut in answers.items():
            if cut is None:
                self._intact[spot] = LogPosition(read[spot].offset, bounds[spot].epoch)
        return {**{spot: None for spot in read if spot not in doubtful}, **answers}

    def go_on(
        self, spot: Spot, position: int, furthest: int, bounds: OffsetBounds, cut: int | None
    ) -> tuple[int | None, int]:
        """Return from which offset on other records are than were read, None if from none, and where reading goes on.

        `position`, `furthest`: what comes next, and what is behind all that was read; `cut`: where it was cut off, if known.
        """
        # A cut comes first: behind it are other records, however well their numbers fit.
        if cut is not None:
            self._skip(position, cut, truncation_error(spot, furthest, cut))
            position = furthest = min(position, cut)
        if position < bounds.low:
            self._skip(position, bounds.low, lost_before(spot, position, bounds.low, bounds.end))
            return cut, bounds.low
        end = self._ended.get(spot, bounds.end)
        if furthest > end and spot not in self._ended:
            # Behind an open transaction nothing is lost: the isolation was another one before.
            whole = self._brokers.bounds([spot], "read_uncommitted")
            end = whole[spot].end if spot in whole else furthest
        if furthest <= end:
            return cut, position
        if self._options.on_data_loss == "fail":
            self._ended[spot] = end
        self._skip(position, end, lost_before(spot, furthest, bounds.low, end))
        return end, min(position, end)

    def _skip(self, position: int, offset: int, error: SpoutError) -> None:
        # Below 0 the broker does not know where to go on; any offset would be a guess.
        if self._options.on_data_loss == "fail" or offset < 0:
            raise error
        self.skipped += abs(position - offset)
        _log.warning(
            "on_data_loss=skip: %s; reading goes on at offset %d (%d offsets skipped)", error, offset, self.skipped
        )


class GroupPositions(KafkaPositions):
    """Decides which partitions one task of several reads, and where: always as its group says."""

    def __init__(self, brokers: Brokers, task: int, tasks: int) -> None:
        super().__init__(brokers)
        self._task, self._tasks = task, tasks

    def own(self, partitions: Mapping[Spot, bool]) -> dict[Spot, bool]:
        # A checksum and not Python's hash, which differs between processes; with the number, so that one topic spreads evenly.
        return {
            spot: is_led
            for spot, is_led in sorted(partitions.items())
            if (crc32(spot.topic.encode()) + spot.partition) % self._tasks == self._task
        }

    def starts(
        self, new: Mapping[Spot, bool], topics: Mapping[str, TopicView], is_first: bool
    ) -> dict[Spot, PartitionWork]:
        """Return the work on each partition that answers, from where it begins: as the group, or `first_poll`, says.

        Raises `SourceAwayError`: `first_poll` would choose another beginning later for a partition that does not answer.
        """
        bounds = self._brokers.bounds(filter(new.get, new))  # of those that have a leader
        # Of all partitions of these topics, not of this task's alone: only together they say what the group has seen.
        every = (TopicPartition(name, at) for name in {spot.topic for spot in new} for at in topics[name].leaders)
        answers = self._brokers.committed(every)
        committed = {Spot(each.topic, each.partition): PartitionWork.of(each) for each in answers if each.offset >= 0}
        by_option = self._begun_by_option(new, committed, is_first)
        if (silent := sorted({*by_option} - bounds.keys())) and self._options.first_poll != "earliest":
            raise SourceAwayError(
                f"no leader answers for {silent[0]} at {self._brokers.servers}: where new partitions begin is chosen for all "
                f"of them at once (first_poll={self._options.first_poll!r})"
            )
        # Without an id it was another program that committed, which does not know one.
        same = {spot for spot, work in committed.items() if work.topic_id in ("", topics[spot.topic].id)}
        first = {spot: bounds[spot].low for spot in bounds if spot not in same}
        for spot in first.keys() & committed.keys():
            _log.warning("%s was created again; it is read from its beginning", spot)
        first |= self.choose_starts(bounds.keys() & by_option, bounds)
        found = self._gone_on({spot: committed[spot] for spot in sorted(same & bounds.keys())}, bounds)
        found.update((spot, PartitionWork(offset, bounds[spot].epoch)) for spot, offset in first.items())
        for spot, work in found.items():
            work.begin(topics[spot.topic].id, len(topics[spot.topic].leaders))
        return found

    def _begun_by_option(
        self, new: Mapping[Spot, bool], committed: Mapping[Spot, PartitionWork], is_first: bool
    ) -> list[Spot]:
        begun: dict[str, int] = {}
        for spot, work in committed.items():
            if work.partitions:
                begun[spot.topic] = min(work.partitions, begun.get(spot.topic, work.partitions))
        is_new = is_first and not any(work.partitions for spot, work in committed.items() if spot in new)
        return self.choose([spot for spot in new if spot not in committed], begun, is_new)

    def _gone_on(
        self, committed: Mapping[Spot, PartitionWork], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, PartitionWork]:
        """Return how to go on behind what is committed, of the partitions that say whether it is still there."""
        found = {}
        places = {spot: LogPosition(work.furthest, work.epoch) for spot, work in committed.items()}
        for spot, cut in self.find_cuts(places, bounds).items():
            work, epoch = committed[spot], bounds[spot].epoch
            work.epoch = epoch if work.epoch < 0 else min(work.epoch, epoch)
            self._move(spot, work, places[spot].offset, bounds[spot], cut)
            found[spot] = work
        return found

    def move(self, spot: Spot, work: PartitionWork, cut: int | None) -> bool:
        """Go on with a partition whose next records are gone, if that is permitted. Whether it answers."""
        bounds = self._brokers.bounds([spot])
        if spot not in bounds:
            return False
        position, epoch = work.position, bounds[spot].epoch
        self._move(spot, work, position, bounds[spot], cut)
        if work.position == position:  # what is behind it may be other records than those that were done
            work.move(position, position, epoch)
        work.epoch = epoch
        return True

    def _move(self, spot: Spot, work: PartitionWork, furthest: int, limits: OffsetBounds, cut: int | None) -> None:
        position = work.position
        went_on = forgotten, offset = self.go_on(spot, position, furthest, limits, cut)
        if went_on != (None, position):
            work.move(forgotten, offset, limits.epoch)
