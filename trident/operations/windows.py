"""The configurations of windows and of processes with timers; and what users implement to keep timers for each key of a stream.

A tuple has an *ordinate*: its position for a count, for a duration a time in the unit of its type: microseconds of a timestamp,
else milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, Self, TypeVar

from trident.errors import TopologyError
from trident.fields import unquote
from trident.moments import checked_zone
from trident.operations.interfaces import Operation
from trident.tuples import TridentCollector, TridentTuple

_MS, _MOST = timedelta(milliseconds=1), timedelta(days=3_652_059)
_CHANGE_MS = 86_400_000  # clocks are changed by no more

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years that a datetime has, in milliseconds since 1970."""


def first_and_last(per_ms: int) -> tuple[int, int]:
    """Return the first and the last time that a datetime has, in a unit: 1 for milliseconds, 1000 for microseconds."""
    return FIRST_MS * per_ms, (LAST_MS + 1) * per_ms - 1


LATE = "$late"
"""The field of a window that also gives late tuples, true in their rows."""


def late_field(name: str) -> str:
    return f"{LATE}.{name}"


@dataclass(frozen=True)
class EventTime:
    """The field with the time of an event, and how long late events are waited for, in milliseconds."""

    field: str  # a timestamp, or a bigint of milliseconds since 1970
    delay_ms: int = 0  # how far the watermark is behind the latest event
    lateness_ms: int = 0  # how long beyond its end, by the watermark, a window is kept, and fires again
    per_ms: int = 1  # ordinates; 1000 of a timestamp

    @classmethod
    def of(cls, field: str, delay: timedelta, lateness: timedelta = timedelta(0)) -> EventTime:
        if not isinstance(field, str) or not field:
            raise TopologyError(f"an event time takes the name of one field, got {field!r}")
        return cls(unquote(field), milliseconds("delay", delay, 0), milliseconds("allowed_lateness", lateness, 0))

    @property
    def delay(self) -> int:
        return self.delay_ms * self.per_ms

    def of_type(self, type_: str) -> EventTime:
        return self if type_ == "bigint" else replace(self, per_ms=1000)


@dataclass(frozen=True)
class WindowConfig:
    """The configuration of a window. Each of the five kinds is made by its `of`; a process with timers has one of its own.

    Attributes
    ----------
    length, slide
        Numbers of tuples, or milliseconds. A tumbling window slides by its length.
    event_time
        Where the time of a tuple comes from; None if tuples are counted, or have the time of their batch.
    zone
        The time zone that decides where windows end; None: UTC, or that of the field itself.
    """

    length: int
    slide: int
    event_time: EventTime | None = None
    zone: str | None = None

    counts: ClassVar[bool]
    """Whether it counts tuples, and not time."""

    what: ClassVar[str] = "window"
    """What it configures, in a word."""

    keeps_results: ClassVar[bool] = True
    """Whether the results decide what is kept; else the user's code does."""

    def __post_init__(self) -> None:
        if not hasattr(self, "counts"):
            raise TopologyError("a WindowConfig is made by of: TumblingCountWindow.of(100), for example")
        for what, number in (("length", self.length), ("slide", self.slide)):
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 1 << 62:
                raise TopologyError(
                    f"a window with {what} {number!r}: give a whole number of {'tuples' if self.counts else 'milliseconds'}, "
                    "at least 1, or a duration: timedelta(minutes=1)"
                )
        if self.zone is not None:
            checked_zone("a window", self.zone)
        if self.slide > self.length:
            raise TopologyError(
                f"a window with length {self._amount(self.length)} and slide {self._amount(self.slide)}: the slide must not "
                "be greater than the length, or tuples in between would be in no window"
            )

    @property
    def kept_ms(self) -> int | None:
        """How long a tuple may have to be kept, in milliseconds of the window's time; None: until others come, however late."""
        times, longer = self.event_time or EventTime(""), _CHANGE_MS if self.zone else 0
        return None if self.counts else self.length + longer + times.delay_ms + times.lateness_ms

    @property
    def per_ms(self) -> int:
        """How many ordinates one of `length` and `slide` has."""
        return self.event_time.per_ms if self.event_time else 1

    def with_time_type(self, type_: str) -> Self:
        """Return the configuration for an event time of this type."""
        if self.zone is not None and type_ == "timestamp_ntz":
            raise TopologyError(
                f"a {self.what} of {self}: a timestamp_ntz is what clocks showed at its place, so leave out the zone"
            )
        return replace(self, event_time=self.event_time.of_type(type_)) if self.event_time else self

    @property
    def times(self) -> str:
        """The unit and the zone of its times; nothing for milliseconds in UTC."""
        return (" microseconds" if self.per_ms > 1 else "") + (f" in zone {self.zone}" if self.zone else "")

    @property
    def by_batch_time(self) -> bool:
        """Whether a tuple has the time of its batch."""
        return not self.counts and self.event_time is None

    def _amount(self, number: int) -> str:
        return str(number) if self.counts else str(number * _MS)

    def __str__(self) -> str:
        kind = "count" if self.counts else "time"
        if self.slide == self.length:
            shown = f"tumbling {kind} of {self._amount(self.length)}"
        else:
            shown = f"sliding {kind} of {self._amount(self.length)} every {self._amount(self.slide)}"
        return shown if self.zone is None else f"{shown} in zone {self.zone}"


class _CountWindow(WindowConfig):
    counts = True


@dataclass(frozen=True)
class _DurationWindow(WindowConfig):
    counts = False

    def by_event_time(
        self, field: str, delay: timedelta = timedelta(0), allowed_lateness: timedelta = timedelta(0)
    ) -> Self:
        """Return the window over the times in a field, in place of the time of the batch.

        The *watermark* is the latest time seen so far less `delay`; it never goes back. A window fires when the watermark
        reaches its end. It is kept until the watermark is `allowed_lateness` beyond; a tuple that comes in that time makes
        it fire once more, complete. Later tuples are dropped and counted.
        """
        return replace(self, event_time=EventTime.of(field, delay, allowed_lateness))

    def __str__(self) -> str:
        if (times := self.event_time) is None:
            return super().__str__()
        delay, lateness = self._amount(times.delay_ms), self._amount(times.lateness_ms)
        return f"{super().__str__()} by event time {times.field}, delay {delay}, allowed lateness {lateness}"


class TumblingCountWindow(_CountWindow):
    """Every `n` tuples."""

    @classmethod
    def of(cls, n: int) -> TumblingCountWindow:
        """Return the window of `n` tuples."""
        return cls(n, n)


class SlidingCountWindow(_CountWindow):
    """After every `slide` tuples the last `length` of them; the first windows are not full yet."""

    @classmethod
    def of(cls, length: int, slide: int) -> SlidingCountWindow:
        """Return the window of `length` tuples that fires after every `slide`."""
        return cls(length, slide)


class TumblingDurationWindow(_DurationWindow):
    """The tuples of each period, counted from 1970."""

    @classmethod
    def of(cls, duration: timedelta, zone: str | None = None) -> TumblingDurationWindow:
        """Return the window of a duration of at least a millisecond.

        `zone`: the zone that decides when windows end, `"Europe/Berlin"` or `"+05:30"`: a day may have 23 or 25 hours there.
        """
        length = milliseconds("length", duration, 1)
        return cls(length, length, zone=zone)


class SlidingDurationWindow(_DurationWindow):
    """At every multiple of `slide` the tuples of the last `length`."""

    @classmethod
    def of(cls, length: timedelta, slide: timedelta, zone: str | None = None) -> SlidingDurationWindow:
        """Return the window of a duration that fires after every `slide`; `zone` as for `TumblingDurationWindow.of`."""
        return cls(milliseconds("length", length, 1), milliseconds("slide", slide, 1), zone=zone)


@dataclass(frozen=True)
class SessionWindow(WindowConfig):
    """The tuples of one key that come one after the other, each no more than a gap behind the one before.

    Its length and its slide are the gap.
    """

    counts = False

    @classmethod
    def of(cls, gap: timedelta, field: str, delay: timedelta = timedelta(0)) -> SessionWindow:
        """Return the sessions by the times in a field, a timestamp or a bigint of milliseconds since 1970.

        The *watermark* is the latest time seen so far, of all keys, less `delay`; it never goes back. A session is complete
        when the watermark is beyond its last tuple and the gap. Tuples may be out of order by as much as `delay`.
        """
        length = milliseconds("gap", gap, 1)
        return cls(length, length, EventTime.of(field, delay))

    def __str__(self) -> str:
        times = self.event_time or EventTime("")
        delay = self._amount(times.delay_ms)
        return f"sessions with gap {self._amount(self.length)} by event time {times.field}, delay {delay}"


def milliseconds(what: str, duration: timedelta, least: int) -> int:
    """Return a duration in milliseconds; `TopologyError` if it is not a whole number of them, or too short or too long."""
    if not isinstance(duration, timedelta):
        raise TopologyError(
            f"the {what} of a window by time is a timedelta, such as timedelta(minutes=1); got {duration!r}"
        )
    if not least * _MS <= duration <= _MOST or duration % _MS:
        raise TopologyError(
            f"{what} {duration!r} of a window: give whole milliseconds, at least {least} and at most 9,999 years"
        )
    return duration // _MS


T = TypeVar("T")
_US = timedelta(microseconds=1)
_BEGINNINGS = {"timestamp": datetime(1970, 1, 1, tzinfo=UTC), "timestamp_ntz": datetime(1970, 1, 1)}


@dataclass(frozen=True)
class TimersConfig(WindowConfig):
    """By which time the timers of a process fire: the watermark of an event time, or the time of the batch.

    It has no length: what a key keeps is kept until the user's code lets go of it.
    """

    length: int = 1
    slide: int = 1
    time_type: str = "timestamp"  # of the times that the user's code sees
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
