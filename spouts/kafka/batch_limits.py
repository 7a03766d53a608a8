"""How much one batch of a Kafka spout may hold: records, bytes, seconds, and the share that back-pressure leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from spouts.kafka.batch_ranges import Spot, share

__all__ = ["BatchLimits"]

_UNMEASURED_BYTES = 1000.0  # of a record
_FIRST_RECORDS = 10_000  # of a batch whose speed is not known
_GROWTH = 4  # one batch is at most so many times as large as the speed was measured with
_MEASURE_EVERY_S = 10.0
_SAMPLE = 50

Measure = Callable[[Mapping[Spot, int], int, float], Mapping[Spot, float]]


class BatchLimits:
    """Divides a batch among partitions.

    The number of records is kept exactly. Kafka does not tell how many bytes a range of offsets has, so that follows from
    samples: some records at the beginning of each range, and at its end, every ten seconds; the larger mean counts.

    Parameters
    ----------
    records, size, seconds
        The limits of a batch; `seconds` may be None.
    measure
        Returns the mean size of some records from an offset on: `(starts, how many, seconds to wait)`.
    """

    def __init__(self, records: int, size: int, seconds: float | None, measure: Measure) -> None:
        self._records, self._size, self._seconds, self._measure = records, size, seconds, measure
        self._share = 1.0
        self._mean: dict[Spot, float] = {}
        self._measured = -_MEASURE_EVERY_S
        self._defined: dict[int, tuple[float, int]] = {}
        self._rate: float | None = None
        self._largest = 0
        self._last_done = 0.0

    def throttle(self, share_of_limits: float) -> None:
        """Let batches be smaller from now on."""
        self._share = share_of_limits

    @property
    def records(self) -> int:
        """The most records that a batch may have now."""
        most = float(self._records)
        if self._seconds is not None:
            known = _FIRST_RECORDS if self._rate is None else min(self._rate * self._seconds, _GROWTH * self._largest)
            most = min(most, known)
        return max(1, int(most * self._share))

    def divide(self, starts: Mapping[Spot, int], backlogs: Mapping[Spot, int]) -> tuple[dict[Spot, int], int]:
        """Return how many offsets of each partition a batch gets, and about how many bytes they have."""
        counts = share(backlogs, self.records)
        self._measure_if_due({spot: (starts[spot], count) for spot, count in counts.items()})
        size = self._size_of(counts)
        limit = max(1.0, self._size * self._share)
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
        long = {spot: start + count - _SAMPLE for spot, (start, count) in ranges.items() if count > 10 * _SAMPLE}
        last = self._measure(long, _SAMPLE, 1.0) if long else {}
        for spot in ranges:
            found = max(first.get(spot, 0.0), last.get(spot, 0.0))
            self._mean[spot] = found or self._mean.get(spot, _UNMEASURED_BYTES)
        self._measured = time.monotonic()

    # ---- speed --------------------------------------------------------------------------------------------------------

    def defined(self, txid: int, records: int) -> None:
        """Note that a batch begins."""
        self._defined[txid] = (time.monotonic(), records)

    def done(self, txid: int) -> None:
        """Note that a batch is committed."""
        began, records = self._defined.pop(txid, (0.0, 0))
        now = time.monotonic()
        if records:
            rate = records / max(1e-3, now - max(began, self._last_done))
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            self._largest = max(records, self._largest // 2)
        self._last_done = now
