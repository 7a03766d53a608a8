"""What clocks show, and when: compared with `zoneinfo`, moment by moment, about changes of the clocks."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest

from trident.operations.zones import changes_in
from trident.runtime.steps.local_times import LocalClock

S = 1_000_000
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
ABOUT = [
    ("Europe/Berlin", datetime(2024, 3, 31, 1)),
    ("Europe/Berlin", datetime(2024, 10, 27, 1)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3)),  # no midnight
    ("America/Sao_Paulo", datetime(2018, 2, 18, 2)),  # set back from midnight
    ("America/Havana", datetime(2024, 11, 3, 5)),  # midnight twice
    ("America/St_Johns", datetime(2010, 11, 7, 2, 31)),  # set back from a minute after midnight
    ("Australia/Lord_Howe", datetime(2024, 4, 6, 15)),  # by half an hour
    ("Australia/Adelaide", datetime(2024, 4, 6, 16, 30)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10)),  # a day left out
    ("America/Toronto", datetime(1919, 3, 31, 4, 30)),  # from 23:30 to 00:30
    ("Asia/Kathmandu", datetime(1985, 12, 31, 18, 30)),
    ("Europe/Lisbon", datetime(1912, 1, 1)),  # at New Year
    ("Europe/London", datetime(1970, 1, 1)),
]


def us(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - BEGINNING) // timedelta(microseconds=1)


def shown(zone: str, at: int) -> int:
    """What clocks show, by `zoneinfo`."""
    return us((BEGINNING + timedelta(microseconds=at)).astimezone(ZoneInfo(zone)).replace(tzinfo=None))


def moments_about(moment: datetime, chosen: random.Random, count: int = 60) -> list[int]:
    near = [us(moment) + step for step in (-S, -1, 0, 1, S)]
    return sorted([*near, *(us(moment) + chosen.randint(-30 * 3600 * S, 30 * 3600 * S) for _ in range(count))])


@pytest.mark.parametrize(("zone", "moment"), ABOUT)
def test_clocks_show_what_zoneinfo_says(zone: str, moment: datetime) -> None:
    given = moments_about(moment, random.Random(1))
    assert LocalClock.of(zone, S).local(np.array(given)).tolist() == [shown(zone, at) for at in given]


@pytest.mark.parametrize(("zone", "moment"), ABOUT)
def test_a_time_begins_and_is_over_when_clocks_say_so(zone: str, moment: datetime) -> None:
    clock, minute = LocalClock.of(zone, S), 60 * S
    moments = range(us(moment) - 30 * 60 * minute, us(moment) + 30 * 60 * minute, 10 * minute)
    local = [shown(zone, at) for at in moments]
    for time in range(local[0] + minute, local[-1], 30 * minute):
        (begins,), (over,) = clock.begins(np.array([time])), clock.is_over(np.array([time]))
        assert begins <= next(at for at, there in zip(moments, local, strict=True) if there >= time)
        assert shown(zone, int(begins)) >= time
        assert shown(zone, int(begins) - 1) < time
        assert shown(zone, int(over) - 1) < time
        assert all(there >= time for at, there in zip(moments, local, strict=True) if at >= over)
        assert clock.reached(int(over)) >= time > clock.reached(int(over) - 1)


@pytest.mark.parametrize("zone", sorted({zone for zone, _ in ABOUT}))
def test_changes_come_in_order_and_once(zone: str) -> None:
    starts = [start for year in range(1900, 2040) for start, _ in changes_in(zone, year)]
    assert starts == sorted(set(starts))


def test_moments_far_apart_are_converted_together() -> None:
    given = [us(datetime(year, 7, 1, 12)) for year in (1, 1800, 1944, 2024, 2500, 9999)]
    found = LocalClock.of("Europe/Berlin", S).local(np.array(given)).tolist()
    assert found == [shown("Europe/Berlin", at) for at in given]
    ends = [us(datetime(1, 1, 1)), us(datetime(9999, 12, 31, 23, 59, 59))]
    assert [local - at for local, at in zip(LocalClock.of("Asia/Tokyo", S).local(np.array(ends)), ends, strict=True)] == [
        33_539 * S, 32_400 * S,
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Europe/Berlin"])
def test_hours_fit_into_the_changes_of_most_clocks_and_days_do_not(zone: str) -> None:
    hour, at = 3600 * S, np.array([us(datetime(2024, month, 1)) for month in (1, 7)])
    of_hours = LocalClock.of(zone, S, hour).local(at) - at
    assert of_hours.tolist() == [(hour // 2) * (zone == "Asia/Kolkata")] * 2
    assert len(set((LocalClock.of(zone, S, 24 * hour).local(at) - at).tolist())) == 1 + (zone == "Europe/Berlin")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("year", [1883, 1911, 1919, 1941, 1945, 1979, 1987, 2010, 2024])
def test_no_change_of_any_clock_is_overlooked(year: int) -> None:
    moments = [us(datetime(year, 1, 1) + timedelta(hours=hour)) for hour in range(365 * 24)]
    for zone in sorted(available_timezones()):
        local = LocalClock.of(zone, S).local(np.array(moments))
        assert local.tolist() == [shown(zone, moment) for moment in moments], (zone, year, changes_in(zone, year))
