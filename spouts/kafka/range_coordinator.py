"""Chooses the offsets that make up a batch: the driver's side of a Kafka spout."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

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
from spouts.kafka.broker_view import BrokerView, OffsetBounds, TopicView
from spouts.kafka.lost_records import LogPosition, lost_before, replaced_text, topic_replaced, truncated
from spouts.kafka.options import KafkaOptions
from spouts.kafka.record_tables import READERS, KafkaEmitter
from spouts.kafka.topic_watch import FirstPoll, TopicWatch
from trident.errors import SourceAwayError, SpoutError
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, SpoutType, TransactionAttempt

_log = logging.getLogger(__name__)
_FRESH_S = 0.5  # how old the ends of partitions may be while more waits than a batch may have
_COMPLAIN_EVERY_S = 30.0


class _Seen(NamedTuple):
    """What the brokers say before a batch.

    `replaced`: the topics that were created again since they were read.
    `held`: how far the other partitions were read.
    `bounds`, `cut`: of the partitions that answer: where they begin and end, and at which offset one was cut off.
    `away`: the partitions that do not answer.
    """

    topics: Mapping[str, TopicView]
    replaced: Set[str]
    held: Mapping[Spot, OffsetRange]
    bounds: Mapping[Spot, OffsetBounds]
    cut: Mapping[Spot, int]
    away: Sequence[Spot]


class KafkaCoordinator(BatchCoordinator):
    """Says which offset ranges make up a batch.

    Only the definition before survives a restart; nothing else here does.
    """

    def __init__(self, options: KafkaOptions, spout_type: SpoutType, emitter: KafkaEmitter) -> None:
        self._options, self._waits, self._readers = options, spout_type is SpoutType.TRANSACTIONAL, emitter.key
        self._view = BrokerView(options)
        self._limits = BatchLimits(
            options.max_batch_records, options.max_batch_bytes, options.max_batch_s, self._view.sizes
        )
        self._first = FirstPoll(options, self._view)
        self._watch = TopicWatch(options, self._view, refuse_compacted=self._waits)
        self._bounds: dict[Spot, OffsetBounds] = {}
        self._asked, self._txid = float("-inf"), 0
        self._complaint, self._complained = "", 0.0
        self._resting: set[Spot] = set()
        self._warned: dict[Spot, str] = {}
        self._checked: dict[Spot, tuple[int, int]] = {}  # position and epoch under which all before it was there
        self._ended: dict[Spot, int] = {}  # where a partition ended before what was read of it: more records hide that
        self._is_unsure = self._is_waited_for = False
        self.skipped = 0
        """How many offsets were left out because of `on_lost="skip"`, since the start."""
        try:
            self._watch.start()
        except BaseException:
            self._view.close()
            raise

    # ---- a batch ------------------------------------------------------------------------------------------------------

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if nothing waits, or if no broker answers: then there is a warning.

        Raises `SpoutError`: records that come next are gone.
        """
        if txid <= self._txid:  # an attempt failed: what was known may be the reason
            self._watch.look_again()
            self._asked = float("-inf")
        try:
            made = self._defined(positions_of(previous), is_first=previous is None)
        except SourceAwayError as error:
            self._is_unsure = True
            self._complain(str(error))
            return None
        if made is not None:
            self._txid = txid
            self._limits.defined(txid, records_of(made))
        return made

    def _defined(self, read: dict[Spot, OffsetRange], is_first: bool) -> Definition | None:
        seen = self._look(read, may_leave_out=not (self._waits or is_first))
        if seen is None:
            return None
        held, bounds = seen.held, seen.bounds
        starts = {spot: held[spot].end for spot in bounds if spot in held}
        moved = self._skip_cut(starts, seen.cut)
        chosen = self._begin(starts, seen, read, is_first)
        moved |= self._skip_lost(starts, bounds)
        moved |= any(spot.topic in seen.replaced for spot in starts)
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
        held = self._held(read)
        topics = self._watch.look({spot.topic for spot in held})
        replaced = self._replaced(held, topics)
        held = {spot: one for spot, one in held.items() if spot.topic not in replaced and spot.topic in topics}
        led = {**dict.fromkeys(held, False), **self._watch.led(topics)}
        bounds, cut = self._intact(self._ends(led, held), held)
        away = [spot for spot in led if spot not in bounds]
        self._warn_away(away)
        if away and not may_leave_out:
            return None
        self._is_unsure = bool(away)
        return _Seen(topics, replaced, held, bounds, cut, away)

    def is_choice(self, definition: Definition) -> bool:
        return not records_of(definition)

    def _begin(self, starts: dict[Spot, int], seen: _Seen, read: Mapping[Spot, OffsetRange], is_first: bool) -> bool:
        """Add where new partitions begin to `starts`; whether `first_poll` chose any, or that there is none yet.

        It chooses for all partitions of a topic at once: one that is added later begins at its first record.
        """
        known, incomplete = {spot.topic for spot in read}, {spot.topic for spot in seen.away}
        bounds = seen.bounds
        new = [spot for spot in bounds if spot not in starts]
        by_option = [spot for spot in new if self._first.decides(spot.topic, known, is_first)]
        starts.update((spot, bounds[spot].low) for spot in new if spot not in by_option)
        complete = [spot for spot in by_option if spot.topic not in incomplete]
        starts.update(self._first.starts(complete, bounds))
        return self._first.moves and (is_first or bool(complete))

    def _ends(self, led: Mapping[Spot, bool], read: Mapping[Spot, OffsetRange]) -> Mapping[Spot, OffsetBounds]:
        """Return where the partitions begin and end, those that answer; of late, if enough for a batch waits anyway."""
        wanted = [spot for spot, has_leader in led.items() if has_leader]
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

    def _held(self, read: Mapping[Spot, OffsetRange]) -> dict[Spot, OffsetRange]:
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
            self._complain(f"no leader answers for {_listed(away)}{'' if self._waits else '; left out until one does'}")
            self._watch.look_again()
        elif self._complaint:
            _log.warning("all partitions are back")
            self._complaint = ""

    # ---- what is lost -------------------------------------------------------------------------------------------------

    def _replaced(self, held: Mapping[Spot, OffsetRange], topics: Mapping[str, TopicView]) -> set[str]:
        """Return the topics that were created again since they were read; a topic that is gone is not one yet."""
        replaced = set()
        for spot, one in held.items():
            topic = topics.get(spot.topic)
            if topic is not None and topic.id == one.topic_id:
                continue
            if topic is not None and self._options.on_lost == "fail":
                raise topic_replaced(spot.topic, one.topic_id, topic.id)
            now = "" if topic is None else topic.id
            if self._warned.get(spot) != now:
                self._warned[spot] = now
                what = "it is gone" if topic is None else replaced_text(spot.topic, one.topic_id, now)
                _log.warning("on_lost=skip: %s was read up to offset %d; %s", spot, one.end, what)
            if topic is not None:
                replaced.add(spot.topic)
        return replaced

    def _intact(
        self, bounds: Mapping[Spot, OffsetBounds], read: Mapping[Spot, OffsetRange]
    ) -> tuple[Mapping[Spot, OffsetBounds], Mapping[Spot, int]]:
        """Ask, where another leader leads since, whether what was read is still there.

        Returns the bounds of the partitions that answer, and the offsets at which partitions were cut off.
        """
        doubtful = {
            spot: LogPosition(read[spot].end, read[spot].epoch)
            for spot, found in bounds.items()
            if spot in read
            and 0 <= read[spot].epoch < found.epoch
            and read[spot].end > 0
            and self._checked.get(spot) != (read[spot].end, found.epoch)
        }
        if not doubtful:
            return bounds, {}
        answers = self._view.truncations(doubtful)
        for spot, cut in answers.items():
            if cut is None:
                self._checked[spot] = (read[spot].end, bounds[spot].epoch)
        answered = {spot: found for spot, found in bounds.items() if spot not in doubtful or spot in answers}
        return answered, {spot: cut for spot, cut in answers.items() if cut is not None}

    def _skip_cut(self, starts: dict[Spot, int], cut: Mapping[Spot, int]) -> bool:
        """Move positions back to where other records than those that were read begin; whether there is any."""
        for spot, offset in cut.items():
            error = truncated(spot, starts[spot], offset)
            if self._options.on_lost == "fail" or offset < 0:
                raise error
            self._skip(starts, spot, offset, error)
        return bool(cut)

    def _skip_lost(self, starts: dict[Spot, int], bounds: Mapping[Spot, OffsetBounds]) -> bool:
        """Move positions to where there are records; whether any was moved."""
        moved = False
        for spot, start in starts.items():
            low, end = bounds[spot].low, self._ended.get(spot, bounds[spot].end)
            if low <= start <= end:
                continue
            high = end if start < low or spot in self._ended else self._view.high(spot)
            if high is None or low <= start <= high:  # behind an open transaction: the isolation was another one before
                continue
            error = lost_before(spot, start, low, high)
            if self._options.on_lost == "fail":
                if start > high:
                    self._ended[spot] = high
                raise error
            self._skip(starts, spot, low if start < low else high, error)
            moved = True
        return moved

    def _skip(self, starts: dict[Spot, int], spot: Spot, offset: int, error: SpoutError) -> None:
        self.skipped += abs(starts[spot] - offset)
        starts[spot] = offset
        _log.warning("on_lost=skip: %s; reading goes on at offset %d (%d offsets skipped)", error, offset, self.skipped)

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
        """Commit the offsets to the group, if there is one."""
        self._limits.done(txid)
        if self._options.group_id is not None:
            ends = {one.spot: one.end for one in ranges_of(definition) if one.spot in self._bounds}
            self._view.commit(ends)  # of those that are there

    def size(self, definition: Definition) -> int | None:
        """Say about how many bytes the keys and values have."""
        size: int = definition["bytes"]
        return size

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many offsets were there beyond the batch; None while a partition does not say."""
        return None if self._is_unsure else Lag(self._waiting(ranges_of(definition)), "records")

    def look_now(self) -> None:
        """Ask the brokers again, for topics too, before it is said that there is nothing. For any thread."""
        self._is_waited_for = True

    def is_preparing(self) -> bool:
        """Whether there may be records of which nothing is known, because a broker or a partition does not answer."""
        return self._is_unsure

    def throttle(self, share: float) -> None:
        self._limits.throttle(share)

    def close(self) -> None:
        """Close the connections of the driver, its readers' too."""
        self._view.close()
        READERS.close(self._readers)


def _listed(spots: Sequence[Spot]) -> str:
    shown = ", ".join(map(str, spots[:3]))
    return shown if len(spots) <= 3 else f"{shown} and {len(spots) - 3} others"


def _ranges(
    read: Mapping[Spot, OffsetRange], seen: _Seen, starts: Mapping[Spot, int], counts: Mapping[Spot, int]
) -> list[OffsetRange]:
    """Return how far each partition is read with a batch; those without a start rest where they are."""
    begun = seen.replaced & {spot.topic for spot in starts}
    ranges = {
        spot: one._replace(start=one.end, since=one.epoch) for spot, one in read.items() if spot.topic not in begun
    }
    for spot, start in starts.items():
        end, epoch = start + counts.get(spot, 0), seen.bounds[spot].epoch
        before = seen.held.get(spot)
        since = before.epoch if before is not None and before.end == start else epoch
        ranges[spot] = OffsetRange(spot, seen.topics[spot.topic].id, start, end, epoch, since)
    return list(ranges.values())
