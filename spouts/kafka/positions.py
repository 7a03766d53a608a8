"""Where a partition begins, and where it goes on if what comes next is gone: decided here for all Kafka spouts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.broker_view import BrokerView, OffsetBounds
from spouts.kafka.lost_records import LogPosition, lost_before, truncated
from spouts.kafka.options import KafkaOptions
from trident.errors import SpoutError

_log = logging.getLogger(__name__)


class PartitionPositions:
    """Decides where partitions are read, and asks the brokers what it has to know for that.

    `skipped`: how many offsets were left out because of `on_lost="skip"`.
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
            committed = self._view.committed(spots)
            starts.update((spot, offset) for spot, offset in committed.items() if offset is not None)
        if isinstance(first, datetime) and spots:
            found = self._view.at(spots, int(first.timestamp() * 1000))
            return {spot: bounds[spot].end if offset is None else offset for spot, offset in found.items()}
        return starts

    def find_cuts(
        self, read: Mapping[Spot, LogPosition], bounds: Mapping[Spot, OffsetBounds]
    ) -> dict[Spot, int | None]:
        """Ask, where another leader leads since, at which offset partitions were cut off before what was read of them.

        None: all of it is still there. Partitions that do not say so are left out.
        """
        doubtful = {
            spot: place
            for spot, place in read.items()
            if 0 <= place.epoch < bounds[spot].epoch
            and place.offset > 0
            and self._intact.get(spot) != LogPosition(place.offset, bounds[spot].epoch)
        }
        answers = self._view.truncations(doubtful) if doubtful else {}
        for spot, cut in answers.items():
            if cut is None:
                self._intact[spot] = LogPosition(read[spot].offset, bounds[spot].epoch)
        return {**{spot: None for spot in read if spot not in doubtful}, **answers}

    def go_on(self, spot: Spot, position: int, furthest: int, bounds: OffsetBounds, cut: int | None) -> int | None:
        """Return where records are, if those that come next are gone, or some that were read; None: reading goes on.

        `position`, `furthest`: what comes next, and what is behind all that was read.
        `cut`: where the partition was cut off, if that is known.

        Raises `SpoutError`: `on_lost` does not permit to leave anything out.
        """
        error: SpoutError
        if cut is not None:
            offset, error = cut, truncated(spot, furthest, cut)
        elif position < bounds.low:
            offset, error = bounds.low, lost_before(spot, position, bounds.low, bounds.end)
        else:
            end = self._ended.get(spot, bounds.end)
            high = end if furthest <= end or spot in self._ended else self._view.high(spot)
            if high is None or furthest <= high:  # behind an open transaction: the isolation was another one before
                return None
            offset, error = high, lost_before(spot, furthest, bounds.low, high)
            if self._options.on_lost == "fail":
                self._ended[spot] = high
        if self._options.on_lost == "fail" or offset < 0:
            raise error
        self.skipped += abs(position - offset)
        _log.warning("on_lost=skip: %s; reading goes on at offset %d (%d offsets skipped)", error, offset, self.skipped)
        return offset
