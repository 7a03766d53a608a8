"""Chooses the offsets that make up a batch: the driver's side of a Kafka spout."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from spouts.kafka.admin import BrokerView, OffsetBounds, TopicView, TopicWatch
from spouts.kafka.batch_ranges import (
    BatchLimits,
    OffsetRange,
    Spot,
    definition_of,
    parts_of,
    positions_of,
    ranges_of,
    records_of,
)
from spouts.kafka.clients import consumer_settings
from spouts.kafka.lost_records import LogPosition, replaced_text, topic_replaced
from spouts.kafka.options import KafkaOptions
from spouts.kafka.positions import PartitionPositions
from spouts.kafka.range_reader import READERS
from trident.errors import SourceAwayError
from trident.roles import close_on_error
from trident.spout.interfaces import BatchCoordinator, BatchTraits, Definition, Lag, SpoutType, TransactionAttempt

_log = logging.getLogger(__name__)
_FRESH_S = 0.5  # how old the ends of partitions may be while more waits than a batch may have
_COMPLAIN_EVERY_S = 30.0


class _Seen(NamedTuple):
    """What the brokers say before a batch.

    `replaced`: the topics that were created again since they were read.
    `held`: how far the other partitions were read.
    `bounds`, `cut`: of the partitions that answer: where they begin and end, and at which offset one was cut off, if it was.
    `away`: the partitions that do not answer.
    """

    topics: Mapping[str, TopicView]
    replaced: Set[str]
    held: Mapping[Spot, OffsetRange]
    bounds: Mapping[Spot, OffsetBounds]
    cut: Mapping[Spot, int | None]
    away: Sequence[Spot]


class KafkaCoordinator(BatchCoordinator):
    """Says which offset ranges make up a batch.

    Only the definition before survives a restart; nothing else here does.
    """

    def __init__(self, options: KafkaOptions, spout_type: SpoutType) -> None:
        self._options, self._waits = options, spout_type is SpoutType.TRANSACTIONAL
        self._view = BrokerView(options)
        self._limits = BatchLimits(
            options.max_batch_records, options.max_batch_bytes, options.max_batch_s, self._view.sizes
        )
        self._positions = PartitionPositions(options, self._view)
        self._watch = TopicWatch(options, self._view, refuse_compacted=self._waits)
        self._bounds: dict[Spot, OffsetBounds] = {}
        self._asked, self._txid = float("-inf"), 0
        self._complaint, self._complained = "", 0.0
        self._resting: set[Spot] = set()
        self._warned: dict[Spot, str] = {}
        self._is_unsure = self._is_waited_for = False
        with close_on_error(self._view.close):
            self._watch.start()

    @property
    def skipped(self) -> int:
        """How many offsets were left out because of `on_data_loss="skip"`, since the start."""
        return self._positions.skipped

    # ---- a batch ------------------------------------------------------------------------------------------------------

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if nothing waits, or if no broker answers: then there is a warning.

        Raises `SpoutError`: records that come next are gone.
        """
        if txid <= self._txid:  # an attempt failed: what was known may be the reason
            self._watch.look_again()
            self._asked = float("-inf")
        try:
            made = self._define(positions_of(previous), is_first=previous is None)
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
        seen = self._look(read, may_leave_out=not (self._waits or is_first))
        if seen is None:
            return None
        held, bounds = seen.held, seen.bounds
        starts = {spot: held[spot].end for spot in bounds if spot in held}
        chosen = self._begin(starts, seen, read, is_first)
        moved = self._skip_lost(starts, seen) or any(spot.topic in seen.replaced for spot in starts)
        backlogs = {spot: bounds[spot].end - start for spot, start in starts.items() if bounds[spot].end > start}
        if chosen or moved:  # it is only written down where reading goes on: asking again may give another answer
            backlogs = {}
        elif not backlogs:
            return None
        counts, size = self._limits.divide(starts, backlogs) if backlogs else ({}, 0)
        return definition_of(_ranges(read, seen, starts, counts), size)

    def _look(self, read: Mapping[Spot, OffsetRange], may_leave_out: bool) -> _Seen | None:
        """Ask the brokers; None if a partition does not answer that may not be left out."""
        self._is_unsure = True  # until all is known
        if self._is_waited_for:
            self._is_waited_for = False
            self._watch.look_again()
            self._asked = float("-inf")
        held = self._held_ranges(read)
        # Ids come before offsets: those of a topic that was created again are other records'.
        topics = self._watch.look({spot.topic for spot in held})
        replaced = self._find_replaced(held, topics)
        held = {spot: one for spot, one in held.items() if spot.topic not in replaced and spot.topic in topics}
        led = {**dict.fromkeys(held, False), **self._view.partitions_to_read(topics)}
        ends = self._ends(led, held)
        # The ends bring the epochs along, which say whom to ask whether something was cut off.
        cut = self._positions.find_cuts(
            {spot: LogPosition(held[spot].end, held[spot].epoch) for spot in ends if spot in held}, ends
        )
        # One that does not say whether what was read is still there counts as away: reading on could mix two histories.
        bounds = {spot: found for spot, found in ends.items() if spot not in held or spot in cut}
        away = [spot for spot in led if spot not in bounds]
        self._warn_away(away)
        if away and not may_leave_out:
            return None
        self._is_unsure = bool(away)
        return _Seen(topics, replaced, held, bounds, cut, away)

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_start_position=not records_of(definition))

    def _begin(self, starts: dict[Spot, int], seen: _Seen, read: Mapping[Spot, OffsetRange], is_first: bool) -> bool:
        """Add where new partitions begin to `starts`; whether `first_poll` chose any, or that there is none yet.

        It chooses for all topics at first (the log knows nothing, not even that there was none), and later for one that the
        user names: for all partitions at once. What is added to Kafka later begins at its first record.

        An `"earliest"` beginning need not be logged before anything else: asking later would give no other answer.
        """
        known, incomplete = {spot.topic for spot in read}, {spot.topic for spot in seen.away}
        bounds, is_named = seen.bounds, self._options.topics.pattern is None
        new = [spot for spot in bounds if spot not in starts]
        by_option = [spot for spot in new if is_first or (is_named and spot.topic not in known)]
        starts.update((spot, bounds[spot].low) for spot in new if spot not in by_option)
        complete = [spot for spot in by_option if spot.topic not in incomplete]
        starts.update(self._positions.choose_starts(complete, bounds))
        return self._options.first_poll != "earliest" and (is_first or bool(complete))

    def _ends(self, led: Mapping[Spot, bool], read: Mapping[Spot, OffsetRange]) -> Mapping[Spot, OffsetBounds]:
        """Return where the partitions begin and end, those that answer; of late, if enough for a batch waits anyway."""
        wanted = [spot for spot, has_leader in led.items() if has_leader]
        # While more waits than fits a batch, newer ends would not change the batch, and each question costs a round trip.
        known = set(wanted) <= self._bounds.keys() and time.monotonic() - self._asked < _FRESH_S
        if known and self._waiting(read.values()) >= self._limits.records:
            return {spot: self._bounds[spot] for spot in wanted}
        self._bounds = {
            spot: found
            for spot, found in self._view.bounds(wanted).items()
            # one that hung and does not know yet that another leads now has an end from before
            if spot not in read or not 0 <= found.epoch < read[spot].epoch
        }
        self._asked = time.monotonic()
        return self._bounds

    def _waiting(self, ranges: Iterable[OffsetRange]) -> int:
        return sum(max(0, self._bounds[one.spot].end - one.end) for one in ranges if one.spot in self._bounds)

    # ---- what is said once --------------------------------------------------------------------------------------------

    def _held_ranges(self, read: Mapping[Spot, OffsetRange]) -> dict[Spot, OffsetRange]:
        """Return how far the partitions were read that `topics` names; the others rest where they are."""
        held = {spot: one for spot, one in read.items() if self._options.topics.hold(*spot)}
        for spot, one in read.items():
            if spot not in held and spot not in self._resting:
                self._resting.add(spot)
                _log.warning(
                    "%s was read up to offset %d and is not in topics any more (%s): it is not read. Its position stays in "
                    "the log; reading goes on there when topics has it again", spot, one.end, self._options.topics
                )  # fmt: skip
        return held

    def _warn_away(self, away: Sequence[Spot]) -> None:
        if away:
            self._complain(f"no leader answers for {_names(away)}{'' if self._waits else '; left out until one does'}")
            self._watch.look_again()
        elif self._complaint:
            _log.warning("all partitions are back")
            self._complaint = ""

    # ---- what is lost -------------------------------------------------------------------------------------------------

    def _find_replaced(self, held: Mapping[Spot, OffsetRange], topics: Mapping[str, TopicView]) -> set[str]:
        """Return the topics that were created again since they were read; a topic that is gone is not one yet."""
        replaced = set()
        for spot, one in held.items():
            topic = topics.get(spot.topic)
            if topic is not None and topic.id == one.topic_id:
                continue
            if topic is not None and self._options.on_data_loss == "fail":
                raise topic_replaced(spot.topic, one.topic_id, topic.id)
            now = "" if topic is None else topic.id
            if self._warned.get(spot) != now:
                self._warned[spot] = now
                what = "it is gone" if topic is None else replaced_text(spot.topic, one.topic_id, now)
                _log.warning("on_data_loss=skip: %s was read up to offset %d; %s", spot, one.end, what)
            if topic is not None:
                replaced.add(spot.topic)
        return replaced

    def _skip_lost(self, starts: dict[Spot, int], seen: _Seen) -> bool:
        """Move positions to where there are records; whether any was moved."""
        moved = False
        for spot in starts:
            for cut in dict.fromkeys((seen.cut.get(spot), None)):  # what is there after a cut may be deleted by now
                offset = self._positions.go_on(spot, starts[spot], starts[spot], seen.bounds[spot], cut)
                if offset is not None:
                    starts[spot], moved = offset, True
        return moved

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if text != self._complaint or now - self._complained >= _COMPLAIN_EVERY_S:
            _log.warning("%s; waiting", text)
            self._complaint, self._complained = text, now

    # ---- a defined batch ----------------------------------------------------------------------------------------------

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[OffsetRange, ...]]:
        return parts_of(definition, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        self._limits.note_done(txid)
        if self._options.group_id is not None:
            # Behind the record, so that a crash leaves the group behind the topology and never ahead of it.
            ends = {one.spot: one.end for one in ranges_of(definition) if one.spot in self._bounds}
            self._view.commit(ends)  # of those that are there

    def size(self, definition: Definition) -> int | None:
        size: int = definition["bytes"]
        return size

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many offsets were there beyond the batch; None while a partition does not say."""
        return None if self._is_unsure else Lag(self._waiting(ranges_of(definition)), "records")

    def refresh(self) -> None:
        """Ask the brokers again, for topics too, before it is said that there is nothing. For any thread."""
        self._is_waited_for = True

    def may_have_more(self) -> bool:
        """Whether there may be records of which nothing is known, because a broker or a partition does not answer."""
        return self._is_unsure

    def throttle(self, share: float) -> None:
        self._limits.share = share

    def close(self) -> None:
        self._view.close()
        # Batches that ran in this process have left their readers here, with connections and records fetched ahead.
        READERS.close(consumer_settings(self._options))


def _names(spots: Sequence[Spot]) -> str:
    shown = ", ".join(map(str, spots[:3]))
    return shown if len(spots) <= 3 else f"{shown} and {len(spots) - 3} others"


def _ranges(
    read: Mapping[Spot, OffsetRange], seen: _Seen, starts: Mapping[Spot, int], counts: Mapping[Spot, int]
) -> list[OffsetRange]:
    """Return how far each partition is read with a batch; those without a start rest where they are."""
    # What was read of a topic under its former id is dropped when the new one begins, also of partitions that it lacks.
    begun = seen.replaced & {spot.topic for spot in starts}
    ranges = {
        spot: one._replace(start=one.end, since=one.epoch) for spot, one in read.items() if spot.topic not in begun
    }
    for spot, start in starts.items():
        end, epoch = start + counts.get(spot, 0), seen.bounds[spot].epoch
        before = seen.held.get(spot)
        # Where reading was moved, what is before belongs to no batch: the epoch of now is the only one known.
        since = before.epoch if before is not None and before.end == start else epoch
        ranges[spot] = OffsetRange(spot, seen.topics[spot.topic].id, start, end, epoch, since)
    return list(ranges.values())
