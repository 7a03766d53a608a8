"""What users implement to keep a value and timers for each key of a stream, for `GroupedStream.process`.

A time is what the field of the event time has: a datetime, or a whole number of milliseconds since 1970. By the time of the
batch it is a datetime of UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from trident.operations.interfaces import Operation
from trident.operations.windows import FIRST_MS, LAST_MS, WindowConfig
from trident.tuples import TridentCollector, TridentTuple

T = TypeVar("T")
_US = timedelta(microseconds=1)
_BEGINNINGS = {"timestamp": datetime(1970, 1, 1, tzinfo=UTC), "timestamp_ntz": datetime(1970, 1, 1)}


@dataclass(frozen=True)
class TimersConfig(WindowConfig):
    """By which time the timers of a process fire: the watermark of an event time, or the time of the batch.

    It has no length: what a key keeps is kept until the user's code lets go of it.

    `time_type`: the type of the times that the user's code sees.
    """

    length: int = 1
    slide: int = 1
    time_type: str = "timestamp"
    counts = False
    what = "process"
    keeps_results = False

    @property
    def per_ms(self) -> int:
        return 1 if self.time_type == "bigint" else 1000

    @property
    def kept_ms(self) -> None:
        return None

    def __str__(self) -> str:
        if (times := self.event_time) is None:
            return "timers by the time of the batch"
        return f"timers by event time {times.field}, delay {self._amount(times.delay_ms)}"


def time_of(ordinate: int, time_type: str) -> Any:
    """Return a time of a type: of milliseconds since 1970 for a bigint, else of microseconds."""
    return ordinate if time_type == "bigint" else _BEGINNINGS[time_type] + ordinate * _US


class Timers:
    """The timers of one key.

    Attributes
    ----------
    key
        The grouping fields.
    now
        The watermark after this batch, or the time of this batch. Timers up to it fire in this batch, after its tuples.
    """

    def __init__(self, key: TridentTuple, now: int, times: set[int], time_type: str, fires: int | None = None) -> None:
        self.key, self.now, self._type = key, time_of(now, time_type), time_type
        self._times, self._fires = times, fires

    @property
    def times(self) -> list[Any]:
        """The times of its timers, earliest first."""
        return [time_of(each, self._type) for each in sorted(self._times)]

    def set(self, time: Any) -> None:
        """Set a timer: `on_timer` is called with this time. Setting the same time twice makes one timer.

        Parameters
        ----------
        time
            To the microsecond, if it is a datetime. A timer that is not after `now` fires in this batch.

        Raises
        ------
        ValueError
            `on_timer` sets a timer that is not later than the one that fires: it would fire for ever.
        TypeError
            It is not a time as this process has them.
        """
        ordinate = self._ordinate_of(time)
        if self._fires is not None and ordinate <= self._fires:
            raise ValueError(
                f"on_timer of {time_of(self._fires, self._type)} sets a timer at {time}, which is not later: it would fire for "
                "ever. Set a later one, or do now what it would do"
            )
        self._times.add(ordinate)

    def delete(self, time: Any) -> None:
        """Delete the timer of a time, if there is one."""
        self._times.discard(self._ordinate_of(time))

    def clear(self) -> None:
        """Delete all timers of the key."""
        self._times.clear()

    def _ordinate_of(self, time: Any) -> int:
        if self._type == "bigint":
            if isinstance(time, int) and not isinstance(time, bool) and FIRST_MS <= time <= LAST_MS:
                return time
            wanted = "a whole number of milliseconds since 1970, of the years 1 to 9999"
        else:
            beginning = _BEGINNINGS[self._type]
            if isinstance(time, datetime) and (time.tzinfo is None) == (beginning.tzinfo is None):
                return (time - beginning) // _US
            wanted = f"a datetime {'without' if beginning.tzinfo is None else 'with'} a time zone"
        raise TypeError(f"a timer at {time!r}: the times of this process are {self._type}, so give {wanted}")


class KeyedProcess(Operation, Generic[T]):
    """Sees the tuples of each key one by one, and is called back at times that it sets; may emit at any time.

    Each key has one value, of any type that states store: numbers, text, bytes, times, lists, dicts, tuples and the like. It is
    None until something else is returned. Each method returns the value to keep; None removes it.
    """

    def process(self, value: T | None, tuple: TridentTuple, timers: Timers, collector: TridentCollector) -> T | None:
        """Take one tuple of the input fields; return the value to keep."""
        raise NotImplementedError

    def on_timer(self, value: T | None, time: Any, timers: Timers, collector: TridentCollector) -> T | None:
        """Act on a timer that fires; return the value to keep."""
        raise NotImplementedError
