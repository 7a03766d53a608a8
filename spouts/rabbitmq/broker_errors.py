"""What pika raises, as errors that say what was tried where, what was found, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spouts.rabbitmq.options import driver
from trident.errors import SourceAwayError, SpoutError

__all__ = ["broker_errors"]

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
        advice = next((f". To mend it, {text}" for part, text in _ADVICE if part in str(error)), "")
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
