"""RateSpout: numbered rows at a given rate, for load tests.

A definition says all about its rows: `start` to `end`, without the last, are their values; `from_row`, `from_us`,
`rows_per_second`, `ramp_up_s` say when they are due (see `RowSchedule`). The schedule is that of the first batch for as long as
the rate is the same, so a restart gives the rows that became due while no driver ran; another rate begins a new one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.setting_types import MOST, MOST_S, Limit, NumberBounds, Seconds, Whole, check_arguments
from trident.spout.interfaces import Definition, Lag, SpoutType, ThrottledCoordinator, TransactionAttempt

_US = 1_000_000


@dataclass(frozen=True)
class RowSchedule:
    """The rows from number `from_row` on, of which none is due before `from_us`; then a steady rate after an optional ramp."""

    from_row: int
    from_us: int  # since 1970
    rows_per_second: float  # after the ramp; 0: all rows are due at `from_us`
    ramp_up_s: float  # how long the rate grows from 0, in proportion to the time

    def due(self, at_us: int) -> int:
        """Return the number of the first row that is not due yet at a time."""
        elapsed = max(0, at_us - self.from_us) / _US
        if elapsed < self.ramp_up_s:
            return self.from_row + math.floor(self.rows_per_second * elapsed * elapsed / (2 * self.ramp_up_s))
        return self.from_row + math.floor(self.rows_per_second * (elapsed - self.ramp_up_s / 2))

    def times_of(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return when the rows `start` to `end` are due. A function of the row's number alone, and it never falls."""
        if not self.rows_per_second:
            return np.full(end - start, self.from_us, np.int64)
        count = np.arange(start - self.from_row, end - self.from_row, dtype=np.float64)
        seconds = count / self.rows_per_second + self.ramp_up_s / 2
        ramped = self.rows_per_second * self.ramp_up_s / 2  # so many rows are due when the ramp ends
        if start - self.from_row < ramped:
            on_ramp = np.sqrt(2 * self.ramp_up_s * count / self.rows_per_second)
            seconds = np.where(count < ramped, on_ramp, seconds)
        return self.from_us + np.floor(seconds * _US).astype(np.int64)


_FIELDS = Fields("value: bigint, timestamp: timestamp")
_ROW_BYTES = 16
_GREATEST_BATCH = 1_000_000
_ROWS_PER_PART = 16_384  # below this a Spark task costs more than what it would take over
_ROWS_PER_TABLE = 131_072

RatePart = tuple[RowSchedule, int, int]


@dataclass(frozen=True)
class _Limits:
    rows_per_batch: int
    rows: int | None
    tick_us: int
    partitions: int | None


class RateSpout:
    """Emits the numbers 0, 1, 2 … as `value`, each with the time at which it is due as `timestamp`. Transactional.

    Parameters
    ----------
    rows_per_second
        How many rows are due in a second; may be less than 1. None: a batch is due at once, whenever one is asked for.
    rows_per_batch
        The greatest number of rows of one batch; default 1,000,000. Without `rows_per_second` each batch has so many.
    rows
        How many rows there are in all; None: there is no end.
    ramp_up_s
        The rate grows to `rows_per_second` within this many seconds.
    tick_s
        Rows are emitted when a tick ends, all that became due in it; in between the spout is idle.
    partitions
        Into how many parts a batch is cut; default: one a task, of 16,384 rows at least.
    """

    spout_type = SpoutType.TRANSACTIONAL

    @check_arguments
    def __init__(
        self,
        rows_per_second: Annotated[float, NumberBounds(float, "a number", None, MOST)] | None = None,
        *,
        rows_per_batch: Limit | None = None,
        rows: Whole | None = None,
        ramp_up_s: Seconds = 0.0,
        tick_s: Annotated[float, NumberBounds(float, "seconds", 0.001, MOST_S)] = 1.0,
        partitions: Limit | None = None,
    ) -> None:
        if rows_per_second is None and rows_per_batch is None:
            raise ValueError("RateSpout needs a rate: give rows_per_second, rows_per_batch or both")
        if ramp_up_s and rows_per_second is None:
            raise ValueError(f"ramp_up_s is {ramp_up_s}, but there is no rate to reach; give rows_per_second")
        self._rate, self._ramp_up_s = float(rows_per_second or 0), float(ramp_up_s)
        self._limits = _Limits(rows_per_batch or _GREATEST_BATCH, rows, round(tick_s * 1e6), partitions)

    def get_output_fields(self) -> Fields:
        return _FIELDS

    def get_coordinator(self, conf: Mapping[str, Any], now: Callable[[], float] = time.time) -> _RateCoordinator:
        """Open the driver's side. `now` gives the time in seconds since 1970."""
        return _RateCoordinator(self._rate, self._ramp_up_s, self._limits, now)

    def get_emitter(self, conf: Mapping[str, Any]) -> _RateEmitter:
        """Return the worker's side."""
        return _RateEmitter()


class _RateCoordinator(ThrottledCoordinator):
    """Says which rows make up a batch, by the clock."""

    def __init__(self, rate: float, ramp_up_s: float, limits: _Limits, now: Callable[[], float]) -> None:
        self._rate, self._ramp_up_s, self._limits, self._now = rate, ramp_up_s, limits, now
        self._schedule: RowSchedule | None = None

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Take what is due after the batch before; None if that is nothing yet, or all rows were emitted."""
        start = 0 if previous is None else int(previous["end"])
        schedule = self._schedule = self._schedule_from(start, previous)
        end = min(self._end(schedule), start + self._most(self._limits.rows_per_batch))
        return {"start": start, "end": end, **asdict(schedule)} if end > start else None

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[RatePart]:
        start, rows = int(definition["start"]), int(definition["end"]) - int(definition["start"])
        count = min(rows, self._limits.partitions or max(1, min(parallelism, rows // _ROWS_PER_PART)))
        bounds = [start + rows * k // count for k in range(count + 1)]
        return [(_schedule_of(definition), *each) for each in pairwise(bounds)]

    def size(self, definition: Definition) -> int:
        return _ROW_BYTES * (int(definition["end"]) - int(definition["start"]))

    def lag(self, definition: Definition) -> Lag | None:
        if not self._rate and self._limits.rows is None:
            return None
        return Lag(max(0, self._end(_schedule_of(definition)) - int(definition["end"])), "records")

    def _schedule_from(self, start: int, previous: Definition | None) -> RowSchedule:
        """Return the schedule of the row `start`: the one before, or a new one if there was none or the rate changed."""
        if not self._rate:
            return RowSchedule(start, self._now_us(), 0.0, 0.0)
        old = self._schedule if previous is None else _schedule_of(previous)
        if old is None:
            return RowSchedule(start, self._now_us(), self._rate, self._ramp_up_s)
        if (old.rows_per_second, old.ramp_up_s) == (self._rate, self._ramp_up_s):
            return old
        return RowSchedule(start, int(old.times_of(start, start + 1)[0]), self._rate, self._ramp_up_s)

    def _end(self, schedule: RowSchedule) -> int:
        """Return the number of the first row that is not due, as of the last tick."""
        last = self._limits.rows
        if not self._rate:
            return last if last is not None else schedule.from_row + self._limits.rows_per_batch
        tick = self._limits.tick_us
        due = schedule.due(schedule.from_us + (self._now_us() - schedule.from_us) // tick * tick)
        return due if last is None else min(due, last)

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)


class _RateEmitter:
    """Makes the rows of a part."""

    is_quick = True  # it never waits, so the loop may call it

    def emit(self, part: RatePart) -> Iterator[pa.Table]:
        """Give the rows, in tables of about two megabytes."""
        schedule, start, end = part
        schema = schema_of(_FIELDS)
        for at in range(start, end, _ROWS_PER_TABLE):
            stop = min(end, at + _ROWS_PER_TABLE)
            values = pa.array(np.arange(at, stop, dtype=np.int64))
            times = pa.array(schedule.times_of(at, stop)).cast(schema.field("timestamp").type)
            yield pa.Table.from_arrays([values, times], schema=schema)


def _schedule_of(definition: Definition) -> RowSchedule:
    return RowSchedule(*(definition[name] for name in RowSchedule.__dataclass_fields__))
