"""What clocks show, and when, moment by moment and in expressions: compared with `zoneinfo` and with Spark."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from trident import TopologyError
from trident.arrow import arrow_type, schema_of
from trident.fields import Fields
from trident.moments import changes_in
from trident.operations import Expression, col, lit, sql
from trident.operations.expression_types import type_of
from trident.steps.local_times import LocalClock
from trident.steps.vector_steps import evaluate

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
        assert clock.earliest_from(int(over)) >= time > clock.earliest_from(int(over) - 1)


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


FIELDS = Fields("u: timestamp, l: timestamp_ntz, d: date")


def moments(moment: datetime, count: int = 60) -> list[datetime]:
    chosen = random.Random(3)
    return [moment.replace(tzinfo=UTC) + timedelta(seconds=chosen.randint(-90_000, 90_000)) for _ in range(count)]


def values(expression: Expression, given: Sequence[datetime | None]) -> list[Any]:
    batch = pa.RecordBatch.from_pylist([{"u": at} for at in given], schema=schema_of(FIELDS))
    found = evaluate(expression, batch)
    assert found.type == arrow_type(type_of(expression, FIELDS, "s"))
    made: list[Any] = found.to_pylist()
    return made


@pytest.mark.parametrize(("zone", "moment"), ABOUT)
def test_a_day_begins_with_the_first_moment_of_its_date(zone: str, moment: datetime) -> None:
    given, tz = moments(moment), ZoneInfo(zone)
    for at, began in zip(given, values(col("u").date_trunc("day", zone), given), strict=True):
        assert began <= at
        assert began.astimezone(tz).date() == at.astimezone(tz).date()
        assert (began - timedelta(microseconds=1)).astimezone(tz).date() < at.astimezone(tz).date()


def test_an_hour_that_clocks_show_twice_begins_twice() -> None:
    first = datetime(2024, 10, 27, 0, tzinfo=UTC)
    given = [first + timedelta(minutes=minutes) for minutes in (-1, 0, 59, 60, 119, 120)]
    hours = [first + timedelta(hours=hours) for hours in (-1, 0, 0, 1, 1, 2)]
    assert values(col("u").date_trunc("hour", "Europe/Berlin"), given) == hours
    lord_howe = datetime(2024, 4, 6, 15, 10, tzinfo=UTC)  # 01:40 for the second time
    assert values(col("u").date_trunc("hour", "Australia/Lord_Howe"), [lord_howe]) == [
        datetime(2024, 4, 6, 14, tzinfo=UTC)
    ]


def test_nulls_stay_and_a_plain_moment_is_converted() -> None:
    at = datetime(2024, 7, 1, 22, tzinfo=UTC)
    assert values(col("u").in_zone("+05:30"), [None, at]) == [None, datetime(2024, 7, 2, 3, 30)]
    assert values(lit(at).in_zone("Europe/Berlin").cast("date"), [None]) == [datetime(2024, 7, 2).date()]


@pytest.mark.parametrize("expression", [col("l").in_zone("Asia/Tokyo"), col("d").date_trunc("day", "Asia/Tokyo")])
def test_only_a_moment_has_a_zone(expression: Expression) -> None:
    with pytest.raises(TopologyError, match="takes a timestamp, which is a moment"):
        type_of(expression, FIELDS, "s")


@pytest.mark.spark
def test_texts_with_zones_give_what_spark_gives(spark: SparkSession) -> None:
    given = [at for _, moment in ABOUT for at in moments(moment, 12)]
    texts = [text for zone in sorted({zone for zone, _ in ABOUT}) for text in (
        f"from_utc_timestamp(u, '{zone}')", f"to_utc_timestamp(u, '{zone}')", f"convert_timezone('{zone}', u)",
        f"date_trunc('day', from_utc_timestamp(u, '{zone}'))", f"cast(from_utc_timestamp(u, '{zone}') as date)",
    )]  # fmt: skip
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = spark.createDataFrame(pa.table({"u": pa.array(given, pa.timestamp("us", "UTC"))})).coalesce(1)
        found = frame.selectExpr(*(f"{text} AS c{at}" for at, text in enumerate(texts))).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    for text, column in zip(texts, found.columns, strict=True):
        assert values(sql(text), given) == column.to_pylist(), text
