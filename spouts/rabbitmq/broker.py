"""One connection to a RabbitMQ: a channel that gets messages, and one that publishes with confirmations."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from spouts.rabbitmq.options import RabbitMQOptions, driver
from trident.errors import SourceAwayError, SpoutError


class BrokerDelivery(NamedTuple):
    """A message as the broker delivered it.

    `connection`, `tag`: which connection of the spout it came over, and its number there: an answer is possible only over the
    same one.
    `method`, `properties`, `body`: how it was routed, its properties (headers among them), and its content.
    """

    connection: int
    tag: int
    method: Any
    properties: Any
    body: bytes

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers, none as an empty mapping."""
        return self.properties.headers or {}


class Broker:
    """A connection, which is opened again after it was lost. All calls from one thread.

    `options`: where the broker is.
    `queue`, `dead_letters`: the queue that is consumed, and the one for dead letters; both must be there.
    `prefetch`: how many messages it delivers that are not acknowledged.
    """

    def __init__(self, options: RabbitMQOptions, queue: str, dead_letters: str | None, prefetch: int) -> None:
        self._parameters, self._timeout_s = options.parameters(), options.timeout_s
        self.place, self.queue = options.place, queue
        self._dead_letters, self._prefetch = dead_letters, prefetch
        self._arrived: list[BrokerDelivery] = []
        self._number = 0
        self._connection: Any = None
        self._channel: Any = None
        self._confirming: Any = None
        self._consumer: str | None = None
        self._is_cancelled = False
        log = logging.getLogger("pika")
        if log.level == logging.NOTSET:
            log.setLevel(logging.CRITICAL)  # it logs a stack trace for each try to connect; the spout reports the error

    def open(self) -> None:
        """Connect, and check that the queues are there."""
        self.close()
        with self._errors("connecting"):
            self._connection = driver().BlockingConnection(self._parameters)
        with self._errors("opening channels"):
            self._channel = self._connection.channel()
            self._channel.basic_qos(prefetch_count=self._prefetch)
            self._channel.add_on_cancel_callback(self._cancelled)
            self._confirming = self._connection.channel()
            self._confirming.confirm_delivery()
        self._number, self._is_cancelled = self._number + 1, False
        for queue in (self.queue, self._dead_letters):
            if queue is not None:
                self._look_for(queue)

    def arrived(self) -> list[BrokerDelivery]:
        """Return what the broker has delivered since the last call, without waiting; keeps the connection alive."""
        with self._errors(f"consuming the queue {self.queue!r}"):
            if self._consumer is None:
                self._consumer = self._channel.basic_consume(self.queue, self._take)
            self._connection.process_data_events(0)
        if self._is_cancelled:
            self._lose(f"the broker ended the consumption of the queue {self.queue!r}: was it deleted?")
        arrived, self._arrived = self._arrived, []
        return arrived

    def ready(self) -> int:
        """Return how many messages the queue has that were sent to no consumer; `arrived` has what was sent before that."""
        return self._look_for(self.queue)

    def _look_for(self, queue: str) -> int:
        with self._errors(f"looking for the queue {queue!r}"):
            return int(self._channel.queue_declare(queue, passive=True).method.message_count)

    def tend(self) -> None:
        """Answer the broker's heartbeats."""
        with self._errors("answering a heartbeat"):
            self._connection.process_data_events(0)

    def ack(self, tags: Sequence[int], all_up_to: int = 0) -> None:
        """Acknowledge messages: these, and if given all up to a number."""
        with self._errors(f"acknowledging messages of the queue {self.queue!r}"):
            if all_up_to:
                self._channel.basic_ack(all_up_to, multiple=True)
            for tag in tags:
                self._channel.basic_ack(tag)

    def requeue(self, tags: Sequence[int]) -> None:
        """Put messages back on the queue."""
        with self._errors(f"putting messages back on the queue {self.queue!r}"):
            for tag in tags:
                self._channel.basic_nack(tag, requeue=True)

    def publish(
        self, queue: str, delivery: BrokerDelivery, headers: Mapping[str, Any], without: Collection[str] = ()
    ) -> None:
        """Publish a copy of a message to a queue; return once the broker has it safely.

        `headers`, `without`: headers that are added, and the names of headers that are left out.
        """
        properties = driver().BasicProperties(**vars(delivery.properties))
        others = {name: value for name, value in delivery.headers.items() if name not in without}
        properties.headers = {**others, **headers}
        properties.user_id = None  # the broker refuses another user's
        with self._errors(f"publishing to the queue {queue!r}"):
            self._confirming.basic_publish("", queue, delivery.body, properties, mandatory=True)

    def rest(self) -> list[BrokerDelivery]:
        """Get no more messages until `arrived` is called; returns what had arrived."""
        if self._consumer is not None:
            with self._errors(f"resting from the queue {self.queue!r}"):
                self._channel.basic_cancel(self._consumer)
            self._consumer = None
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        """Close the connection; the broker puts back what is not acknowledged."""
        opened, self._connection, self._consumer = self._connection, None, None
        self._arrived = []
        if opened is not None and opened.is_open:
            exceptions = driver().exceptions
            with contextlib.suppress(exceptions.AMQPError, OSError), self._in_time(opened):
                opened.close()

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._arrived.append(BrokerDelivery(self._number, method.delivery_tag, method, properties, body))

    def _cancelled(self, frame: Any) -> None:
        self._is_cancelled = True

    def _lose(self, why: str) -> None:
        self.close()
        raise SourceAwayError(f"RabbitMQ {self.place}: {why}")

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        if self._connection is None and doing != "connecting":
            raise SourceAwayError(f"{doing} on RabbitMQ {self.place}: not connected")
        try:
            with broker_errors(doing, self.place), self._in_time(self._connection):
                yield
        except SourceAwayError:
            self.close()  # so that the broker puts back what this spout forgets
            raise

    @contextlib.contextmanager
    def _in_time(self, connection: Any) -> Iterator[None]:
        """End a connection, once it is open, whose broker leaves a call without its answer.

        pika's calls wait for it as long as heartbeats come. Its limit for blocked connections ends them in the same way.
        """
        if connection is None:  # connecting has a limit of its own
            yield
            return
        inner = connection._impl  # noqa: SLF001  pika has nothing public that ends a call
        late = TimeoutError(f"no answer within {self._timeout_s:g} seconds")
        timer = inner.ioloop.call_later(self._timeout_s, lambda: inner._terminate_stream(late))  # noqa: SLF001  as above
        try:
            yield
        finally:
            inner.ioloop.remove_timeout(timer)


# What pika raises, as errors that say what was tried where, what was found, and what to do.

_ADVICE = (
    ("ACCESS_REFUSED - Login", "check user and password"),
    ("user 'guest' can only connect via localhost", "give another user: guest is refused from other machines"),
    ("NOT_ALLOWED - vhost", "create it (rabbitmqctl add_vhost), or name another one at the end of the URL"),
    ("NOT_FOUND - no queue", "create it, or correct its name: the spout creates no queue"),
    ("ACCESS_REFUSED", "grant the user read on the queue, and write on amq.default for retries and dead letters"),
    ("RESOURCE_LOCKED", "another connection has the queue for itself"),
    ("exclusive use", "another consumer has the queue for itself"),
)
_FINAL = (403, 404, 405)  # access refused, no such queue, locked
# pika takes any end of a connection that is not open yet for a refusal; a broker that refuses says so.
_ENDED, _REFUSED = re.compile("StreamLost|ClosedByBroker"), re.compile(r"ClosedByBroker: \((403|530)\)")


@contextmanager
def broker_errors(doing: str, place: str) -> Iterator[None]:
    """Turn what pika raises into `SourceAwayError` if it may work later, and into `SpoutError` if not."""
    exceptions = driver().exceptions
    from pika.adapters.utils.connection_workflow import AMQPConnectorException

    try:
        yield
    except exceptions.UnroutableError as error:
        raise SpoutError(f"{doing} on RabbitMQ {place}: there is no such queue. Create it") from error
    except exceptions.NackError as error:
        raise SpoutError(f"{doing} on RabbitMQ {place}: the broker refused the message; is the queue full?") from error
    except (exceptions.AMQPError, AMQPConnectorException, OSError) as error:
        text = f"{doing} on RabbitMQ {place}: {_found(error)}"
        if not _is_final(error):
            raise SourceAwayError(f"{text}; is the broker up, and its address right?") from error
        advice = next((f". To fix it, {text}" for part, text in _ADVICE if part in str(error)), "")
        raise SpoutError(f"{text}{advice}") from error


def _is_final(error: Exception) -> bool:
    exceptions = driver().exceptions
    of_the_handshake = (
        exceptions.IncompatibleProtocolError, exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError,
    )  # fmt: skip
    if isinstance(error, of_the_handshake):
        return _ENDED.search(str(error)) is None or _REFUSED.search(str(error)) is not None
    if not isinstance(error, exceptions.ChannelClosedByBroker):
        return False
    # A queue may be away with its node; then it is not "no queue", but "home node … is down".
    return error.reply_code in _FINAL and "is down" not in error.reply_text


def _found(error: Any) -> str:
    if isinstance(error, driver().exceptions.IncompatibleProtocolError):
        return f"what answers there {'may' if _ENDED.search(str(error)) else 'does'} not speak AMQP"
    text = str(error) or " ".join(map(str, error.args))
    if text.startswith("Timeout during"):
        return "no answer to the handshake"
    socket_error = re.search(r"\(\d+, '([^']+)'\)", text or repr(error))
    return socket_error[1] if socket_error else text or repr(error)
