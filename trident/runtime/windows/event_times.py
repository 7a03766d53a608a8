"""The event times of tuples: those that are none, and what is said of values that are probably of another unit.

What is said is only a warning, so it may ask this machine's clock. Which tuples have a time does not depend on it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.operations.metrics import count_again, remark
from trident.operations.windows import first_and_last
from trident.runtime.steps.key_columns import Ints

NOWHERE = -(1 << 62)
"""The time of a tuple that is passed on although no calendar has its time: a late row, which does not move the watermark."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 1000, "nanoseconds": 1}
_PLAUSIBLE = 946_684_800, 4_102_444_800  # the years 2000 to 2099 in seconds
_DAY_MS = 86_400_000


class WithTimes(NamedTuple):
    """Tuples that have a time, and their times in the unit of the type."""

    tuples: pa.Table
    at: Ints


def timed(table: pa.Table, step: str, state: str, field: str, keeps_wrong: bool = False) -> WithTimes:
    """Return the tuples that have a time; those without are dropped and counted.

    `keeps_wrong`: whether to keep those whose time no calendar has, at `NOWHERE`.
    """
    column = table.column(field)
    per_ms, times = 1 if pa.types.is_integer(column.type) else 1000, column.cast(pa.int64())
    first, last = first_and_last(per_ms)
    low, high = pc.min_max(times).as_py().values()
    if low is not None and (low < first or high > last):
        wrong = low if low < first else high
        remark(step, "no time", _no_time(field, wrong, per_ms, state, keeps_wrong))
    elif low is not None:
        _look_at(step, state, field, low, high, per_ms)
        if not column.null_count:
            return WithTimes(table, np.asarray(times.to_numpy(), np.int64))
    known = pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), False)
    if without := table.num_rows - (pc.sum(known).as_py() or 0):
        count_again({f"{state}/no_event_time": without})
    if not keeps_wrong:
        return WithTimes(table.filter(known), np.asarray(times.filter(known).to_numpy(), np.int64))
    there = pc.is_valid(times)
    at = pc.if_else(known, times, NOWHERE).filter(there).to_numpy()
    return WithTimes(table.filter(there), np.asarray(at, np.int64))


def _no_time(field: str, value: int, per_ms: int, state: str, keeps_wrong: bool) -> str:
    unit = "milliseconds" if per_ms == 1 else "microseconds"
    become = f"is not a tuple of {state!r}, but a late row" if keeps_wrong else f"is left out of {state!r}"
    return (
        f"the event time {field}={value} in {unit} since 1970 is not within the years 1 to 9999{_guessed(value, unit)}. What "
        f"has such a time {become}. Convert the field before; what was committed until then stays out"
    )


def _guessed(value: int, unit: str) -> str:
    """Say in which other units a value would be a time of these years."""
    others = [
        each for each in _UNITS if each != unit and _PLAUSIBLE[0] <= value * _UNITS[each] // 10**9 <= _PLAUSIBLE[1]
    ]
    return "".join(f"; in {each} it would be {_shown(value, each)}" for each in others)


def _shown(value: int, unit: str) -> str:
    return f"{_BEGINNING + timedelta(microseconds=value * _UNITS[unit] // 1000):%Y-%m-%d %H:%M:%S} UTC"


def _look_at(step: str, state: str, field: str, low: int, high: int, per_ms: int) -> None:
    """Say so of times that are times, but probably wrong."""
    ms, unit = high // per_ms, "milliseconds" if per_ms == 1 else "microseconds"
    if _guessed(low, unit) and (guess := _guessed(high, unit)):
        taken = f"is {_shown(high, unit)}, because it is taken as {unit} since 1970"
        remark(step, "unit", f"the event time {field}={high} {taken}{guess}. If so, convert the field before {state!r}")
    if (ahead := ms - time.time_ns() // 1_000_000) > _DAY_MS:
        what = (
            f"the event time {_shown(ms, 'milliseconds')} in {field!r} is {ahead // _DAY_MS:,} days ahead of the clock"
        )
        then = f"the watermark of {state!r} goes with it, and stays there: earlier tuples are late. If it is not meant, filter "
        more = "such times out before, and give another state_name, which begins again"
        remark(step, "ahead", f"{what}; {then}{more}")
