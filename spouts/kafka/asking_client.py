"""The client that asks about topics and offsets, and is replaced when a broker does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts.kafka.client_settings import asking_settings
from trident.errors import SpoutError
from trident.servers.kafka_client import Reports, error_of, is_away

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

__all__ = ["AskingClient"]


class AskingClient:
    """Opens librdkafka's client for questions, and another one after an answer that did not come.

    A client keeps the broker that it asks as long as the connection is there. A broker that hangs keeps its connections,
    so that each question would go to it; another client learns from a broker that answers whom to ask.

    Parameters
    ----------
    settings
        Of a consumer; those that only a consumer takes are left out.
    reports
        Keeps what the client reports.
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
