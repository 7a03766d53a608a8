"""The settings of librdkafka's clients, what they report, and the errors that follow from it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.errors import EnvironmentProblem, SourceAwayError, SpoutError
from trident.redaction import redacted

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

__all__ = [
    "Reports",
    "asking_settings",
    "consumer_settings",
    "error_of",
    "is_away",
    "is_final",
    "kafka_error",
    "kafka_package",
]

_log = logging.getLogger(__name__)

_FETCHING = {
    "fetch.wait.max.ms": 10,  # how long the end of a range is waited for that is no record (a transaction's marker)
    "fetch.queue.backoff.ms": 1,  # librdkafka's 1000 stops reading for a second whenever its queue is full
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 << 10,  # what a task may hold beyond the table that it gives out
}
_QUICK_METADATA = {"topic.metadata.refresh.interval.ms": 10_000, "reconnect.backoff.max.ms": 1000}

_AWAY = (
    "_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_RESOLVE", "REQUEST_TIMED_OUT",
    "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "_WAIT_COORD",
)  # fmt: skip
_STRANGER = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED")
_FORBIDDEN = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")


_STATE = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


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


def kafka_package() -> Any:
    """Import the client."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise EnvironmentProblem(
            f"a Kafka spout needs the package confluent-kafka ({error}); pip install 'trident-spark[kafka]'"
        ) from error
    return confluent_kafka


def consumer_settings(servers: str, isolation: str, group: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a consumer whose partitions are assigned, and which never commits by itself."""
    return {
        **_QUICK_METADATA,
        **_FETCHING,
        **config,
        "bootstrap.servers": servers,
        "isolation.level": isolation,
        "group.id": group or "trident",  # must be there; the consumer joins no group
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def asking_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a consumer's settings that a client takes that only asks."""
    consumers_only = {*_FETCHING, "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"}
    consumers_only |= {"enable.partition.eof", "isolation.level"}
    return {name: value for name, value in settings.items() if name not in consumers_only}


def is_away(error: KafkaError) -> bool:
    """Whether a broker did not answer, or does not lead what it was asked for."""
    return error.name() in _AWAY


def is_final(error: KafkaError) -> bool:
    """Whether waiting cannot help."""
    return error.fatal() or error.name() in (*_STRANGER, *_FORBIDDEN)


def error_of(error: KafkaException) -> KafkaError:
    """Return the error that an exception carries."""
    found: KafkaError = error.args[0]
    return found


def kafka_error(doing: str, servers: str, found: KafkaError, reports: Reports) -> SpoutError:
    """Say what failed at which servers, and why."""
    cause = f"{doing} at {servers}: {found.str()}"
    if is_away(found):
        secured = "SSL" in str(reports) or "SASL" in str(reports)
        check = "the settings security.protocol, sasl.* and ssl.* in config" if secured else "that the broker runs"
        return SourceAwayError(f"{cause} ({reports}). Check bootstrap_servers, and {check}")
    if found.name() in _STRANGER:
        return SpoutError(f"{cause} ({reports}). Check the settings sasl.* and ssl.* in config")
    if found.name() in _FORBIDDEN:
        return SpoutError(f"{cause}. The user needs the permissions Describe and Read on the topic")
    return SpoutError(f"{cause} ({reports})")
