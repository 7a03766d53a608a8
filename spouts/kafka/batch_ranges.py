"""What one batch of a Kafka spout is: offset ranges, one for each partition.

A definition is plain data:

``topics``
    By topic: its ``id``, which a topic that is deleted and created again does not keep, and its ``ranges``: a flat list of
    partition, start, end and leader epoch. Start is the first offset of the batch, end the first one after it. A partition
    with nothing in this batch is there too (start and end are equal), because nothing else says how far it was read. No
    record before the end has a leader epoch above the epoch. ``since`` has one such epoch for each start.
``bytes``
    About how many bytes the keys and values have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trident.spout.interfaces import Definition

__all__ = ["OffsetRange", "Spot", "definition_of", "parts_of", "positions_of", "ranges_of", "records_of", "share"]

_MIN_PART_BYTES = 1 << 20  # below this a Spark task costs more than what it would take over


class Spot(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r}"


class OffsetRange(NamedTuple):
    """The records from offset `start` to before offset `end` of a partition, whose topic has the id `topic_id`.

    No record before the end has a leader epoch above `epoch`, and none before the start one above `since`; -1: not known.
    """

    spot: Spot
    topic_id: str
    start: int
    end: int
    epoch: int
    since: int = -1

    @property
    def offsets(self) -> int:
        """How many offsets it has; not all of them need be records."""
        return self.end - self.start


def definition_of(ranges: Sequence[OffsetRange], size: int) -> Definition:
    """Return the definition of a batch."""
    topics: dict[str, dict[str, Any]] = {}
    for one in sorted(ranges):
        topic = topics.setdefault(one.spot.topic, {"id": one.topic_id, "ranges": [], "since": []})
        topic["ranges"].extend((one.spot.partition, one.start, one.end, one.epoch))
        topic["since"].append(one.since)
    return {"topics": topics, "bytes": size}


def ranges_of(definition: Definition) -> Iterator[OffsetRange]:
    """Iterate over the ranges of a definition, empty ones too."""
    for name, topic in definition["topics"].items():
        flat, since = topic["ranges"], topic["since"]
        for at in range(0, len(flat), 4):
            partition, start, end, epoch = flat[at : at + 4]
            yield OffsetRange(Spot(name, partition), topic["id"], start, end, epoch, since[at // 4])


def positions_of(definition: Definition | None) -> dict[Spot, OffsetRange]:
    """Return how far each partition was read: the ends of its ranges."""
    return {} if definition is None else {one.spot: one for one in ranges_of(definition)}


def records_of(definition: Definition) -> int:
    """Return how many offsets a batch has; not all of them need be records."""
    return sum(one.offsets for one in ranges_of(definition))


def parts_of(definition: Definition, parallelism: int) -> list[tuple[OffsetRange, ...]]:
    """Cut a batch into parts of about as many offsets each, not more than `parallelism`, in the order of the ranges."""
    ranges = [one for one in ranges_of(definition) if one.offsets]
    total = sum(one.offsets for one in ranges)
    count = max(1, min(parallelism, definition["bytes"] // _MIN_PART_BYTES, total))
    parts: list[list[OffsetRange]] = [[] for _ in range(count)]
    taken = 0
    for one in ranges:
        at = one.start
        while at < one.end:
            index = taken * count // total
            room = -(-total * (index + 1) // count) - taken
            end = min(one.end, at + room)
            since = one.since if at == one.start else one.epoch
            parts[index].append(one._replace(start=at, end=end, since=since))
            taken += end - at
            at = end
    return [tuple(part) for part in parts if part]


def share(backlogs: Mapping[Spot, int], most: int) -> dict[Spot, int]:
    """Divide the records of a batch among partitions, in proportion to what waits there; each that has any gets one."""
    total = sum(backlogs.values())
    if total <= most:
        return dict(backlogs)
    return {spot: min(waiting, max(1, waiting * most // total)) for spot, waiting in backlogs.items()}
