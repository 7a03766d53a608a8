"""Chooses the offsets that make up a batch: the driver's side of a Kafka spout."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from spouts.kafka.batch_limits import BatchLimits
from spouts.kafka.batch_ranges import Range, Spot, definition_of, parts_of, positions_of, ranges_of, records_of
from spouts.kafka.broker_view import Bounds, BrokerView, TopicView
from spouts.kafka.first_polls import FirstPoll
from spouts.kafka.lost_records import lost_before, replaced_text, topic_replaced
from spouts.kafka.options import KafkaOptions
from spouts.kafka.record_tables import READERS, KafkaEmitter
from spouts.kafka.topic_watch import TopicWatch
from trident.errors import SourceAwayError
from trident.spout.interfaces import Definition, Lag, SpoutType, TransactionAttempt

__all__ = ["KafkaCoordinator"]

_log = logging.getLogger(__name__)
_FRESH_S = 0.5  # how old the ends of partitions may be while more waits than a batch may have
_COMPLAIN_EVERY_S = 30.0


class KafkaCoordinator:
    """Says which offset ranges make up a batch.

    Nothing here is kept over a restart but what the definition before says.
    """

    def __init__(self, options: KafkaOptions, spout_type: SpoutType, emitter: KafkaEmitter) -> None:
        self._options, self._waits, self._readers = options, spout_type is SpoutType.TRANSACTIONAL, emitter.key
        self._view = BrokerView(options)
        self._limits = BatchLimits(
            options.max_batch_records, options.max_batch_bytes, options.max_batch_s, self._view.sizes
        )
        self._first = FirstPoll(options, self._view)
        self._watch = TopicWatch(options, self._view, refuse_compacted=self._waits)
        self._bounds: dict[Spot, Bounds] = {}
        self._asked, self._txid = float("-inf"), 0
        self._complaint, self._complained = "", 0.0
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

        Raises
        ------
        SpoutError
            Records that come next are gone.
        """
        if txid <= self._txid:  # an attempt failed: what was known may be the reason
            self._watch.look_again()
            self._asked = float("-inf")
        try:
            made = self._defined(positions_of(previous), is_first=previous is None)
        except SourceAwayError as error:
            self._complain(str(error))
            return None
        if made is not None:
            self._txid = txid
            self._limits.defined(txid, records_of(made))
        return made

    def _defined(self, read: dict[Spot, Range], is_first: bool) -> Definition | None:
        topics = self._watch.look({spot.topic: one.topic_id for spot, one in read.items()})
        skipped = self._drop_replaced(read, topics)
        led = self._watch.led(topics)
        bounds = self._ends(led, read)
        away = [spot for spot in led if spot not in bounds]
        if away:
            self._complain(f"no leader answers for {_listed(away)}{'' if self._waits else '; left out until one does'}")
            self._watch.look_again()
            if self._waits or is_first:
                return None
        elif self._complaint:
            _log.warning("all partitions are back")
            self._complaint = ""
        starts = {spot: read[spot].end for spot in bounds if spot in read}
        starts.update(self._first.starts([spot for spot in bounds if spot not in starts], bounds, read))
        skipped |= self._skip_lost(starts, bounds)
        backlogs = {spot: bounds[spot].end - start for spot, start in starts.items() if bounds[spot].end > start}
        if not backlogs and not skipped and not (is_first and self._first.moves):
            return None
        counts, size = self._limits.divide(starts, backlogs)
        ranges = {spot: one._replace(start=one.end) for spot, one in read.items()}
        for spot, start in starts.items():
            end = start + counts.get(spot, 0)
            ranges[spot] = Range(spot, topics[spot.topic].id, start, end, bounds[spot].epoch)
        return definition_of(list(ranges.values()), size)

    def _ends(self, led: Mapping[Spot, bool], read: Mapping[Spot, Range]) -> Mapping[Spot, Bounds]:
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

    def _waiting(self, ranges: Iterable[Range]) -> int:
        return sum(max(0, self._bounds[one.spot].end - one.end) for one in ranges if one.spot in self._bounds)

    # ---- what is lost -------------------------------------------------------------------------------------------------

    def _drop_replaced(self, read: dict[Spot, Range], topics: Mapping[str, TopicView]) -> bool:
        """Forget how far topics were read that are gone or were created again; whether there was one."""
        dropped = False
        for spot, one in list(read.items()):
            topic = topics.get(spot.topic)
            if topic is not None and topic.id == one.topic_id:
                continue
            if topic is not None and self._options.on_lost == "fail":
                raise topic_replaced(spot.topic, one.topic_id, topic.id)
            what = "it is gone" if topic is None else replaced_text(spot.topic, one.topic_id, topic.id)
            _log.warning("on_lost=skip: %s was read up to offset %d; %s", spot, one.end, what)
            del read[spot]
            dropped = True
        return dropped

    def _skip_lost(self, starts: dict[Spot, int], bounds: Mapping[Spot, Bounds]) -> bool:
        """Move positions to where there are records; whether any was moved."""
        moved = False
        for spot, start in starts.items():
            low, end = bounds[spot].low, bounds[spot].end
            if low <= start <= end:
                continue
            high = end if start < low else self._view.high(spot)
            if high is None or low <= start <= high:  # behind an open transaction: the isolation was another one before
                continue
            error = lost_before(spot, start, low, high)
            if self._options.on_lost == "fail":
                raise error
            starts[spot] = low if start < low else high
            self.skipped += abs(starts[spot] - start)
            _log.warning(
                "on_lost=skip: %s; reading goes on at offset %d (%d offsets skipped)", error, starts[spot], self.skipped
            )
            moved = True
        return moved

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if text != self._complaint or now - self._complained >= _COMPLAIN_EVERY_S:
            _log.warning("%s; waiting", text)
            self._complaint, self._complained = text, now

    # ---- a defined batch ----------------------------------------------------------------------------------------------

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[Range, ...]]:
        """Cut the ranges into parts."""
        return parts_of(definition, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        """Commit the offsets to the group, if there is one."""
        self._limits.done(txid)
        if self._options.group_id is not None:
            self._view.commit({one.spot: one.end for one in ranges_of(definition)})

    def size(self, definition: Definition) -> int | None:
        """Say about how many bytes the keys and values have."""
        size: int = definition["bytes"]
        return size

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many offsets were there beyond the batch."""
        return Lag(self._waiting(ranges_of(definition)), "records")

    def throttle(self, share: float) -> None:
        """Let batches be smaller from now on."""
        self._limits.throttle(share)

    def close(self) -> None:
        """Close the connections of the driver, those of its readers too."""
        self._view.close()
        READERS.close(self._readers)


def _listed(spots: Sequence[Spot]) -> str:
    shown = ", ".join(map(str, spots[:3]))
    return shown if len(spots) <= 3 else f"{shown} and {len(spots) - 3} others"
