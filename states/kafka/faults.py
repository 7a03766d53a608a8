"""Errors of Kafka's client as errors of Trident: what was tried on what, what came back, what to do."""

from __future__ import annotations

from typing import Any

from trident.errors import BackendError, StoreAwayError
from trident.servers.kafka_client import STRANGER, Reports, is_away

__all__ = ["backend_error"]

_AWAY = "are the brokers up, and are their addresses right, also those that they advertise?"
_TOPIC = "create the topic, or give the name of one that exists"
_RIGHTS = "docs/states/kafka.md lists the rights that the user needs"
_TAKEN = (
    "another producer with its transactional id has begun: a driver that replaced this one, or another state with the same "
    "prefix. Nothing of this attempt is seen"
)
_ADVICE = {
    "UNKNOWN_TOPIC_OR_PART": _TOPIC,
    "_UNKNOWN_TOPIC": _TOPIC,
    "TOPIC_EXCEPTION": _TOPIC,
    "UNKNOWN_TOPIC_ID": _TOPIC,
    "_UNKNOWN_PARTITION": "the field for the partition names one that the topic does not have",
    "MSG_SIZE_TOO_LARGE": (
        "write smaller records, or raise max.message.bytes of the topic and config={'message.max.bytes': …}"
    ),
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms in config, or raise the broker's limit",
    **dict.fromkeys(STRANGER, "check user, password and TLS in config"),
    **dict.fromkeys(("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"), _TAKEN),
}
_PERMANENT = ("_UNKNOWN_PARTITION", "MSG_SIZE_TOO_LARGE", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")


def backend_error(doing: str, what: str, error: Any, reports: Reports) -> BackendError:
    """Return the error of Trident for one of Kafka's.

    Parameters
    ----------
    doing, what
        "commit batch 5", and the state, topic and brokers.
    error
        A `KafkaError`.
    reports
        What the client said of its connections.
    """
    name, message = error.name(), f"{doing} of {what}: {error.name()}: {error.str()}"
    if is_away(error):
        return StoreAwayError(f"{message} ({reports}); {_AWAY}", what)
    is_forbidden = name.endswith("AUTHORIZATION_FAILED")
    advice = _ADVICE.get(name, _RIGHTS if is_forbidden else "see the broker's log")
    return BackendError(f"{message}; {advice}", name not in _PERMANENT and not is_forbidden)
