"""Follows the topics of a Kafka spout: new ones, new partitions and where to begin with them, leaders, topics that are gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.broker_view import BrokerView, OffsetBounds, TopicView
from spouts.kafka.lost_records import compacted_topic, gone_topic
from spouts.kafka.options import KafkaOptions
from trident.errors import SourceAwayError, SpoutError

_log = logging.getLogger(__name__)
_THERE_S = 2.0  # brokers learn of a new topic one after the other
_PAUSE_S = 0.2


class TopicWatch:
    """The topics that are read, as last seen.

    `refuse_compacted`: whether a compacted topic is an error.
    """

    def __init__(self, options: KafkaOptions, view: BrokerView, refuse_compacted: bool) -> None:
        self._options, self._view, self._refuse_compacted = options, view, refuse_compacted
        self._topics: dict[str, TopicView] = {}
        self._looked = float("-inf")
        self._policies: set[str] = set()
        self._missing: dict[str, float] = {}

    def start(self) -> None:
        """Make sure that a broker answers and that the named topics and partitions are there; `SpoutError` if not."""
        self._view.wait_for_brokers()
        deadline = time.monotonic() + _THERE_S
        while missing := self._not_there():
            if time.monotonic() > deadline:
                raise SpoutError(
                    f"{missing} is not there on {self._options.bootstrap_servers}, or the user may not see it. Create it, "
                    "correct topics, or permit Describe"
                )
            time.sleep(_PAUSE_S)
        if self._options.topics.pattern is not None and not self._topics:
            _log.warning("no topic matches %s on %s yet", self._options.topics, self._options.bootstrap_servers)

    def _not_there(self) -> str:
        self._look([])
        for name in self._options.topics.names:
            if name not in self._topics:
                return f"topic {name!r}"
            for partition in self._options.topics.assigned.get(name, ()):
                if partition not in self._topics[name].led:
                    return str(Spot(name, partition))
        return ""

    def look_again(self) -> None:
        """Ask the brokers at the next look."""
        self._looked = float("-inf")

    def look(self, read: Collection[str]) -> Mapping[str, TopicView]:
        """Return the topics; asked for after some seconds, and if one that was `read` is not known.

        Raises `SourceAwayError`: no broker answers, or a topic that was read is not there at the moment.
        Raises `SpoutError`: it has not been there for seconds, or is compacted.
        """
        if time.monotonic() - self._looked >= self._options.refresh_s or not self._topics.keys() >= set(read):
            self._look(list(read))
        missing = [name for name in read if name not in self._topics]
        self._missing = {name: self._missing.get(name, time.monotonic()) for name in missing}
        for name, since in self._missing.items():
            if time.monotonic() - since < _THERE_S:
                raise SourceAwayError(f"topic {name!r} is not there at the moment")
            if self._options.on_lost == "fail":
                raise gone_topic(name)
        return self._topics

    def _look(self, more: list[str]) -> None:
        topics = self._view.topics(more)
        if self._refuse_compacted:
            compacted = self._view.compacted(topics.keys() - self._policies)
            if compacted:
                raise compacted_topic(compacted[0])
            self._policies |= topics.keys()
        self._topics, self._looked = topics, time.monotonic()

    def led(self, topics: Mapping[str, TopicView]) -> dict[Spot, bool]:
        """Return the partitions to read of some topics, and whether each has a leader."""
        return {
            Spot(name, partition): led
            for name, topic in topics.items()
            for partition, led in topic.led.items()
            if self._options.topics.hold(name, partition)
        }


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

        `known`: the topics that the log knows.
        `is_first`: whether the log knows nothing, not even that there was no topic.
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
