"""Clients of Kafka: their package, what they report besides answers, and what their errors mean."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from trident.extras import needs_package
from trident.redaction import redacted

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

_log = logging.getLogger(__name__)

_UNREACHABLE = ("_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE")
_PASSING = (
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "NOT_CONTROLLER", "NOT_COORDINATOR", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "_WAIT_COORD",
)  # fmt: skip
STRANGER = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED")
"""A broker does not know the client, or the client not the broker."""

_STATE = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


def kafka_package() -> Any:
    with needs_package("Kafka", "kafka", "confluent-kafka", "confluent_kafka"):
        import confluent_kafka
    return confluent_kafka


class Reports:
    """What a client reports besides answers; the last lines explain an error. Pass it as its `logger` and `error_cb`."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def log(self, level: int, form: str, *values: Any) -> None:
        """Keep a line of librdkafka's log, which would go to stderr."""
        self._keep(form % values)

    def error(self, error: KafkaError) -> None:
        """Keep an error that belongs to no call."""
        self._keep(error.str())

    def _keep(self, line: str) -> None:
        _log.debug("librdkafka: %s", line)
        line = _STATE.sub("", redacted(line.rpartition("]: ")[2]))
        if line.endswith("brokers are down"):
            return
        self._lines.pop(line, None)
        self._lines[line] = None
        while len(self._lines) > 3:
            del self._lines[next(iter(self._lines))]

    def __str__(self) -> str:
        return "; ".join(self._lines) or "no answer"


def error_of(error: KafkaException) -> KafkaError:
    kafka_error: KafkaError = error.args[0]
    return kafka_error


def is_passing(error: KafkaError) -> bool:
    """Whether the same call may succeed in a moment, as while another broker takes over."""
    return bool(error.retriable()) or error.name() in _PASSING


def is_away(error: KafkaError) -> bool:
    """Whether a broker did not answer, or does not lead what it was asked for."""
    return error.name() in _UNREACHABLE or error.name() in _PASSING
