"""Measures how large records are."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spouts.kafka.batch_ranges import Spot
from trident.servers.kafka_client import error_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["mean_sizes"]

_log = logging.getLogger(__name__)


def mean_sizes(consumer: Consumer, starts: Mapping[Spot, int], most: int, patience_s: float) -> dict[Spot, float]:
    """Return the mean bytes of key and value of `most` records from an offset on, where any came soon."""
    from confluent_kafka import KafkaException, TopicPartition

    seen: dict[Spot, list[int]] = {}
    deadline = time.monotonic() + patience_s
    try:
        consumer.assign([TopicPartition(*spot, offset) for spot, offset in starts.items()])
        while len(consumer.assignment()) and time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is None:
                continue
            spot = Spot(str(message.topic()), message.partition() or 0)
            sizes = seen.setdefault(spot, [])
            if message.error() is None:
                sizes.append(len(message.value() or b"") + len(message.key() or b""))
            if message.error() is not None or len(sizes) >= most:  # its end, or an error that its reader will tell
                consumer.incremental_unassign([TopicPartition(*spot)])
        consumer.unassign()
    except KafkaException as error:
        _log.debug("measuring records: %s", error_of(error).str())
    return {spot: sum(sizes) / len(sizes) for spot, sizes in seen.items() if sizes}
