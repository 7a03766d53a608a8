"""Errors of Kafka's client as errors of Trident: what was tried on what, what came back, what to do."""

from __future__ import annotations

from typing import Any

from trident.errors import BackendError, StoreAwayError

__all__ = ["LastError", "backend_error", "passes"]

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
    **dict.fromkeys(("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_MSG_TIMED_OUT"), _AWAY),
    **dict.fromkeys(
        ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"), "check user, password and TLS in config"
    ),
    **dict.fromkeys(("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"), _TAKEN),
}
_PERMANENT = ("_UNKNOWN_PARTITION", "MSG_SIZE_TOO_LARGE", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")

_PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "NOT_CONTROLLER", "NOT_COORDINATOR", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT",
)  # fmt: skip


def passes(error: Any) -> bool:
    """Whether the same call may succeed in a moment, as while another broker takes over."""
    return bool(error.retriable()) or error.name() in _PASSING


class LastError:
    """What a client last said of its connections, which its timeouts do not repeat; an `error_cb`."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, error: Any) -> None:
        """Note it."""
        if error.name() != "_ALL_BROKERS_DOWN":  # which follows the reason
            self.text = str(error.str())


def backend_error(doing: str, what: str, error: Any, last: str = "") -> BackendError:
    """Return the error of Trident for one of Kafka's.

    Parameters
    ----------
    doing, what
        "commit batch 5", and the state, topic and brokers.
    error
        A `KafkaError`.
    last
        What the client said of its connections.
    """
    name = error.name()
    advice = _ADVICE.get(name, _RIGHTS if name.endswith("AUTHORIZATION_FAILED") else "see the broker's log")
    why = f" ({last})" if last and advice == _AWAY else ""
    retryable = name not in _PERMANENT and not name.endswith("AUTHORIZATION_FAILED")
    message = f"{doing} of {what}: {name}: {error.str()}{why}; {advice}"
    if advice == _AWAY or name in _PASSING:
        return StoreAwayError(message, what)
    return BackendError(message, retryable)
