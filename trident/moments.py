"""Moments and dates as texts, the one reader of them for files, records, entries, stores, keys, and casts; and zones of time.

ISO 8601, as Arrow and Spark read it: `2024-03-31`, `2024-03-31 02:30`, `2024-03-31T02:30:00.5+02:00`; white space around it
is passed over. What a text does not say is not guessed, and what its type cannot hold is not left out: a `timestamp` has an
offset (`Z`, `+02:00`, `+0200`, `+02`), a `timestamp_ntz` has none, a `date` has no time; nothing is finer than microseconds.
"""

import datetime as dt
import difflib
import re
from calendar import isleap
from functools import cache, lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from trident.errors import TopologyError

_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?)(Z|[+-]\d\d(?::?[0-5]\d)?)?)?", re.ASCII
)
_FINER = re.compile(r"\.\d{6}\d*[1-9]")
_LIKE = {"date": "2024-03-31", "timestamp": "2024-03-31T02:30:00Z", "timestamp_ntz": "2024-03-31T02:30:00"}


MOMENTS = frozenset(_LIKE)
"""The types that are read."""

_ASCII_BLANKS = r"[\t-\r\x1c-\x20]*"
IN_SPARK = (
    rf"^{_ASCII_BLANKS}\d{{4}}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?"
    rf"(Z|[+-](0\d|1[0-7])(:?[0-5]\d)?|[+-]18(:?00)?)?)?)?)?{_ASCII_BLANKS}$"
)
"""Of the texts that are read those that Spark reads too, as a regular expression: an offset follows seconds, up to 18:00."""


def moment_of(text: str, type_: str, in_utc: bool = False) -> Any:
    """Return the date, the aware datetime in UTC or the naive one that a text says; `ValueError` if it is none.

    `in_utc`: whoever wrote a `timestamp` without an offset means UTC.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a {type_}, which is written as {_LIKE[type_]}")
    day, time, offset = found.groups()
    if in_utc and type_ == "timestamp":
        offset = offset or "Z"
    if problem := _misfit(type_, time or "", offset):
        raise ValueError(f"{text!r} {problem}")
    try:
        if type_ == "date":
            return dt.date.fromisoformat(day)
        moment = dt.datetime.fromisoformat(f"{day}T{(time or '00')[:15]}{offset or ''}")
        return moment.astimezone(dt.UTC) if type_ == "timestamp" else moment
    except OverflowError:
        raise ValueError(f"{text!r} is in UTC beyond the years 1 to 9999") from None
    except ValueError as error:
        raise ValueError(f"{text!r} is not a {type_}: {error}") from None


def _misfit(type_: str, time: str, offset: str | None) -> str | None:
    if type_ == "date":
        return time and "has a time, which a date does not: declare a timestamp or a timestamp_ntz"
    if type_ == "timestamp_ntz" and offset:
        return "has an offset, which a timestamp_ntz does not: declare a timestamp, or write it without one"
    if type_ == "timestamp" and not offset:
        return (
            "has no offset, so which moment it is depends on a time zone: write it with one, as in …Z, or declare a "
            "timestamp_ntz"
        )
    return "is finer than microseconds: round it where it is written" if _FINER.search(time) else None


_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
_BEGINNING = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY = 86_400
_FIRST, _LAST = -62_135_510_400, 253_402_214_400  # seconds, a day within the years that a datetime has


def checked_format(call: str, format_: object) -> str:
    """Return a format of `strptime`; `TopologyError` if it is none that says a moment or, in `to_date`, a date."""
    if not isinstance(format_, str):
        raise TopologyError(f"{call} takes a text, got {format_!r}")
    if not re.search("%-?[YyGFDcxs]", format_):
        raise TopologyError(f"{call}: {format_!r} names no year, which would then be 1900")
    if call == "to_date" and "%z" in format_:
        raise TopologyError(
            f"to_date: {format_!r} has an offset, which a date does not: to_timestamp, then cast to a date"
        )
    return format_


def checked_zone(call: str, zone: object) -> str:
    try:
        if isinstance(zone, str):
            zone_of(zone)
            return zone
    except (ValueError, OSError, ZoneInfoNotFoundError):
        pass
    known = available_timezones()
    near = difflib.get_close_matches(str(zone), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "" if known else "; there are no zones here: pip install tzdata"
    raise TopologyError(
        f"{call} got the zone {zone!r}, which is unknown: give a name like 'Europe/Berlin', or an offset such as '+05:30'{hint}"
    )


@cache
def zone_of(name: str) -> dt.tzinfo:
    if offset := _OFFSET.fullmatch(name):
        return dt.timezone((-1 if offset[1] == "-" else 1) * dt.timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    return ZoneInfo(name)


@lru_cache(maxsize=1 << 14)
def changes_in(zone: str, year: int) -> list[tuple[int, int]]:
    """Return, in seconds, from when on which offset from UTC holds: from the beginning of the year, and from each change."""
    first = round((dt.datetime(year, 1, 1, tzinfo=dt.UTC) - _BEGINNING).total_seconds())
    found, next_year = [(first, _offset(zone, first))], first + (366 if isleap(year) else 365) * _DAY
    for low in range(first, next_year, _DAY):
        high = low + _DAY
        if (after := _offset(zone, high)) == found[-1][1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _offset(zone, middle) == after else (middle, high)
        if high < next_year:  # else the next year begins with it
            found.append((high, after))
    return found


def _offset(zone: str, second: int) -> int:
    moment = _BEGINNING + dt.timedelta(seconds=min(max(second, _FIRST), _LAST))
    offset = moment.astimezone(zone_of(zone)).utcoffset()
    assert offset is not None, zone
    return round(offset.total_seconds())
