"""Zones of time, by name or as an offset: which there are, and when their clocks change.

The rules are Python's `zoneinfo`: those of the machine, or of the package `tzdata` where it has none.
"""

from __future__ import annotations

import difflib
import re
from calendar import isleap
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from trident.errors import TopologyError

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_FIRST, _LAST = -62_135_510_400, 253_402_214_400  # seconds, a day within the years that a datetime has


def checked_zone(call: str, zone: object) -> str:
    """Return the name of a zone; `TopologyError` if there is none of this name."""
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
def zone_of(name: str) -> tzinfo:
    """Return a zone."""
    if offset := _OFFSET.fullmatch(name):
        return timezone((-1 if offset[1] == "-" else 1) * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    return ZoneInfo(name)


@lru_cache(maxsize=1 << 14)
def changes_in(zone: str, year: int) -> list[tuple[int, int]]:
    """Return from when on which offset from UTC holds, both in seconds: from the beginning of the year, and from each change.

    Days with two changes that take each other back are not seen; no zone has one.
    """
    first = round((datetime(year, 1, 1, tzinfo=UTC) - _BEGINNING).total_seconds())
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
    moment = _BEGINNING + timedelta(seconds=min(max(second, _FIRST), _LAST))
    offset = moment.astimezone(zone_of(zone)).utcoffset()
    assert offset is not None, zone
    return round(offset.total_seconds())
