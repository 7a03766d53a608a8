"""Where reading begins, of partitions that the topology's log does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spouts.kafka.batch_ranges import Range, Spot
from spouts.kafka.broker_view import Bounds, BrokerView
from spouts.kafka.options import KafkaOptions

__all__ = ["FirstPoll"]


class FirstPoll:
    """Finds the first offset of partitions."""

    def __init__(self, options: KafkaOptions, view: BrokerView) -> None:
        self._options, self._view = options, view

    @property
    def moves(self) -> bool:
        """Whether asking later would give another answer, so that the first one has to be logged at once."""
        return self._options.first_poll != "earliest"

    def starts(self, new: Sequence[Spot], bounds: Mapping[Spot, Bounds], read: Mapping[Spot, Range]) -> dict[Spot, int]:
        """Return where `new` partitions begin, given how far others were `read`.

        `first_poll` decides for all partitions at first, and later for a topic that the user names and that was not read
        yet. What is added to Kafka while the topology has its log is read from its first record.
        """
        known = {spot.topic for spot in read}
        by_option = [
            spot for spot in new if not read or (spot.topic not in known and self._options.topics.pattern is None)
        ]
        starts = {spot: bounds[spot].low for spot in new}
        return {**starts, **self._by_option(by_option, bounds)} if by_option else starts

    def _by_option(self, spots: Sequence[Spot], bounds: Mapping[Spot, Bounds]) -> dict[Spot, int]:
        first = self._options.first_poll
        if first == "latest":
            return {spot: bounds[spot].end for spot in spots}
        if first == "committed":
            committed = self._view.committed(spots)
            return {spot: offset for spot, offset in committed.items() if offset >= 0}
        if isinstance(first, datetime):
            found = self._view.at(spots, int(first.timestamp() * 1000))
            return {spot: bounds[spot].end if found.get(spot, -1) < 0 else found[spot] for spot in spots}
        return {}
