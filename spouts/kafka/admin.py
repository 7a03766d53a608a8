"""What the driver sees of a Kafka cluster: topics with their ids and leaders, and where partitions begin and end.

Follows the topics that are read: new ones, new partitions, leaders, topics that are gone. Measures how large records are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.clients import (
    Brokers,
    ConfigResource,
    Consumer,
    IsolationLevel,
    KafkaException,
    OffsetSpec,
    ResourceType,
    TopicPartition,
    committed_in,
    consumer_settings,
)
from spouts.kafka.lost_records import LogPosition, compacted_topic, gone_topic, truncations
from spouts.kafka.options import KafkaOptions, Topics
from trident.errors import SourceAwayError, SpoutError
from trident.servers.kafka_client import error_of, is_away

_log = logging.getLogger(__name__)
_ASK_S = 3.0
_START_S = 5.0
_THERE_S = 2.0  # brokers learn of a new topic one after the other
_PAUSE_S = 0.2
_NONE = -1  # what a broker answers where it has no such offset
_NO_ANSWER = -1001  # what the client says where a leader just went away, and where a group has no offset


class OffsetBounds(NamedTuple):
    """Where a partition begins and ends, the end as the isolation level sees it; `epoch` is its leader's."""

    low: int
    end: int
    epoch: int


@dataclass(frozen=True)
class TopicView:
    """A topic: its id, and by partition whether it has a leader."""

    id: str
    led: Mapping[int, bool] = field(default_factory=dict)


class BrokerView(Brokers):
    """Asks the brokers. Every call raises `SpoutError` if they do not answer."""

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(consumer_settings(options))
        self._options = options
        self._reader: Consumer | None = None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        super().close()

    # ---- topics -------------------------------------------------------------------------------------------------------

    def wait_for_brokers(self) -> None:
        """Return when a broker answers; `SpoutError` after some seconds."""
        try:
            self.client.list_topics(timeout=_START_S)
        except KafkaException as error:
            self.client.poll(0)  # passes on what is in the client's log
            raise self.spout_error(f"within {_START_S:g} seconds no broker answered", error) from error

    def topics(self, more: Iterable[str]) -> dict[str, TopicView]:
        """Return the topics that are to be read, and `more`, as far as they are there."""
        choice = self._options.topics
        # What was read is asked for even if no pattern finds it any more: only its id says whether it was created again.
        names = {*choice.names, *more, *self._matching(choice)}
        return self._describe(sorted(names)) if names else {}

    def partitions_to_read(self, topics: Mapping[str, TopicView]) -> dict[Spot, bool]:
        """Return the partitions to read of some topics, and whether each has a leader."""
        return {
            Spot(name, partition): is_led
            for name, topic in topics.items()
            for partition, is_led in topic.led.items()
            if self._options.topics.hold(name, partition)
        }

    def _matching(self, choice: Topics) -> list[str]:
        if choice.pattern is None:
            return []
        # A list of all topics has no ids, so those that match are described afterwards, as the others are.
        try:
            topics = self.client.list_topics(timeout=_ASK_S).topics
        except KafkaException as error:
            self.heed(error)
            raise self.spout_error("listing the topics", error) from error
        return [name for name in topics if choice.hold(name)]

    def _describe(self, names: list[str]) -> dict[str, TopicView]:
        views: dict[str, TopicView] = {}
        for name, topic in self.ask_topics(names, _ASK_S).items():
            if not isinstance(topic, KafkaException):
                led = {each.id: each.leader is not None and each.leader.id >= 0 for each in topic.partitions}
                views[name] = TopicView(str(topic.topic_id), led)
            # That a topic is not there is no error yet: who asks knows whether it was read before.
            elif error_of(topic).name() != "UNKNOWN_TOPIC_OR_PART":
                raise self.spout_error(f"asking for topic {name!r}", topic) from topic
        return views

    def compacted_topics(self, names: Iterable[str]) -> list[str]:
        """Return the topics that are compacted, as far as the user may know; `SourceAwayError` if no broker answers."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self.client.describe_configs(asked, request_timeout=_ASK_S) if asked else {}
        found = []
        for resource, future in answers.items():
            try:
                policy = future.result()["cleanup.policy"].value
            except KafkaException as error:
                if is_away(error_of(error)):
                    self.heed(error)
                    raise self.spout_error(f"asking for the settings of topic {resource.name!r}", error) from error
                # The right to describe configurations is a right of its own; a policy that is not told cannot be refused.
                _log.debug("asking for the settings of topic %r: %s", resource.name, error_of(error).str())
                continue
            if "compact" in policy:
                found.append(resource.name)
        return found

    # ---- offsets ------------------------------------------------------------------------------------------------------

    def bounds(self, spots: Iterable[Spot]) -> dict[Spot, OffsetBounds]:
        """Return where partitions begin and end; those that do not answer are not in the result."""
        wanted = list(spots)
        low = self._ask(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        end = self._ask(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        # Both questions are on their way before an answer is waited for: a broker that is silent costs its time once.
        lows = low()
        return {
            spot: OffsetBounds(lows[spot][0], *found)
            for spot, found in end().items()
            if spot in lows and min(lows[spot][0], found[0]) >= 0
        }

    def high(self, spot: Spot) -> int | None:
        """Return where a partition ends, records of open transactions included; None if it does not answer."""
        # Under read_committed the end lies before a transaction that is open, which would look like a loss.
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        found = self._ask([spot], latest, "read_uncommitted")()
        return found[spot][0] if spot in found and found[spot][0] >= 0 else None

    def at(self, spots: Iterable[Spot], ms: int) -> dict[Spot, int | None]:
        """Return the first offset whose record is from then or later; None if the broker says that there is none.

        Raises `SourceAwayError`: a partition does not answer.
        """
        wanted = list(spots)
        found = {spot: offset for spot, (offset, _) in self._ask(wanted, OffsetSpec.for_timestamp(ms))().items()}
        # -1 is an answer (no record is that late); below it are words of the client, which must not pass for offsets.
        for spot in wanted:
            if found.get(spot, _NO_ANSWER) < _NONE:
                raise SourceAwayError(
                    f"asking for the first record of {spot} from {ms} ms on at {self._options.bootstrap_servers}: no answer "
                    f"({self.reports})"
                )
        return {spot: None if offset == _NONE else offset for spot, offset in found.items()}

    def truncations(self, places: Mapping[Spot, LogPosition]) -> dict[Spot, int | None]:
        """Return where partitions were cut off, as `lost_records.truncations` does."""
        # A consumer of its own: answers to earlier questions come to whoever polls next.
        with closing(self._new_consumer()) as consumer:
            return truncations(consumer, places, _ASK_S)

    def _ask(
        self, spots: list[Spot], spec: OffsetSpec, isolation: str = ""
    ) -> Callable[[], dict[Spot, tuple[int, int]]]:
        level = IsolationLevel[(isolation or self._options.isolation).upper()]
        asked = {TopicPartition(*spot): spec for spot in spots}
        # The answers come in threads of the client's.
        futures = self.client.list_offsets(asked, isolation_level=level, request_timeout=_ASK_S)

        def answers() -> dict[Spot, tuple[int, int]]:
            found: dict[Spot, tuple[int, int]] = {}
            for where, future in futures.items():
                try:
                    result = future.result()
                except KafkaException as error:
                    self.heed(error)
                    _log.debug("asking for offsets of %s: %s", where, error_of(error).str())
                    continue
                epoch = -1 if result.leader_epoch is None else result.leader_epoch
                found[Spot(where.topic, where.partition)] = (result.offset, epoch)
            return found

        return answers if spots else dict

    # ---- records and groups -------------------------------------------------------------------------------------------

    def committed_offsets(self, spots: Iterable[Spot]) -> dict[Spot, int | None]:
        """Return the offsets that the group committed; None where it has none."""
        with self.wrap_errors(f"asking for the offsets of group {self._options.group_id!r}"):
            found = committed_in(self._consumer(), [TopicPartition(*spot) for spot in spots], _START_S)
        return {Spot(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in found}

    def commit(self, ends: Mapping[Spot, int]) -> None:
        """Commit offsets to the group, without waiting: they are for monitors only."""
        consumer = self._consumer()
        try:
            consumer.poll(0)  # hears of the last one
            consumer.commit(offsets=[TopicPartition(*spot, end) for spot, end in ends.items()], asynchronous=True)
        except KafkaException as error:
            _log.warning("offsets were not committed to group %r: %s", self._options.group_id, error_of(error).str())

    def sizes(self, starts: Mapping[Spot, int], most: int, patience_s: float) -> dict[Spot, float]:
        """Return the mean bytes of key and value of `most` records from an offset on, where any came soon."""
        consumer = self._consumer()
        seen: dict[Spot, list[int]] = {}
        deadline = time.monotonic() + patience_s
        try:
            consumer.assign([TopicPartition(*spot, offset) for spot, offset in starts.items()])
            while len(consumer.assignment()) and time.monotonic() < deadline:
                message = consumer.poll(0.05)
                if message is None:
                    continue
                spot = Spot(str(message.topic()), message.partition() or 0)
                sizes = seen.setdefault(spot, [])
                if message.error() is None:
                    sizes.append(len(message.value() or b"") + len(message.key() or b""))
                # Its end, or an error that its reader will report.
                if message.error() is not None or len(sizes) >= most:
                    # Or the rest of this partition fills the client's queue, and the others wait behind it.
                    consumer.incremental_unassign([TopicPartition(*spot)])
            consumer.unassign()
        except KafkaException as error:
            _log.debug("measuring records: %s", error_of(error).str())
        return {spot: sum(sizes) / len(sizes) for spot, sizes in seen.items() if sizes}

    def _consumer(self) -> Consumer:
        if self._reader is None:
            self._reader = self._new_consumer()
        return self._reader

    def _new_consumer(self) -> Consumer:
        # It reads some records of a partition, and no more.
        little = {"queued.min.messages": 1, "max.partition.fetch.bytes": 64 << 10}
        return self.open_consumer(**little, on_commit=self._on_commit)

    def _on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None:
            _log.warning("offsets were not committed to group %r: %s", self._options.group_id, error.str())


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
        # Not there is believed only when it lasts: one broker may know a topic that another has not heard of yet.
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
        self._looked = float("-inf")

    def look(self, read: Collection[str]) -> Mapping[str, TopicView]:
        """Return the topics; asked for after some seconds, and if one that was `read` is not known.

        Raises `SourceAwayError`: no broker answers, or a topic that was read is not there at the moment.
        Raises `SpoutError`: it has not been there for seconds, or is compacted.
        """
        if time.monotonic() - self._looked >= self._options.refresh_s or not self._topics.keys() >= set(read):
            self._look(list(read))
        missing = [name for name in read if name not in self._topics]
        # A broker that has just started may not know its topics yet, so one that is missing gets some seconds, each.
        self._missing = {name: self._missing.get(name, time.monotonic()) for name in missing}
        for name, since in self._missing.items():
            if time.monotonic() - since < _THERE_S:
                raise SourceAwayError(f"topic {name!r} is not there at the moment")
            if self._options.on_data_loss == "fail":
                raise gone_topic(name)
        return self._topics

    def _look(self, more: list[str]) -> None:
        topics = self._view.topics(more)
        if self._refuse_compacted:
            # Each topic is asked about once: the answer takes another request, and every look would wait for it.
            compacted = self._view.compacted_topics(topics.keys() - self._policies)
            if compacted:
                raise compacted_topic(compacted[0])
            self._policies |= topics.keys()
        self._topics, self._looked = topics, time.monotonic()
