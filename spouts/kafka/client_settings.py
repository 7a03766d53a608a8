"""librdkafka's clients as spouts need them: their settings and errors, and one that is replaced when a broker is silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trident.errors import SourceAwayError, SpoutError
from trident.servers.kafka_client import STRANGER, Reports, error_of, is_away

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

_FETCHING = {
    "fetch.wait.max.ms": 10,  # how long the end of a range is waited for that is no record (a transaction's marker)
    "fetch.queue.backoff.ms": 1,  # librdkafka's 1000 stops reading for a second whenever its queue is full
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 << 10,  # what a task may hold beyond the table that it gives out
}
_QUICK_METADATA = {"topic.metadata.refresh.interval.ms": 10_000, "reconnect.backoff.max.ms": 1000}

_FORBIDDEN = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")


def consumer_settings(servers: str, isolation: str, group: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer whose partitions are assigned, and which never commits by itself."""
    return {
        **_QUICK_METADATA,
        **_FETCHING,
        **config,
        "bootstrap.servers": servers,
        "isolation.level": isolation,
        "group.id": group or "trident",  # must be there; the consumer joins no group
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def asking_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer that also suit a client that reads no records."""
    consumers_only = {*_FETCHING, "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"}
    consumers_only |= {"enable.partition.eof", "isolation.level"}
    return {name: value for name, value in settings.items() if name not in consumers_only}


def is_final(error: KafkaError) -> bool:
    """Whether waiting cannot help."""
    return error.fatal() or error.name() in (*STRANGER, *_FORBIDDEN)


def kafka_error(doing: str, servers: str, error: KafkaError, reports: Reports) -> SpoutError:
    """Say what failed at which servers, and why."""
    cause = f"{doing} at {servers}: {error.str()}"
    if is_away(error):
        secured = "SSL" in str(reports) or "SASL" in str(reports)
        check = "the settings security.protocol, sasl.* and ssl.* in config" if secured else "that the broker runs"
        return SourceAwayError(f"{cause} ({reports}). Check bootstrap_servers, and {check}")
    if error.name() in STRANGER:
        return SpoutError(f"{cause} ({reports}). Check the settings sasl.* and ssl.* in config")
    if error.name() in _FORBIDDEN:
        return SpoutError(f"{cause}. The user needs the permissions Describe and Read on the topic")
    return SpoutError(f"{cause} ({reports})")


class AskingClient:
    """Opens librdkafka's client for questions, and another one after an answer that did not come.

    A client keeps the broker that it asks as long as the connection is there. A broker that hangs keeps its connections,
    so that each question would go to it; another client learns from a broker that answers whom to ask.

    `settings`: of a consumer; those that only a consumer takes are left out.
    `reports`: keeps what the client reports.
    """

    def __init__(self, settings: Mapping[str, Any], reports: Reports) -> None:
        self._settings, self._reports = settings, reports
        self._opened: AdminClient | None = None
        self._is_silent = False

    @property
    def client(self) -> AdminClient:
        """Return the client; another one if the last one waited for an answer in vain."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if self._is_silent:
            self.close()
        if self._opened is None:
            own: dict[str, Any] = {**asking_settings(self._settings), "error_cb": self._reports.error}
            try:
                self._opened = AdminClient(own, logger=self._reports)
            except KafkaException as error:
                raise SpoutError(f"config: {error_of(error).str()}") from error
        return self._opened

    def close(self) -> None:
        """Close the connections."""
        self._opened, self._is_silent = None, False  # it has no call that closes it

    def heed(self, error: KafkaException) -> None:
        """Ask with another client from the next question on, if the error says that a broker is away.

        The client stays until then: other answers may be under way, which would never come after it is closed.
        """
        self._is_silent |= is_away(error_of(error))

    def described(self, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Return what the brokers say about topics, ids and leaders too, or the `KafkaException` for a topic.

        If no answer comes, another client asks once more.
        """
        found = self._described(names, timeout_s)
        return self._described(names, timeout_s) if self._is_silent else found

    def _described(self, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
        from confluent_kafka import KafkaException, TopicCollection

        found: dict[str, Any] = {}
        asked = self.client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                self.heed(error)
                found[name] = error
        return found
