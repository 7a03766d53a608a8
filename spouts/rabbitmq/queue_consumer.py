"""A RabbitMQ queue as a queue of messages: unacknowledged at the broker until they are done.

A message that failed goes back to the queue when its pause is over. How often it failed is told by the broker: a quorum
queue counts returns in the header `x-delivery-count`. A classic queue only says that it delivered a message before. So one
that fails for the second time there is published again with a header that has the count, and then acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from spouts.messages.queue import Message, decoded
from spouts.rabbitmq.broker import Broker, Delivery

__all__ = ["QueueConsumer", "failures_of", "origin_of"]

_DELIVERIES = "x-delivery-count"
_FAILURES = "x-trident-failures"
_EXCHANGE, _ROUTING_KEY = "x-trident-exchange", "x-trident-routing-key"
_HEARTBEAT_S = 1.0


class QueueConsumer:
    """One consumer of a queue.

    Parameters
    ----------
    broker
        The connection, open.
    dead_letters
        The queue for messages that are given up.
    decode
        Returns the values of messages.
    """

    outlives_connections = False

    def __init__(
        self,
        broker: Broker,
        dead_letters: str | None,
        decode: Callable[[Sequence[Delivery]], Sequence[Sequence[Any]]],
    ) -> None:
        self._broker, self._dead_letters, self._decode = broker, dead_letters, decode
        self._open: dict[int, None] = {}  # numbers of messages without an answer, in the order of delivery
        self._tend_at = 0.0

    def reconnect(self) -> None:
        """Open the connection again; the broker has put back everything."""
        self._open.clear()
        self._broker.open()

    def told(self, message: Message) -> str:
        """Name a message by what its publisher called it, if he did."""
        name = message.raw.properties.message_id
        return f"{'a message' if name is None else f'the message {name!r}'} of the queue {self._broker.queue!r}"

    def fetch(self, room: int) -> Sequence[Message]:
        """Return what was delivered; the broker delivers no more than the prefetch."""
        arrived = self._broker.arrived()
        self._open.update(dict.fromkeys(each.tag for each in arrived))
        found = []
        for each, row in zip(arrived, decoded(arrived, self._decode), strict=True):
            values, trouble = ((), row) if isinstance(row, str) else (row, None)
            found.append(Message((each.connection, each.tag), values, each, failures_of(each), trouble))
        return found

    def acknowledge(self, done: Sequence[Message]) -> None:
        """Send one acknowledgement for all messages up to the first that is open, and one each for the others."""
        tags = {message.raw.tag for message in done}
        all_up_to = 0
        for tag in self._open:
            if tag not in tags:
                break
            all_up_to = tag
        self._broker.ack(sorted(tag for tag in tags if tag > all_up_to), all_up_to)
        self._answered(tags)

    def note_failures(self, failed: Sequence[Message]) -> None:
        """Nothing to do: the count goes back with the message."""

    def retry(self, message: Message) -> bool:
        """Give the message back to the queue, with its count."""
        delivery: Delivery = message.raw
        if _counts(delivery) or not delivery.method.redelivered:
            self._broker.requeue([delivery.tag])
        else:
            headers = {**_origin(delivery), _FAILURES: message.failures}
            self._broker.publish(self._broker.queue, delivery, headers)
            self._broker.ack([delivery.tag])
        self._answered({delivery.tag})
        return False

    def bury(self, message: Message, reason: str) -> None:
        """Publish the message to the queue of dead letters, and acknowledge it once the broker has confirmed that."""
        delivery: Delivery = message.raw
        assert self._dead_letters is not None
        headers = {
            **_origin(delivery), "x-trident-reason": reason, "x-trident-failed": message.failures,
            "x-trident-queue": self._broker.queue,
        }  # fmt: skip
        # Without its count, or it would be given up at once when it is put back on the queue.
        self._broker.publish(self._dead_letters, delivery, headers, without=(_FAILURES, _DELIVERIES))
        self._broker.ack([delivery.tag])
        self._answered({delivery.tag})

    def tend(self) -> None:
        """Answer heartbeats."""
        now = time.monotonic()
        if now >= self._tend_at:
            self._tend_at = now + _HEARTBEAT_S
            self._broker.tend()

    def give_back(self, messages: Sequence[Message]) -> bool:
        """Stop consuming, and put back what was not emitted."""
        arrived = self._broker.rest()
        tags = [*(message.raw.tag for message in messages), *(each.tag for each in arrived)]
        self._broker.requeue(tags)
        self._answered(set(tags))
        return True

    def close(self) -> None:
        """Disconnect; the broker puts back what is not acknowledged."""
        self._broker.close()

    def _answered(self, tags: set[int]) -> None:
        for tag in tags:
            self._open.pop(tag, None)


def failures_of(delivery: Delivery) -> int:
    """Return how often a message failed, as far as the broker knows."""
    if _counts(delivery):
        return int(delivery.headers[_DELIVERIES])
    return int(delivery.headers.get(_FAILURES, 0)) + bool(delivery.method.redelivered)


def origin_of(delivery: Delivery) -> tuple[str, str]:
    """Return the exchange and the routing key that a message was published with at first."""
    method, headers = delivery.method, delivery.headers
    return headers.get(_EXCHANGE, method.exchange), headers.get(_ROUTING_KEY, method.routing_key)


def _origin(delivery: Delivery) -> dict[str, str]:
    exchange, routing_key = origin_of(delivery)
    return {_EXCHANGE: exchange, _ROUTING_KEY: routing_key}


def _counts(delivery: Delivery) -> bool:
    """Whether the queue counts returns: only a quorum queue has the header."""
    return _DELIVERIES in delivery.headers
