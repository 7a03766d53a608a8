"""The settings of librdkafka's clients as spouts need them, and the errors of spouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.errors import SourceAwayError, SpoutError
from trident.servers.kafka_client import STRANGER, Reports, is_away

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["asking_settings", "consumer_settings", "is_final", "kafka_error"]

_FETCHING = {
    "fetch.wait.max.ms": 10,  # how long the end of a range is waited for that is no record (a transaction's marker)
    "fetch.queue.backoff.ms": 1,  # librdkafka's 1000 stops reading for a second whenever its queue is full
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16 << 10,  # what a task may hold beyond the table that it gives out
}
_QUICK_METADATA = {"topic.metadata.refresh.interval.ms": 10_000, "reconnect.backoff.max.ms": 1000}

_FORBIDDEN = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")


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


def is_final(error: KafkaError) -> bool:
    """Whether waiting cannot help."""
    return error.fatal() or error.name() in (*STRANGER, *_FORBIDDEN)


def kafka_error(doing: str, servers: str, found: KafkaError, reports: Reports) -> SpoutError:
    """Say what failed at which servers, and why."""
    cause = f"{doing} at {servers}: {found.str()}"
    if is_away(found):
        secured = "SSL" in str(reports) or "SASL" in str(reports)
        check = "the settings security.protocol, sasl.* and ssl.* in config" if secured else "that the broker runs"
        return SourceAwayError(f"{cause} ({reports}). Check bootstrap_servers, and {check}")
    if found.name() in STRANGER:
        return SpoutError(f"{cause} ({reports}). Check the settings sasl.* and ssl.* in config")
    if found.name() in _FORBIDDEN:
        return SpoutError(f"{cause}. The user needs the permissions Describe and Read on the topic")
    return SpoutError(f"{cause} ({reports})")
