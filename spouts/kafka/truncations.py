"""Whether what was read of a partition is still its beginning: Kafka compares the epoch of the leader that it was read from.

After an unclean leader election a partition ends earlier than it did, and other records take the numbers of those that are
lost. Offsets alone do not show that once there are enough of them. A broker knows at which offset each epoch ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from spouts.kafka.batch_ranges import Spot

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

__all__ = ["LogPosition", "placed", "truncation_of", "truncations"]

_ENDS = re.compile(r"broker end offset is (-?\d+)")
_STEP_S = 0.05


class LogPosition(NamedTuple):
    """A position in a partition, and the epoch of a leader that had all records before it; -1: not known."""

    offset: int
    epoch: int


def placed(spot: Spot, place: LogPosition, metadata: str = "") -> TopicPartition:
    """Return what a consumer is assigned so that the broker compares the epoch first, or what is committed."""
    from confluent_kafka import TopicPartition

    known: dict[str, Any] = {"leader_epoch": place.epoch} if place.epoch >= 0 and place.offset > 0 else {}
    return (
        TopicPartition(*spot, place.offset, metadata, **known)
        if metadata
        else TopicPartition(*spot, place.offset, **known)
    )


def truncation_of(error: KafkaError) -> int | None:
    """Return where a partition was cut off, if a consumer's error says so; -1: the broker does not know, None: it was not."""
    text = error.str()
    if error.name() != "_LOG_TRUNCATION" and "log truncation detected" not in text:
        return None
    found = _ENDS.search(text)
    return -1 if found is None else int(found[1])


def truncations(consumer: Consumer, places: Mapping[Spot, LogPosition], patience_s: float) -> dict[Spot, int | None]:
    """Return by partition where it was cut off before a place, None if it was not; those that do not answer are left out."""
    found: dict[Spot, int | None] = {}
    deadline = time.monotonic() + patience_s
    consumer.assign([placed(spot, place) for spot, place in places.items()])
    try:
        while len(found) < len(places) and time.monotonic() < deadline:
            message = consumer.poll(_STEP_S)
            if message is None:
                continue
            error, spot = message.error(), Spot(str(message.topic()), message.partition() or 0)
            if spot in found or (error is not None and not _is_answer(error)):
                continue
            found[spot] = None if error is None else truncation_of(error)
            consumer.incremental_unassign([placed(spot, LogPosition(0, -1))])
    finally:
        consumer.unassign()
    return found


def _is_answer(error: KafkaError) -> bool:
    """Whether the broker has compared the epoch: these come only afterwards."""
    return error.name() in ("_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")
