"""When which row is due: a steady rate after an optional ramp."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Schedule"]

_US = 1_000_000


@dataclass(frozen=True)
class Schedule:
    """The rows from number `from_row` on, of which none is due before `from_us`.

    Attributes
    ----------
    from_row
        The number of the first row.
    from_us
        Microseconds since 1970.
    rows_per_second
        The rate after the ramp; 0 if all rows are due at `from_us`.
    ramp_up_s
        For so many seconds the rate grows from 0 to `rows_per_second`, in proportion to the time.
    """

    from_row: int
    from_us: int
    rows_per_second: float
    ramp_up_s: float

    def due(self, at_us: int) -> int:
        """Return the number of the first row that is not due yet at a time."""
        elapsed = max(0, at_us - self.from_us) / _US
        if elapsed < self.ramp_up_s:
            return self.from_row + math.floor(self.rows_per_second * elapsed * elapsed / (2 * self.ramp_up_s))
        return self.from_row + math.floor(self.rows_per_second * (elapsed - self.ramp_up_s / 2))

    def time_of(self, row: int) -> int:
        """Return when a row is due, in microseconds since 1970."""
        return int(self.times_of(row, row + 1)[0])

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
