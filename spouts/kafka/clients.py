"""The brokers as spouts see them. No other module imports librdkafka's clients; this is imported where a spout is opened."""

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from spouts.kafka.options import KafkaOptions
from trident.errors import SourceAwayError, SpoutError
from trident.extras import needs_package
from trident.servers.kafka_client import STRANGER, Reports, error_of, is_away
from trident.servers.patience import Retries

with needs_package("Kafka", "kafka", "confluent-kafka", "confluent_kafka"):
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

__all__ = [
    "GONE", "OUT_OF_RANGE", "Brokers", "Consumer", "KafkaError", "KafkaException", "LogPosition", "Message",
    "OffsetBounds", "Spot", "TopicPartition", "TopicView", "assign", "is_final", "partition_at", "reading_settings",
    "truncation_of",
]  # fmt: skip

K = TypeVar("K")
_log = logging.getLogger(__name__)
_ASK_S = 3.0  # for an answer
_START_S = 5.0
_STEP_S = 0.05
_SEEK_S = 3.0
_NONE = -1  # what a broker answers where it has no such offset
_NO_ANSWER = -1001  # what the client says where a leader just went away, and where a group has no offset

_FETCHING = {
    "fetch.wait.max.ms": 10,  # how long the end of a range is waited for that is no record (a transaction's marker)
    "fetch.queue.backoff.ms": 1,  # librdkafka's 1000 stops reading for a second whenever its queue is full
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 << 10,  # what a task may hold beyond the table that it gives out
}
_LITTLE = {"queued.min.messages": 1, "max.partition.fetch.bytes": 64 << 10}  # some records of a partition, and no more
_QUICK_METADATA = {"topic.metadata.refresh.interval.ms": 10_000, "reconnect.backoff.max.ms": 1000}

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
GONE = (
    "it is not there any more, or the user may not see it. Create it, permit Describe, or take it out of topics; if a pattern "
    'found it, on_data_loss="skip" goes on without it'
)  # what to do about a topic or partition that there is no longer
OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")  # a partition has no record at an offset

_FORBIDDEN = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
_COMPARED = (*OUT_OF_RANGE, "_PARTITION_EOF", "_LOG_TRUNCATION")  # errors that come only once epochs were compared
_ENDS = re.compile(r"broker end offset is (-?\d+)")


class Spot(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r}"


class LogPosition(NamedTuple):
    """A position in a partition, and the epoch of a leader that had all records before it; -1: not known."""

    offset: int
    epoch: int


class OffsetBounds(NamedTuple):
    """Where a partition begins and ends."""

    low: int
    end: int  # as the isolation level sees it: before a transaction that is open
    epoch: int  # its leader's


class TopicView(NamedTuple):
    """A topic; by partition the broker that leads it, None if none does, and those that have a copy."""

    id: str
    leaders: Mapping[int, int | None]
    copies: Mapping[int, list[int]]


def reading_settings(options: KafkaOptions) -> dict[str, Any]:
    """Return the settings of a consumer whose partitions are assigned, and which never commits by itself."""
    return {
        **_QUICK_METADATA,
        **_FETCHING,
        **options.config,
        "bootstrap.servers": options.bootstrap_servers,
        "isolation.level": options.isolation,
        "group.id": options.group_id or "trident",  # must be there; the consumer joins no group
        # Offsets are committed behind what is done, and never because they were read.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A position that is gone is an error, and not silently another one: on_data_loss decides.
        "auto.offset.reset": "error",
        # The end of a partition is said: silence may also be a broker that hangs.
        "enable.partition.eof": True,
    }


def _asking_settings(options: KafkaOptions) -> dict[str, Any]:
    given = {name: value for name, value in options.config.items() if name not in _FETCHING}
    return {**_QUICK_METADATA, **given, "bootstrap.servers": options.bootstrap_servers}


def is_final(error: KafkaError) -> bool:
    """Whether waiting cannot help."""
    return error.fatal() or error.name() in (*STRANGER, *_FORBIDDEN, *_UNKNOWN)


class Brokers:
    """The brokers as one reader sees them: its consumer, its questions to them, and the errors of both.

    `own`: settings of this reader's consumer; without any it reads just a few records.
    """

    def __init__(self, options: KafkaOptions, own: Mapping[str, Any] | None = None) -> None:
        self.options, self.servers, self.reports = options, options.bootstrap_servers, Reports()
        self._own = {**_LITTLE, "on_commit": self._hear_of_commit} if own is None else own
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._is_silent = False

    @property
    def consumer(self) -> Any:
        """Return the consumer, opened when it is first used; `SpoutError` for a setting that librdkafka does not take."""
        if self._consumer is None:
            self._consumer = self._open(Consumer, reading_settings(self.options), self._own)
        return self._consumer

    def close(self) -> None:
        consumer, self._consumer, self._admin = self._consumer, None, None  # the other has no call that closes it
        if consumer is not None:
            consumer.close()

    def _open(self, client: Any, settings: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        try:
            return client({**settings, "error_cb": self.reports.error, **own}, logger=self.reports)
        except KafkaException as error:
            raise SpoutError(f"config: {error_of(error).str()}") from error

    def open_producer(self, **own: Any) -> Any:
        # The topic's own limit counts: a producer's is lower than what a consumer reads.
        return self._open(Producer, {"message.max.bytes": 10**9, **_asking_settings(self.options)}, own)

    # Questions go over a client of their own, and over another one after an answer that did not come: a client keeps the broker
    # that it asks as long as there is a connection, and a broker that hangs keeps its connections.
    @property
    def _client(self) -> AdminClient:
        if self._admin is None or self._is_silent:
            self._admin, self._is_silent = self._open(AdminClient, _asking_settings(self.options), {}), False
        return self._admin

    @contextmanager
    def wrap_errors(self, doing: str) -> Iterator[None]:
        """Raise an error of a client inside of this as `spout_error` says it."""
        try:
            yield
        except KafkaException as error:
            raise self.spout_error(doing, error_of(error)) from error

    def spout_error(self, doing: str, error: KafkaError) -> SpoutError:
        cause = f"{doing} at {self.servers}: {error.str()}"
        if is_away(error):
            # A broker that refuses a handshake closes the connection, which looks as if it were away.
            secured = "SSL" in str(self.reports) or "SASL" in str(self.reports)
            check = "the settings security.protocol, sasl.* and ssl.* in config" if secured else "that the broker runs"
            return SourceAwayError(f"{cause} ({self.reports}). Check bootstrap_servers, and {check}")
        if error.name() in STRANGER:
            return SpoutError(f"{cause} ({self.reports}). Check the settings sasl.* and ssl.* in config")
        if error.name() in _UNKNOWN:
            return SpoutError(f"{cause}; {GONE}")
        if error.name() in _FORBIDDEN:
            return SpoutError(f"{cause}. The user needs the permissions Describe and Read on the topic")
        return SpoutError(f"{cause} ({self.reports})")

    def _answers(self, asked: Mapping[K, Any]) -> dict[K, Any]:
        """Wait for the answers to questions: each is what was answered, or a `KafkaException`."""
        found: dict[K, Any] = {}
        for key, future in asked.items():
            try:
                found[key] = future.result()
            except KafkaException as error:
                # The next question goes to another client. This one is not closed until then: other answers may be under way.
                self._is_silent |= is_away(error_of(error))
                found[key] = error
        return found

    def names(self, is_start: bool = False) -> list[str]:
        """Return the names of all topics; `SpoutError` if no broker answers within some seconds."""
        doing = f"within {_START_S:g} seconds no broker answered" if is_start else "listing the topics"
        try:
            return list(self._client.list_topics(timeout=_START_S if is_start else _ASK_S).topics)
        except KafkaException as error:
            self._client.poll(0)  # passes on what is in the client's log
            self._is_silent |= is_away(error_of(error))
            raise self.spout_error(doing, error_of(error)) from error

    def topics(self, names: Collection[str]) -> dict[str, TopicView]:
        """Return topics, as far as they are there: who asks knows whether that is an error."""
        views: dict[str, TopicView] = {}
        for name, topic in self._describe(sorted(names)).items() if names else ():
            if not isinstance(topic, KafkaException):
                led = [(each.id, each.leader, [copy.id for copy in each.replicas]) for each in topic.partitions]
                leaders = {at: None if leader is None or leader.id < 0 else leader.id for at, leader, _ in led}
                views[name] = TopicView(str(topic.topic_id), leaders, {at: copies for at, _, copies in led})
            elif error_of(topic).name() not in _UNKNOWN:
                raise self.spout_error(f"asking for topic {name!r}", error_of(topic)) from topic
        return views

    def _describe(self, names: list[str]) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            return self._answers(self._client.describe_topics(TopicCollection(names), request_timeout=_ASK_S))

        found = ask()
        return ask() if self._is_silent else found  # another broker may answer at once

    def compacted_topics(self, names: Iterable[str]) -> list[str]:
        """Return the topics that are compacted, as far as the user may know; `SourceAwayError` if no broker answers."""
        asked, compacted = [ConfigResource(ResourceType.TOPIC, name) for name in names], []
        answers = self._answers(self._client.describe_configs(asked, request_timeout=_ASK_S) if asked else {})
        for resource, found in answers.items():
            # The right to describe configurations is a right of its own; a policy that is not told cannot be refused.
            if not isinstance(found, KafkaException):
                compacted += [resource.name] if "compact" in found["cleanup.policy"].value else []
            elif is_away(error_of(found)):
                doing = f"asking for the settings of topic {resource.name!r}"
                raise self.spout_error(doing, error_of(found)) from found
        return compacted

    def bounds(self, spots: Iterable[Spot], isolation: str | None = None) -> dict[Spot, OffsetBounds]:
        """Return where partitions begin and end, of those that answer; `isolation`: in place of the options' one."""
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        lows, ends = self._offsets(list(spots), isolation or self.options.isolation, *specs)
        return {
            spot: OffsetBounds(lows[spot].offset, *end)
            for spot, end in ends.items()
            if spot in lows and min(lows[spot].offset, end.offset) >= 0
        }

    def at(self, spots: Iterable[Spot], ms: int) -> dict[Spot, int | None]:
        """Return the first offset from then on, None if there is none; `SourceAwayError` if a partition does not answer."""
        wanted = list(spots)
        (answers,) = self._offsets(wanted, self.options.isolation, OffsetSpec.for_timestamp(ms))
        found = {spot: answers[spot].offset if spot in answers else _NO_ANSWER for spot in wanted}
        # -1 is an answer (no record is that late); below it are words of the client, which must not pass for offsets.
        for spot in (spot for spot, offset in found.items() if offset < _NONE):
            raise SourceAwayError(
                f"asking for the first record of {spot} from {ms} ms on at {self.servers}: no answer ({self.reports})"
            )
        return {spot: None if offset == _NONE else offset for spot, offset in found.items()}

    def _offsets(self, spots: list[Spot], isolation: str, *specs: OffsetSpec) -> list[dict[Spot, LogPosition]]:
        """Return the answers to each of several questions for offsets, without the partitions that do not answer."""
        level, asked = IsolationLevel[isolation.upper()], [TopicPartition(*spot) for spot in spots]
        # All are on their way before an answer is waited for: a broker that is silent costs its time once.
        questions = [
            self._client.list_offsets(dict.fromkeys(asked, spec), isolation_level=level, request_timeout=_ASK_S)
            if asked
            else {}
            for spec in specs
        ]
        return [
            {
                Spot(where.topic, where.partition): LogPosition(
                    found.offset, -1 if found.leader_epoch is None else found.leader_epoch
                )
                for where, found in self._answers(each).items()
                if not isinstance(found, KafkaException)
            }
            for each in questions
        ]

    def truncations(self, places: Mapping[Spot, LogPosition]) -> dict[Spot, int | None]:
        """Return where partitions were cut off before a place, None if not; those that do not answer are left out."""
        ends: dict[Spot, int | None] = {}
        # A consumer of its own: answers to earlier questions come to whoever polls next.
        with closing(self._open(Consumer, reading_settings(self.options), _LITTLE)) as consumer:
            assign(consumer, places)
            for spot, message in _first_messages(consumer, _ASK_S):
                error = message.error()
                # What is no answer is passed over; a partition that gives nothing else is left out when the time is over.
                if spot not in ends and (error is None or error.name() in _COMPARED):
                    ends[spot] = None if error is None else truncation_of(error)
                    consumer.incremental_unassign([TopicPartition(*spot)])
        return ends

    def committed(self, asked: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return what is committed to the group; `SpoutError` if of any partition that is not known."""
        wanted = list(asked)
        with self.wrap_errors(f"asking for the offsets of group {self.options.group_id!r}"):
            found = self.consumer.committed(wanted, timeout=_START_S) if wanted else []
            # Each partition answers for itself, and one that does not know must not pass for one without an offset.
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
        return list(found)

    def commit(self, ends: Mapping[Spot, int]) -> None:
        """Commit offsets to the group, without waiting: they are for monitors only."""
        try:
            self.consumer.poll(0)  # hears of the last one
            offsets = [TopicPartition(*spot, end) for spot, end in ends.items()]
            self.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._hear_of_commit(error_of(error), ())

    def _hear_of_commit(self, error: KafkaError | None, partitions: object) -> None:
        if error is not None:
            _log.warning("offsets were not committed to group %r: %s", self.options.group_id, error.str())

    def sizes(self, starts: Mapping[Spot, int], most: int, patience_s: float) -> dict[Spot, float]:
        """Return the mean bytes of key and value of `most` records from an offset on, where any came soon."""
        consumer, seen = self.consumer, dict[Spot, list[int]]()
        with suppress(KafkaException):  # a worse estimate, and its reader says why
            consumer.assign([TopicPartition(*spot, offset) for spot, offset in starts.items()])
            for spot, message in _first_messages(consumer, patience_s):
                sizes = seen.setdefault(spot, [])
                if message.error() is None:
                    sizes.append(len(message.value() or b"") + len(message.key() or b""))
                # Its end, or an error that its reader will report.
                if message.error() is not None or len(sizes) >= most:
                    consumer.incremental_unassign([TopicPartition(*spot)])
            consumer.unassign()
        return {spot: sum(sizes) / len(sizes) for spot, sizes in seen.items() if sizes}


def _first_messages(consumer: Consumer, patience_s: float) -> Iterator[tuple[Spot, Message]]:
    """Give the messages of what is assigned, until the time is over; the caller takes off what has answered."""
    deadline = time.monotonic() + patience_s
    # What has answered must go: its other records would fill the client's queue before the answers of others.
    while consumer.assignment() and time.monotonic() < deadline:
        message = consumer.poll(_STEP_S)
        if message is not None:
            yield Spot(str(message.topic()), message.partition() or 0), message


def partition_at(spot: Spot, place: LogPosition, metadata: str = "") -> TopicPartition:
    """Return what a consumer is assigned so that the broker compares the epoch first, or what is committed."""
    # Before offset 0 there is nothing that could have been cut off.
    known: dict[str, Any] = {"leader_epoch": place.epoch} if place.epoch >= 0 and place.offset > 0 else {}
    if metadata:
        known["metadata"] = metadata
    return TopicPartition(*spot, place.offset, **known)


def truncation_of(error: KafkaError) -> int | None:
    """Return where a partition was cut off, if a consumer's error says so; -1: the broker does not know, None: it was not."""
    text = error.str()
    if error.name() != "_LOG_TRUNCATION" and "log truncation detected" not in text:
        return None
    # Where it was cut off librdkafka says in words only.
    match = _ENDS.search(text)
    return -1 if match is None else int(match[1])


def assign(consumer: Consumer, places: Mapping[Spot, LogPosition]) -> None:
    """Have a consumer go on at places; of those with an epoch nothing comes before the broker has compared it."""
    given = [partition_at(spot, place) for spot, place in places.items()]
    consumer.assign(given)
    # By itself a client compares when it hears of another leader, which it may have done before: only a seek always asks. And
    # only in a partition that is assigned can be sought.
    for each, place in zip(given, places.values(), strict=True):
        if place.epoch >= 0 and place.offset > 0:
            _seek(consumer, each)


def _seek(consumer: Consumer, place: TopicPartition) -> None:
    def is_given_up(error: Any, failures: int, waited_s: float) -> bool:
        return error_of(error).name() == "_STATE" and waited_s < _SEEK_S  # what was assigned before, still

    try:
        Retries(0, 0.01, 0.05).run(lambda: consumer.seek(place), KafkaException, is_given_up)
    except KafkaException as error:
        if error_of(error).name() != "_UNKNOWN_PARTITION":  # else nothing comes of it but the error that says so
            raise SourceAwayError(f"going on at offset {place.offset} of {place.topic!r}: {error}") from error
