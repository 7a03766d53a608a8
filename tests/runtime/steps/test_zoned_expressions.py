"""Days and hours of a zone in expressions and in SQL text, compared with `zoneinfo` and with Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.runtime.steps.test_local_times import ABOUT
from trident import TopologyError
from trident.arrow import arrow_type, schema_of
from trident.fields import Fields
from trident.operations import Expression, col, lit, sql
from trident.operations.expression_types import type_of
from trident.runtime.steps.vector_steps import evaluate

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
def test_dates_and_parts_are_those_that_clocks_show(zone: str, moment: datetime) -> None:
    given = moments(moment)
    local = [at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for at in given]
    assert values(col("u").in_zone(zone), given) == local
    assert values(col("u").in_zone(zone).cast("date"), given) == [at.date() for at in local]
    assert values(col("u").in_zone(zone).date_part("hour"), given) == [at.hour for at in local]
    assert values(sql(f"to_date(from_utc_timestamp(u, '{zone}'))"), given) == [at.date() for at in local]


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
