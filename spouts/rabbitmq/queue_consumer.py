"""A RabbitMQ queue as a queue of messages: unacknowledged at the broker until they are done.

A message that failed goes back to the queue when its pause is over. The broker says how often it failed: a quorum
queue counts returns in the header `x-delivery-count`. A classic queue only says that it delivered a message before. So one
that fails for the second time there is published again with a header that has the count, and then acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from spouts.messages.queue import Message, decoded
from spouts.rabbitmq.broker import Broker, BrokerDelivery

_DELIVERIES = "x-delivery-count"
_FAILURES = "x-trident-failures"
_EXCHANGE, _ROUTING_KEY = "x-trident-exchange", "x-trident-routing-key"
_HEARTBEAT_S = 1.0
_NOTHING = [0, 0]
_BACK_S = 10.0  # a message that went back and does not come has another consumer then
_ASK_EVERY_S = 5.0  # an idle queue: a broker may be silent, and its heartbeats come


class QueueConsumer:
    """One consumer of a queue.

    `broker`: the connection, open.
    `dead_letters`: the queue for messages that are given up.
    `decode`: returns the values of messages.
    """

    outlives_connections = False

    def __init__(
        self,
        broker: Broker,
        dead_letters: str | None,
        decode: Callable[[Sequence[BrokerDelivery]], Sequence[Sequence[Any]]],
    ) -> None:
        self.place = f"RabbitMQ at {broker.place}"
        self._broker, self._dead_letters, self._decode = broker, dead_letters, decode
        self._open: dict[int, None] = {}  # numbers of messages without an answer, in the order of delivery
        self._tend_at = self._ask_at = 0.0
        self._back, self._back_until = (
            0,
            0.0,
        )  # how many messages went back that did not come again, and were not missed
        self._ready = list(_NOTHING)  # what the broker said last when it was asked how much there is, twice at most

    def reconnect(self) -> None:
        """Open the connection again; the broker has put back everything."""
        self._put_back(len(self._open))
        self._open.clear()
        self._broker.open()

    def describe(self, message: Message) -> str:
        """Name a message by what its publisher called it, if he did."""
        name = message.raw.properties.message_id
        return f"{'a message' if name is None else f'the message {name!r}'} of the queue {self._broker.queue!r}"

    def fetch(self, room: int) -> Sequence[Message]:
        """Return what was delivered; the broker delivers no more than the prefetch."""
        arrived = self._broker.arrived() or self._asked()
        self._back -= sum(each.method.redelivered for each in arrived)
        self._open.update(dict.fromkeys(each.tag for each in arrived))
        messages = []
        for each, row in zip(arrived, decoded(arrived, self._decode), strict=True):
            values, trouble = ((), row) if isinstance(row, str) else (row, None)
            messages.append(Message((each.connection, each.tag), values, each, failures_of(each), trouble))
        return messages

    def _asked(self) -> list[BrokerDelivery]:
        """Ask what there is, where that is not known or nothing came for long: a broker that is silent may have messages."""
        now, ready = time.monotonic(), self._ready
        if ready == _NOTHING and now < self._ask_at:
            return []
        self._ask_at = now + _ASK_EVERY_S
        ready[:] = [*ready[-1:], self._broker.ready()]
        return self._broker.arrived()

    def look_now(self) -> None:
        """Find out whether the queue has anything. For any thread."""
        self._ready = []

    def may_have_more(self) -> bool:
        """Whether the broker has not said twice that it has nothing: what it sent before the first time is here the second.

        What was put back it may not count at once, and others may get it.
        """
        return self._ready != _NOTHING or (self._back > 0 and time.monotonic() < self._back_until)

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
        delivery: BrokerDelivery = message.raw
        if _counts(delivery) or not delivery.method.redelivered:
            self._broker.requeue([delivery.tag])
            self._put_back(1)
        else:
            headers = {**_origin(delivery), _FAILURES: message.failures}
            self._broker.publish(self._broker.queue, delivery, headers)
            self._broker.ack([delivery.tag])
            self._put_back(0)
        self._answered({delivery.tag})
        return False

    def bury(self, message: Message, reason: str) -> None:
        """Publish the message to the queue of dead letters, and acknowledge it once the broker has confirmed that."""
        delivery: BrokerDelivery = message.raw
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

    def _put_back(self, count: int) -> None:
        self._ready, self._back = [], max(0, self._back) + count
        self._back_until = time.monotonic() + _BACK_S

    def _answered(self, tags: set[int]) -> None:
        for tag in tags:
            self._open.pop(tag, None)


def failures_of(delivery: BrokerDelivery) -> int:
    """Return how often a message failed, as far as the broker knows."""
    if _counts(delivery):
        return int(delivery.headers[_DELIVERIES])
    return int(delivery.headers.get(_FAILURES, 0)) + bool(delivery.method.redelivered)


def origin_of(delivery: BrokerDelivery) -> tuple[str, str]:
    """Return the exchange and the routing key that a message was published with at first."""
    method, headers = delivery.method, delivery.headers
    return headers.get(_EXCHANGE, method.exchange), headers.get(_ROUTING_KEY, method.routing_key)


def _origin(delivery: BrokerDelivery) -> dict[str, str]:
    exchange, routing_key = origin_of(delivery)
    return {_EXCHANGE: exchange, _ROUTING_KEY: routing_key}


def _counts(delivery: BrokerDelivery) -> bool:
    """Whether the queue counts returns: only a quorum queue has the header."""
    return _DELIVERIES in delivery.headers
