"""The spout of a RabbitMQ queue: what a user gives, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from spouts.kafka.record_functions import format_of
from spouts.kafka.value_formats import Format
from spouts.messages.retry_policy import RetryPolicy
from spouts.messages.spout import MessageSpout
from spouts.rabbitmq.broker import Broker, BrokerDelivery
from spouts.rabbitmq.options import RabbitMQOptions
from spouts.rabbitmq.queue_consumer import QueueConsumer, origin_of
from trident.errors import ConfigError
from trident.fields import Fields
from trident.servers.avro import Avro
from trident.storm.interfaces import TopologyContext

_COLUMNS: dict[str, Callable[[BrokerDelivery], Any]] = {
    "routing_key": lambda each: origin_of(each)[1],
    "exchange": lambda each: origin_of(each)[0],
    "message_id": lambda each: each.properties.message_id,
}


class RabbitMQSpout(MessageSpout):
    """Emits the messages of a queue; each stays unacknowledged at the broker until its tree is complete.

    When a task dies, the broker puts what was pending there back on the queue at once. The order is not promised.

    Parameters
    ----------
    url
        `amqp://[user:password@]host:port/virtual-host`, or `amqps://` (TLS). The virtual host `/` is written `%2F`.
    queue
        The queue, which must exist: classic or quorum. Only a quorum queue counts the deliveries to tasks that died.
    value
        What a body is: `"bytes"`, `"text"` (UTF-8), `Json("account: string, amount: bigint")`, `Avro(schema)`. JSON and Avro
        emit their fields in the place of `value`.
    fields
        What is emitted, in this order: any of `value`, `routing_key`, `exchange`, `message_id`.
    max_pending
        The most messages that the broker delivers to a task before they are acknowledged (its prefetch).
    max_failures
        After so many failures a message is given up. None: never, or after 10 if there are `dead_letters`.
    first_pause_s, longest_pause_s
        Seconds before the first retry; each further pause is twice as long, up to the longest. Then the message goes back to
        the queue, where any task may get it.
    dead_letters
        The queue that gets messages that are given up, and why; it must exist. None: the log gets them.
    **server
        `user`, `password`, `tls`, `tls_ca_file`, `tls_cert_file`, `tls_key_file`, `tls_verify`, `connect_timeout_s` (5),
        `timeout_s` (10), `heartbeat_s` (60).
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        value: Literal["bytes", "text"] | Avro | Format = "bytes",
        fields: str | Sequence[str] = "value",
        max_pending: int = 1000,
        max_failures: int | None = None,
        first_pause_s: float = 0.2,
        longest_pause_s: float = 60.0,
        dead_letters: str | None = None,
        **server: Any,
    ) -> None:
        self._options = RabbitMQOptions(url, **server)
        self._queue, self._dead_letters, self._format = _queue_of(queue, dead_letters), dead_letters, format_of(value)
        self._columns = tuple(part.strip() for part in fields.split(",")) if isinstance(fields, str) else tuple(fields)
        _check_columns(self._columns, self._format)
        if isinstance(max_pending, int) and max_pending > 65_535:
            raise ConfigError(f"max_pending={max_pending}: RabbitMQ delivers at most 65535 messages before an answer")
        declared = (self._format.fields if name == "value" else f"{name}: string" for name in self._columns)
        policy = RetryPolicy(max_failures, first_pause_s, longest_pause_s, dead_letters)
        super().__init__(Fields(*declared), policy, max_pending)

    def __repr__(self) -> str:
        """Show the options without secrets."""
        return f"RabbitMQSpout({self._options!r}, queue={self._queue!r}, {self._policy!r})"

    def _connect(self, context: TopologyContext, report: Callable[[BaseException], None]) -> QueueConsumer:
        broker = Broker(self._options, self._queue, self._dead_letters, self._max_pending)
        try:
            broker.open()
        except BaseException:
            broker.close()
            raise
        return QueueConsumer(broker, self._dead_letters, self._rows)

    def _rows(self, deliveries: Sequence[BrokerDelivery]) -> list[tuple[Any, ...]]:
        columns: list[list[Any]] = []
        for name in self._columns:
            if name == "value":
                columns += self._format.lists([each.body for each in deliveries])
            else:
                columns.append([_COLUMNS[name](each) for each in deliveries])
        return list(zip(*columns, strict=True))


def _queue_of(queue: str, dead_letters: str | None) -> str:
    if not isinstance(queue, str) or not queue:
        raise ConfigError(f"queue={queue!r}: give the name of a queue")
    if queue == dead_letters:
        raise ConfigError(f"dead_letters={dead_letters!r} is the queue that is read: dead letters would come again")
    return queue


def _check_columns(columns: tuple[str, ...], value: Format) -> None:
    known = ("value", *_COLUMNS)
    if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(known):
        raise ConfigError(f"fields={', '.join(columns)!r}: each at most once, of {', '.join(known)}")
    if value.replaces_all:
        raise ConfigError(f"value={type(value).__name__}(...): functions of records are for Kafka; give a format")
