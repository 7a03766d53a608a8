"""librdkafka's clients as spouts need them. No other module imports them, and this one is imported where a spout is opened.

Their settings and errors, a client for questions that is replaced when a broker is silent, and one that writes dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spouts.kafka.options import KafkaOptions
from trident.errors import SourceAwayError, SpoutError
from trident.extras import needs_package
from trident.servers.kafka_client import STRANGER, Reports, error_of, is_away

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
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        ConfigResource,
        OffsetSpec,
        ResourceType,
    )

__all__ = [
    "UNKNOWN", "Brokers", "ConfigResource", "Consumer", "DeadTopic", "IsolationLevel", "KafkaError", "KafkaException",
    "Message", "OffsetSpec", "ResourceType", "TopicPartition", "committed_in", "consumer_settings", "is_final",
]  # fmt: skip

_FETCHING = {
    "fetch.wait.max.ms": 10,  # how long the end of a range is waited for that is no record (a transaction's marker)
    "fetch.queue.backoff.ms": 1,  # librdkafka's 1000 stops reading for a second whenever its queue is full
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 << 10,  # what a task may hold beyond the table that it gives out
}
_WRITE_S = 5.0  # that a dead letter may take
_QUICK_METADATA = {"topic.metadata.refresh.interval.ms": 10_000, "reconnect.backoff.max.ms": 1000}

UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
"""There is no such topic or partition."""

_FORBIDDEN = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")


def consumer_settings(options: KafkaOptions) -> dict[str, Any]:
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


def _asking_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer that also suit a client that reads no records."""
    consumers_only = {*_FETCHING, "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"}
    consumers_only |= {"enable.partition.eof", "isolation.level"}
    return {name: value for name, value in settings.items() if name not in consumers_only}


def committed_in(consumer: Consumer, asked: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """Return what is committed to the consumer's group; `KafkaException` if of any partition that is not known."""
    found = consumer.committed(list(asked), timeout=timeout_s) if asked else []
    # Each partition answers for itself, and one that does not know must not pass for one without an offset.
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found


@contextmanager
def _refuse_settings() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise SpoutError(f"config: {error_of(error).str()}") from error


def is_final(error: KafkaError) -> bool:
    """Whether waiting cannot help."""
    return error.fatal() or error.name() in (*STRANGER, *_FORBIDDEN)


class Brokers:
    """The brokers as one reader sees them: its consumers, its questions to them, and the errors of both.

    Questions go over a client of their own, and over another one after an answer that did not come. A client keeps the broker
    that it asks as long as the connection is there. A broker that hangs keeps its connections, so that each question would go
    to it; another client learns from a broker that answers whom to ask.

    `settings`: of a consumer.
    `reports`: keeps what all clients report.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings, self.reports, self.servers = settings, Reports(), settings["bootstrap.servers"]
        self._admin: AdminClient | None = None
        self._is_silent = False

    def open_consumer(self, **own: Any) -> Consumer:
        """Open a consumer; `SpoutError` for a setting that librdkafka does not take."""
        with _refuse_settings():
            return Consumer({**self.settings, "error_cb": self.reports.error, **own}, logger=self.reports)

    def spout_error(self, doing: str, error: KafkaError | KafkaException) -> SpoutError:
        found = error_of(error) if isinstance(error, KafkaException) else error
        cause = f"{doing} at {self.servers}: {found.str()}"
        if is_away(found):
            # A broker that refuses a handshake closes the connection, which looks as if it were away.
            secured = "SSL" in str(self.reports) or "SASL" in str(self.reports)
            check = "the settings security.protocol, sasl.* and ssl.* in config" if secured else "that the broker runs"
            return SourceAwayError(f"{cause} ({self.reports}). Check bootstrap_servers, and {check}")
        if found.name() in STRANGER:
            return SpoutError(f"{cause} ({self.reports}). Check the settings sasl.* and ssl.* in config")
        if found.name() in _FORBIDDEN:
            return SpoutError(f"{cause}. The user needs the permissions Describe and Read on the topic")
        return SpoutError(f"{cause} ({self.reports})")

    @contextmanager
    def wrap_errors(self, doing: str) -> Iterator[None]:
        """Raise an error of a client inside of this as `spout_error` says it."""
        try:
            yield
        except KafkaException as error:
            raise self.spout_error(doing, error) from error

    @property
    def client(self) -> AdminClient:
        """Return the client; another one if the last one waited for an answer in vain."""
        if self._is_silent:
            self._admin, self._is_silent = None, False  # it has no call that closes it
        if self._admin is None:
            own: dict[str, Any] = {**_asking_settings(self.settings), "error_cb": self.reports.error}
            with _refuse_settings():
                self._admin = AdminClient(own, logger=self.reports)
        return self._admin

    def close(self) -> None:
        self._admin = None

    def heed(self, error: KafkaException) -> None:
        """Ask with another client from the next question on, if the error says that a broker is away.

        The client stays until then: other answers may be under way, which would never come after it is closed.
        """
        self._is_silent |= is_away(error_of(error))

    def ask_topics(self, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Return what the brokers say about topics, ids and leaders too, or the `KafkaException` for a topic.

        If no answer comes, another client asks once more.
        """
        # The broker that was asked may hang, and another one may answer at once.
        found = self._ask_topics_once(names, timeout_s)
        return self._ask_topics_once(names, timeout_s) if self._is_silent else found

    def _ask_topics_once(self, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        asked = self.client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                self.heed(error)
                found[name] = error
        return found


class DeadTopic:
    """Writes dead letters: a record as it was, and in its headers why it is there. All replicas have it when a call returns.

    `topic`, `brokers`: its name, and where it is.
    """

    def __init__(self, topic: str, brokers: Brokers) -> None:
        self._topic, self._brokers = topic, brokers
        # The record counts as done when this has returned: so it must be on all replicas, and once.
        own = {
            **_asking_settings(brokers.settings), "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "error_cb": brokers.reports.error,
        }  # fmt: skip
        with _refuse_settings():
            self._producer = Producer(own, logger=brokers.reports)

    def write(self, record: Message, why: Mapping[str, str]) -> None:
        """Write a record with more headers; `SourceAwayError` if no broker takes it in time."""
        ended: list[Any] = []
        headers = [*(record.headers() or ()), *((name, text.encode()) for name, text in why.items())]
        self._producer.produce(
            self._topic, record.value(), record.key(), headers=headers, on_delivery=lambda error, _: ended.append(error)
        )
        self._producer.flush(_WRITE_S)
        doing = f"writing a dead letter to topic {self._topic!r}"
        if not ended:
            # It will be tried again, so what is still in the queue must not arrive later as well.
            self._producer.purge()
            self._producer.flush(0)
            raise SourceAwayError(
                f"{doing} at {self._brokers.servers}: no broker took it in {_WRITE_S:g} seconds ({self._brokers.reports})"
            )
        if ended[0] is not None:
            raise self._brokers.spout_error(doing, ended[0])

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0)
