"""The topic of dead letters: a record as it was, and in its headers why it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spouts.kafka.client_settings import asking_settings, kafka_error
from trident.errors import SourceAwayError, SpoutError
from trident.servers.kafka_client import Reports, error_of

if TYPE_CHECKING:
    from confluent_kafka import Message

_WAIT_S = 5.0


class DeadTopic:
    """Writes dead letters; a call returns once all replicas of the topic have the record.

    `topic`: its name.
    `settings`, `reports`: of the consumer, and what the client reports.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any], reports: Reports) -> None:
        from confluent_kafka import KafkaException, Producer

        self._topic, self._reports, self._servers = topic, reports, settings["bootstrap.servers"]
        own = {
            **asking_settings(settings), "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "error_cb": reports.error,
        }  # fmt: skip
        try:
            self._producer = Producer(own, logger=reports)
        except KafkaException as error:
            raise SpoutError(f"config: {error_of(error).str()}") from error

    def write(self, record: Message, why: Mapping[str, str]) -> None:
        """Write a record with more headers; `SourceAwayError` if no broker takes it in time."""
        ended: list[Any] = []
        headers = [*(record.headers() or ()), *((name, text.encode()) for name, text in why.items())]
        self._producer.produce(
            self._topic, record.value(), record.key(), headers=headers, on_delivery=lambda error, _: ended.append(error)
        )
        self._producer.flush(_WAIT_S)
        doing = f"writing a dead letter to topic {self._topic!r}"
        if not ended:
            self._producer.purge()
            self._producer.flush(0)
            raise SourceAwayError(
                f"{doing} at {self._servers}: no broker took it in {_WAIT_S:g} seconds ({self._reports})"
            )
        if ended[0] is not None:
            raise kafka_error(doing, self._servers, ended[0], self._reports)

    def close(self) -> None:
        """Close the connections."""
        self._producer.purge()
        self._producer.flush(0)
