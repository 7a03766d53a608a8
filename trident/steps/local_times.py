"""What clocks show in a zone, of whole columns of moments; and the moments at which they show a time.

Where clocks are set back they show times twice, and where they are set ahead some never. So a time begins at the first moment
at which clocks show it, or a later one; and it is over when they will never show an earlier one again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.moments import changes_in, zone_of
from trident.steps.key_columns import Ints

_DAY_S = 86_400
_FAR = 1 << 62
_US = 1_000_000


class LocalClock:
    """The clocks of a zone, in numbers of which a second has `unit`, from 1970 on; `fixed`: an offset that stays."""

    def __init__(self, zone: str, unit: int, fixed: int | None = None) -> None:
        self._zone, self._unit = zone, unit
        self._last = (-_FAR, -_FAR)
        self._fixed = None if fixed is None else (np.array([-_FAR]), np.array([fixed]))

    @staticmethod
    @lru_cache(maxsize=256)
    def of(zone: str, unit: int, slide: int = 0) -> LocalClock:
        """Return the clocks of a zone, for windows that end at the multiples of `slide`."""
        # If that fits into every change of the clocks since 1970, windows are as long as ever, by an offset that stays.
        tz = zone_of(zone)
        if isinstance(tz, timezone):
            return LocalClock(zone, unit, changes_in(zone, 1970)[0][1] * unit)
        if 0 < slide < _DAY_S * unit:
            found = {offset * unit % slide for year in range(1970, 2038) for _, offset in changes_in(zone, year)}
            if len(found) == 1:
                return LocalClock(zone, unit, found.pop())
        return LocalClock(zone, unit)

    def local(self, moments: Ints) -> Ints:
        starts, offsets = self._pieces(moments)
        return moments + offsets[np.searchsorted(starts, moments, "right") - 1]

    def earliest_from(self, moment: int) -> int:
        """Return the latest time so that clocks show no earlier one from a moment on."""
        asked, reached = self._last
        if asked != moment:
            starts, offsets = self._pieces(np.array([moment]))
            at = int(np.searchsorted(starts, moment, "right")) - 1
            reached = int(min([moment + offsets[at], *(starts + offsets)[at + 1 :]]))
            self._last = moment, reached  # for one frontier it is asked for each pane
        return reached

    def begins(self, local: Ints) -> Ints:
        """Return the first moments at which clocks show a time, or a later one."""
        starts, offsets = self._pieces(local)
        at = np.searchsorted(starts[1:] + offsets[:-1], local, "right")
        return np.asarray(np.maximum(starts[at], local - offsets[at]), np.int64)

    def is_over(self, local: Ints) -> Ints:
        starts, offsets = self._pieces(local)
        at = np.searchsorted(starts + offsets, local, "left") - 1
        return np.asarray(np.minimum(np.append(starts, _FAR)[at + 1], local - offsets[at]), np.int64)

    def moments(self, local: Ints) -> Ints:
        """Return the moments at which clocks show times, by the offset before a change where there are two or none."""
        starts, offsets = self._pieces(local)
        changed = starts[1:] + np.maximum(offsets[1:], offsets[:-1])
        return local - offsets[np.searchsorted(changed, local, "right")]

    def _pieces(self, about: Ints) -> tuple[Ints, Ints]:
        """Return from when on which offset holds, for all that is within two days of moments, or of local times."""
        if self._fixed is not None or not len(about):
            return self._fixed or (np.array([-_FAR]), np.array([0]))
        days = about // (_DAY_S * self._unit)
        first, last = _years(np.array([days.min() - 2, days.max() + 2]))
        if last - first <= 16:
            years = set(range(first, last + 1))
        else:
            years = {first, last, *(year + more for year in _years(np.unique(days)) for more in (-1, 0, 1))}
        known = sorted({min(max(year, 1), 9999) for year in years})
        pieces = [piece for year in known for piece in changes_in(self._zone, year)]
        found = np.array(pieces, np.int64).T * self._unit
        return found[0], found[1]


def _years(days: Ints) -> list[int]:
    years: list[int] = (days.astype("M8[D]").astype("M8[Y]").astype(np.int64) + 1970).tolist()
    return years


def _convert_times(value: Any, type_: pa.DataType, convert: Callable[[Ints], Ints]) -> Any:
    if isinstance(value, pa.Scalar):
        return _convert_times(pa.array([value.as_py()], value.type), type_, convert)[0]
    numbers = pc.fill_null(value.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    made = pa.array(convert(np.asarray(numbers, np.int64)), pa.int64())
    return pc.if_else(pc.is_valid(value), made, None).cast(type_)


def in_zone(value: Any, zone: str, type_: pa.DataType) -> Any:
    return _convert_times(value, type_, LocalClock.of(zone, _US).local)


def to_utc(value: Any, zone: str) -> Any:
    """Return the moments at which clocks show what timestamps show in UTC."""
    return _convert_times(value, value.type, LocalClock.of(zone, _US).moments)


def truncate_to(value: Any, unit: str, zone: str) -> Any:
    """Return when the unit began that clocks show at moments."""
    clock = LocalClock.of(zone, _US)

    def began(moments: Ints) -> Ints:
        local = clock.local(moments)
        shown = pc.floor_temporal(pa.array(local).cast(pa.timestamp("us")), unit=unit, week_starts_monday=True)
        floor = shown.cast(pa.int64()).to_numpy()
        first = clock.begins(floor)
        if unit not in ("hour", "minute", "second"):
            return first
        again = moments - (local - floor)  # of an hour that is shown twice, the second one
        return np.where(clock.local(again) == floor, again, first)

    return _convert_times(value, value.type, began)
