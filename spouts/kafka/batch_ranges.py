"""What one batch of a Kafka spout is: offset ranges, one for each partition; and how much it may hold.

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

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spouts.files.ranges import cut_evenly
from trident.spout.interfaces import Definition


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
    topics: dict[str, dict[str, Any]] = {}
    # Sorted, so that equal positions are equal definitions, in whatever order the brokers have answered.
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
    ranges = list(ranges_of(definition))

    def part_of(at: int, start: int, end: int) -> OffsetRange:
        one = ranges[at]
        # Of what is within a range no record has a later epoch than the range, so a piece may claim that one at its start.
        return one._replace(start=one.start + start, end=one.start + end, since=one.epoch if start else one.since)

    parts = cut_evenly([one.offsets for one in ranges], parallelism, definition["bytes"])
    return [tuple(part_of(*piece) for piece in part) for part in parts]


_UNMEASURED_BYTES = 1000.0  # of a record
_FIRST_RECORDS = 10_000  # of a batch whose speed is not known
_GROWTH = 4  # one batch is at most so many times as large as the speed was measured with
_MEASURE_EVERY_S = 10.0
_SAMPLE = 50

Measure = Callable[[Mapping[Spot, int], int, float], Mapping[Spot, float]]


class BatchLimits:
    """Divides a batch among partitions.

    The number of records is exact. Kafka does not say how many bytes a range of offsets has, so that is estimated from
    samples: some records at the beginning of each range, and at its end, every ten seconds; the larger mean counts.

    `records`, `size`, `seconds`: the limits of a batch; `seconds` may be None.
    `share`: how much of them a batch may have now.
    `measure`: returns the mean size of some records from an offset on: `(starts, how many, seconds to wait)`.
    """

    def __init__(self, records: int, size: int, seconds: float | None, measure: Measure) -> None:
        self._records, self._size, self._seconds, self._measure = records, size, seconds, measure
        self.share = 1.0
        self._mean: dict[Spot, float] = {}
        self._measured = -_MEASURE_EVERY_S
        self._defined: dict[int, tuple[float, int]] = {}
        self._rate: float | None = None
        self._largest = 0
        self._last_done = 0.0

    @property
    def records(self) -> int:
        most = float(self._records)
        if self._seconds is not None:
            # A speed that was measured with few records says little about many, so batches grow step by step.
            known = _FIRST_RECORDS if self._rate is None else min(self._rate * self._seconds, _GROWTH * self._largest)
            most = min(most, known)
        return max(1, int(most * self.share))

    def divide(self, starts: Mapping[Spot, int], backlogs: Mapping[Spot, int]) -> tuple[dict[Spot, int], int]:
        """Return how many offsets of each partition a batch gets, and about how many bytes they have."""
        total, most = sum(backlogs.values()), self.records
        counts = dict(backlogs)
        if total > most:  # in proportion to what waits there; each that has any gets one
            counts = {spot: min(waiting, max(1, waiting * most // total)) for spot, waiting in backlogs.items()}
        self._measure_if_due({spot: (starts[spot], count) for spot, count in counts.items()})
        # Each keeps at least one record: a mean that is far too large must not stop the partition.
        size = self._size_of(counts)
        limit = max(1.0, self._size * self.share)
        if size > limit:
            counts = {spot: max(1, int(count * limit / size)) for spot, count in counts.items()}
            size = self._size_of(counts)
        return counts, int(size)

    def _size_of(self, counts: Mapping[Spot, int]) -> float:
        return sum(count * self._mean.get(spot, _UNMEASURED_BYTES) for spot, count in counts.items())

    def _measure_if_due(self, ranges: Mapping[Spot, tuple[int, int]]) -> None:
        now = time.monotonic()
        if now - self._measured < _MEASURE_EVERY_S and ranges.keys() <= self._mean.keys():
            return
        first = self._measure({spot: start for spot, (start, _) in ranges.items()}, _SAMPLE, 1.0)
        # Records of last year may be small and those of today large, so a long range is measured at both ends.
        long = {spot: start + count - _SAMPLE for spot, (start, count) in ranges.items() if count > 10 * _SAMPLE}
        last = self._measure(long, _SAMPLE, 1.0) if long else {}
        for spot in ranges:
            found = max(first.get(spot, 0.0), last.get(spot, 0.0))
            self._mean[spot] = found or self._mean.get(spot, _UNMEASURED_BYTES)
        self._measured = time.monotonic()

    # ---- speed --------------------------------------------------------------------------------------------------------

    def note_defined(self, txid: int, records: int) -> None:
        self._defined[txid] = (time.monotonic(), records)

    def note_done(self, txid: int) -> None:
        began, records = self._defined.pop(txid, (0.0, 0))
        now = time.monotonic()
        if records:
            # Batches overlap: of one that waited behind another only the time after that one is its own.
            rate = records / max(1e-3, now - max(began, self._last_done))
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            # Halved each time, so that one exceptional batch does not permit another one for ever.
            self._largest = max(records, self._largest // 2)
        self._last_done = now
