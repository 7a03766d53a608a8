"""Chooses the offsets that make up a batch, the driver's side of a Kafka spout: what a definition is, and how much it may hold.

A definition is plain data. ``topics`` has by topic its ``id``, which a topic that is created again does not keep, and its
``ranges``: a flat list of partition, start, end (the first offset after the batch) and leader epoch, which no record before the
end exceeds; ``since`` has one such epoch for each start. A partition with nothing in this batch is there too, because nothing
else says how far it was read. ``bytes``: about how many the keys and values have.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spouts.files.ranges import cut_evenly
from spouts.kafka.clients import Brokers, LogPosition, OffsetBounds, Spot, TopicView
from spouts.kafka.options import KafkaOptions
from spouts.kafka.positions import KafkaPositions, OffsetRange, TopicWatch, replaced_text, topic_replaced
from spouts.kafka.range_reader import READERS
from trident.errors import SourceAwayError
from trident.roles import close_on_error
from trident.spout.interfaces import BatchCoordinator, BatchTraits, Definition, Lag, SpoutType, TransactionAttempt

_log = logging.getLogger(__name__)
_FRESH_S = 0.5  # how old the ends of partitions may be while more waits than a batch may have
_COMPLAIN_EVERY_S = 30.0
_UNMEASURED_BYTES = 1000.0  # of a record
_FIRST_RECORDS = 10_000  # of a batch whose speed is not known
_GROWTH = 4  # one batch is at most so many times as large as the speed was measured with
_MEASURE_EVERY_S = 10.0
_SAMPLE = 50

Measure = Callable[
    [Mapping[Spot, int], int, float], Mapping[Spot, float]
]  # starts, how many, seconds: mean sizes of records


class KafkaCoordinator(BatchCoordinator):
    """Says which offset ranges make up a batch. Only the definition before survives a restart; nothing else here does."""

    def __init__(self, options: KafkaOptions, spout_type: SpoutType) -> None:
        self._options, self._waits = options, spout_type is SpoutType.TRANSACTIONAL
        self._brokers = Brokers(options)
        self._limits = BatchLimits(
            options.max_batch_records, options.max_batch_bytes, options.max_batch_s, self._brokers.sizes
        )
        self._positions = KafkaPositions(self._brokers)
        self._watch = TopicWatch(self._brokers, refuse_compacted=self._waits)
        self._bounds: dict[Spot, OffsetBounds] = {}
        self._asked, self._txid = float("-inf"), 0
        self._complaint, self._complained = "", 0.0
        self._warned: dict[Spot, str] = {}
        self._is_unsure = self._is_waited_for = False
        with close_on_error(self._brokers.close):
            self._watch.start()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if nothing waits, or if no broker answers: then there is a warning."""
        self._is_unsure = True  # until all is known
        if txid <= self._txid or self._is_waited_for:  # an attempt failed: what was known may be the reason
            self._is_waited_for = False
            self._watch.look_again()
            self._asked = float("-inf")
        try:
            read = {} if previous is None else {one.spot: one for one in ranges_of(previous)}
            made = self._define(read, is_first=previous is None)
        # Kafka is away, and nothing is wrong with the topology: other streams go on, and what is defined waits.
        except SourceAwayError as error:
            self._is_unsure = True
            self._complain(str(error))
            return None
        if made is not None:
            self._txid = txid
            self._limits.note_defined(txid, records_of(made))
        return made

    def _define(self, read: dict[Spot, OffsetRange], is_first: bool) -> Definition | None:
        topics, held, replaced = self._hold_topics(read)
        bounds, cuts, away = self._ask_leaders(held)
        self._warn_away(away)
        if away and (self._waits or is_first):
            return None
        self._is_unsure = bool(away)
        new = {spot: bounds[spot] for spot in bounds.keys() - held.keys()}
        starts, is_moved = self._begin(new, away, read, is_first)
        begun = {spot.topic for spot in starts} & replaced
        is_moved |= bool(begun)
        for spot, cut in cuts.items():
            end = held[spot].end
            _, starts[spot] = went_on = self._positions.go_on(spot, end, end, bounds[spot], cut)
            is_moved |= went_on != (None, end)
        backlogs = {spot: bounds[spot].end - start for spot, start in starts.items() if bounds[spot].end > start}
        if is_moved:  # it is only written down where reading goes on: asking again may give another answer
            backlogs = {}
        elif not backlogs:
            return None
        counts, size = self._limits.divide(starts, backlogs)
        ranges = [
            _range_of(spot, topics[spot.topic].id, start, counts.get(spot, 0), bounds[spot].epoch, held.get(spot))
            for spot, start in starts.items()
        ]
        # What was read and is not now rests; what was read of a topic under its former id is dropped when the new one begins.
        ranges += [
            each._replace(start=each.end, since=each.epoch)
            for each in read.values()
            if each.spot not in starts and each.spot.topic not in begun
        ]
        return definition_of(ranges, size)

    def _ask_leaders(
        self, held: Mapping[Spot, OffsetRange]
    ) -> tuple[dict[Spot, OffsetBounds], Mapping[Spot, int | None], list[Spot]]:
        """Return the bounds of those that answer, where those were cut off, and which do not answer."""
        led = {**dict.fromkeys(held, False), **self._watch.partitions()}
        ends = self._ends([spot for spot, has_leader in led.items() if has_leader], held)
        # The ends bring the epochs along, which say whom to ask whether something was cut off.
        places = {spot: LogPosition(held[spot].end, held[spot].epoch) for spot in ends if spot in held}
        cuts = self._positions.find_cuts(places, ends)
        # One that does not say whether what was read is still there counts as away: reading on could mix two histories.
        bounds = {spot: end for spot, end in ends.items() if spot not in held or spot in cuts}
        return bounds, cuts, [spot for spot in led if spot not in bounds]

    def _hold_topics(
        self, read: Mapping[Spot, OffsetRange]
    ) -> tuple[Mapping[str, TopicView], dict[Spot, OffsetRange], set[str]]:
        """Return the topics; how far those that are there were read; which others were created again since."""
        held: dict[Spot, OffsetRange] = {}
        for spot, one in read.items():
            if self._options.topics.hold(*spot):
                held[spot] = one
            else:
                self._warn_once(
                    one, f"is not in topics any more ({self._options.topics}): it is not read. Its position stays in the log; "
                    "reading goes on there when topics has it again",
                )  # fmt: skip
        # Ids come before offsets: those of a topic that was created again are other records'.
        topics, replaced = self._watch.look({spot.topic for spot in held}), set[str]()
        for spot, one in held.items():
            topic = topics.get(spot.topic)
            if topic is None:
                self._warn_once(one, "is gone (on_data_loss=skip)")
            elif topic.id != one.topic_id:
                if self._options.on_data_loss == "fail":
                    raise topic_replaced(spot.topic, one.topic_id, topic.id)
                self._warn_once(
                    one, f"is gone (on_data_loss=skip): {replaced_text(spot.topic, one.topic_id, topic.id)}"
                )
                replaced.add(spot.topic)
        there = topics.keys() - replaced
        return topics, {spot: one for spot, one in held.items() if spot.topic in there}, replaced

    def _begin(
        self, new: Mapping[Spot, OffsetBounds], away: Iterable[Spot], read: Iterable[Spot], is_first: bool
    ) -> tuple[dict[Spot, int], bool]:
        """Return where new partitions begin; whether `first_poll` chose any, or that there is none yet."""
        # At first is when the log knows nothing, not even that there was none; then for all partitions of a topic at once.
        by_option = self._positions.choose(new, {spot.topic: 0 for spot in read}, is_first)
        incomplete = {spot.topic for spot in away}
        complete = [spot for spot in by_option if spot.topic not in incomplete]
        starts = {spot: new[spot].low for spot in new.keys() - by_option}
        starts |= self._positions.choose_starts(complete, new)
        # An "earliest" beginning need not be logged before anything else: asking later would give no other answer.
        return starts, self._options.first_poll != "earliest" and (is_first or bool(complete))

    def _ends(self, wanted: Sequence[Spot], read: Mapping[Spot, OffsetRange]) -> Mapping[Spot, OffsetBounds]:
        """Return where the partitions begin and end that answer; of late, if enough for a batch waits anyway."""
        # While more waits than fits a batch, newer ends would not change the batch, and each question costs a round trip.
        is_known = set(wanted) <= self._bounds.keys() and time.monotonic() - self._asked < _FRESH_S
        if is_known and self._waiting(read.values()) >= self._limits.records:
            return {spot: self._bounds[spot] for spot in wanted}
        self._bounds = {
            spot: found
            for spot, found in self._brokers.bounds(wanted).items()
            # one that hung and does not know yet that another leads now has an end from before
            if spot not in read or not 0 <= found.epoch < read[spot].epoch
        }
        self._asked = time.monotonic()
        return self._bounds

    def _waiting(self, ranges: Iterable[OffsetRange]) -> int:
        return sum(max(0, self._bounds[one.spot].end - one.end) for one in ranges if one.spot in self._bounds)

    def _warn_once(self, one: OffsetRange, what: str) -> None:
        if self._warned.get(one.spot) != what:
            self._warned[one.spot] = what
            _log.warning("%s was read up to offset %d and %s", one.spot, one.end, what)

    def _warn_away(self, away: Sequence[Spot]) -> None:
        if away:
            names = ", ".join(map(str, away[:3])) + (f" and {len(away) - 3} others" if len(away) > 3 else "")
            self._complain(f"no leader answers for {names}{'' if self._waits else '; left out until one does'}")
            self._watch.look_again()
        elif self._complaint:
            _log.warning("all partitions are back")
            self._complaint = ""

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if text != self._complaint or now - self._complained >= _COMPLAIN_EVERY_S:
            _log.warning("%s; waiting", text)
            self._complaint, self._complained = text, now

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_start_position=not records_of(definition))

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[OffsetRange, ...]]:
        return parts_of(definition, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        self._limits.note_done(txid)
        if self._options.group_id is not None:
            # Behind the record, so that a crash leaves the group behind the topology and never ahead of it.
            ends = {one.spot: one.end for one in ranges_of(definition) if one.spot in self._bounds}
            self._brokers.commit(ends)  # of those that are there

    def size(self, definition: Definition) -> int | None:
        return int(definition["bytes"])

    def lag(self, definition: Definition) -> Lag | None:
        # Of a partition that does not answer it is not known how far it goes.
        return None if self._is_unsure else Lag(self._waiting(ranges_of(definition)), "records")

    def refresh(self) -> None:
        self._is_waited_for = True  # from any thread: the next definition asks the brokers for topics too

    def may_have_more(self) -> bool:
        return self._is_unsure

    def throttle(self, share: float) -> None:
        self._limits.share = share

    def close(self) -> None:
        self._brokers.close()
        # Batches that ran in this process have left their readers here, with connections and records fetched ahead.
        READERS.close(self._options)


def _range_of(spot: Spot, topic_id: str, start: int, count: int, epoch: int, before: OffsetRange | None) -> OffsetRange:
    # Where reading was moved, what is before belongs to no batch: the epoch of now is the only one known.
    since = before.epoch if before is not None and before.end == start else epoch
    return OffsetRange(spot, topic_id, start, start + count, epoch, since)


def definition_of(ranges: Sequence[OffsetRange], size: int) -> Definition:
    topics: dict[str, dict[str, Any]] = {}
    # Sorted, so that equal positions are equal definitions, in whatever order the brokers have answered.
    for one in sorted(ranges):
        topic = topics.setdefault(one.spot.topic, {"id": one.topic_id, "ranges": [], "since": []})
        topic["ranges"].extend((one.spot.partition, one.start, one.end, one.epoch))
        topic["since"].append(one.since)
    return {"topics": topics, "bytes": size}


def ranges_of(definition: Definition) -> Iterator[OffsetRange]:
    """Iterate over the ranges of a definition, empty ones too."""
    for name, topic in definition["topics"].items():
        flat, since = topic["ranges"], topic["since"]
        for at in range(0, len(flat), 4):
            partition, start, end, epoch = flat[at : at + 4]
            yield OffsetRange(Spot(name, partition), topic["id"], start, end, epoch, since[at // 4])


def records_of(definition: Definition) -> int:
    return sum(one.offsets for one in ranges_of(definition))


def parts_of(definition: Definition, parallelism: int) -> list[tuple[OffsetRange, ...]]:
    """Cut a batch into parts of about as many offsets each, not more than `parallelism`, in the order of the ranges."""
    ranges = list(ranges_of(definition))

    def part_of(at: int, start: int, end: int) -> OffsetRange:
        one = ranges[at]
        # Of what is within a range no record has a later epoch than the range, so a piece may claim that one at its start.
        return one._replace(start=one.start + start, end=one.start + end, since=one.epoch if start else one.since)

    parts = cut_evenly([one.offsets for one in ranges], parallelism, definition["bytes"])
    return [tuple(part_of(*piece) for piece in part) for part in parts]


class BatchLimits:
    """Divides a batch among partitions: the number of records is exact, their bytes are estimated from samples."""

    def __init__(self, records: int, size: int, seconds: float | None, measure: Measure) -> None:
        self._records, self._size, self._seconds, self._measure = records, size, seconds, measure
        self.share = 1.0  # how much of the limits a batch may have now
        self._mean: dict[Spot, float] = {}
        self._measured = -_MEASURE_EVERY_S
        self._defined: dict[int, tuple[float, int]] = {}
        self._rate: float | None = None
        self._largest = 0
        self._last_done = 0.0

    @property
    def records(self) -> int:
        most = float(self._records)
        if self._seconds is not None:
            # A speed that was measured with few records says little about many, so batches grow step by step.
            known = _FIRST_RECORDS if self._rate is None else min(self._rate * self._seconds, _GROWTH * self._largest)
            most = min(most, known)
        return max(1, int(most * self.share))

    def divide(self, starts: Mapping[Spot, int], backlogs: Mapping[Spot, int]) -> tuple[dict[Spot, int], int]:
        """Return how many offsets of each partition a batch gets, and about how many bytes they have."""
        total, most = sum(backlogs.values()), self.records
        counts = dict(backlogs)
        if total > most:  # in proportion to what waits there; each that has any gets one
            counts = {spot: min(waiting, max(1, waiting * most // total)) for spot, waiting in backlogs.items()}
        self._measure_if_due({spot: (starts[spot], count) for spot, count in counts.items()})
        # Each keeps at least one record: a mean that is far too large must not stop the partition.
        size = self._size_of(counts)
        limit = max(1.0, self._size * self.share)
        if size > limit:
            counts = {spot: max(1, int(count * limit / size)) for spot, count in counts.items()}
            size = self._size_of(counts)
        return counts, int(size)

    def _size_of(self, counts: Mapping[Spot, int]) -> float:
        return sum(count * self._mean.get(spot, _UNMEASURED_BYTES) for spot, count in counts.items())

    def _measure_if_due(self, ranges: Mapping[Spot, tuple[int, int]]) -> None:
        now = time.monotonic()
        if now - self._measured < _MEASURE_EVERY_S and ranges.keys() <= self._mean.keys():
            return
        # Records of last year may be small and those of today large, so a long range is measured at both ends.
        first = {spot: start for spot, (start, _) in ranges.items()}
        last = {spot: start + count - _SAMPLE for spot, (start, count) in ranges.items() if count > 10 * _SAMPLE}
        samples = [self._measure(starts, _SAMPLE, 1.0) for starts in (first, last) if starts]
        for spot in ranges:
            found = max(sample.get(spot, 0.0) for sample in samples)
            self._mean[spot] = found or self._mean.get(spot, _UNMEASURED_BYTES)
        self._measured = time.monotonic()

    def note_defined(self, txid: int, records: int) -> None:
        self._defined[txid] = (time.monotonic(), records)

    def note_done(self, txid: int) -> None:
        began, records = self._defined.pop(txid, (0.0, 0))
        now = time.monotonic()
        if records:
            # Batches overlap: of one that waited behind another only the time after that one is its own.
            rate = records / max(1e-3, now - max(began, self._last_done))
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            # Halved each time, so that one exceptional batch does not permit another one for ever.
            self._largest = max(records, self._largest // 2)
        self._last_done = now
