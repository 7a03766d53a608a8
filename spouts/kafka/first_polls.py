"""Where reading begins, of partitions that the topology's log does not know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.broker_view import BrokerView, OffsetBounds
from spouts.kafka.options import KafkaOptions

__all__ = ["FirstPoll"]


class FirstPoll:
    """Finds the first offset of partitions."""

    def __init__(self, options: KafkaOptions, view: BrokerView) -> None:
        self._options, self._view = options, view

    @property
    def moves(self) -> bool:
        """Whether asking later would give another answer, so that the first one has to be logged before anything else."""
        return self._options.first_poll != "earliest"

    def decides(self, topic: str, known: Collection[str], is_first: bool) -> bool:
        """Whether `first_poll` says where a topic begins: all of them at first, and later one that the user names.

        What is added to Kafka while the topology has its log is read from its first record.

        Parameters
        ----------
        known
            The topics that the log knows.
        is_first
            Whether the log knows nothing, not even that there was no topic.
        """
        return is_first or (self._options.topics.pattern is None and topic not in known)

    def starts(self, spots: Sequence[Spot], bounds: Mapping[Spot, OffsetBounds]) -> dict[Spot, int]:
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
