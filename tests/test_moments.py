"""Texts of moments and dates: every source and every cast reads them by the same rules, or refuses them by name."""

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import CsvFileSpout, JsonFileSpout
from spouts.kafka import Json
from spouts.redis.stream_server import Entry, EntryTables
from tests.spouts.reading import rows
from trident.alignment import read_formatted, read_moments
from trident.arrow import arrow_type
from trident.errors import SpoutError, TopologyError
from trident.moments import moment_of
from trident.operations import col
from trident.operations.sql import sql
from trident.steps.vector_steps import evaluate

OSLO = dt.timezone(dt.timedelta(hours=2))
WALL = dt.datetime(2024, 3, 31, 2, 30)
RIGHT: list[tuple[str, str, Any]] = [
    ("timestamp", "2024-03-31T02:30:00+02:00", WALL.replace(tzinfo=OSLO)),
    ("timestamp", "2024-03-31 02:30:00.000000+0200", WALL.replace(tzinfo=OSLO)),
    ("timestamp", "2024-03-31T02:30+02", WALL.replace(tzinfo=OSLO)),
    ("timestamp", "2024-03-31T02:30:00Z", WALL.replace(tzinfo=dt.UTC)),
    ("timestamp_ntz", "2024-03-31T02:30:00", WALL),
    ("timestamp_ntz", " 2024-03-31 02:30 ", WALL),
    ("timestamp_ntz", "2024-03-31", WALL.replace(hour=0, minute=0)),
    ("timestamp_ntz", "2024-03-31T02:30:00.123456000", WALL.replace(microsecond=123456)),
    ("date", "2024-02-29", dt.date(2024, 2, 29)),
    ("date", " 0001-01-01", dt.date(1, 1, 1)),
]
WRONG = [
    ("timestamp", "2024-03-31T02:30:00", "has no offset"),
    ("timestamp", "2024-03-31", "has no offset"),
    ("timestamp", "2024-03-31T02:30:00.1234567Z", "is finer than microseconds"),
    ("timestamp", "0001-01-01T00:00:00+14:00", "beyond the years 1 to 9999"),
    ("timestamp", "9999-12-31T23:59:59-01:00", "beyond the years 1 to 9999"),
    ("timestamp", "2024-03-31T02:30:00 Europe/Oslo", "is not a timestamp, which is written as 2024-03-31T02:30:00Z"),
    ("timestamp_ntz", "2024-03-31T02:30:00+02:00", "has an offset"),
    ("timestamp_ntz", "2024-03-31T02:30:00Z", "has an offset"),
    ("timestamp_ntz", "2024-03-31T24:00:00", "hour must be in 0..23"),
    ("timestamp_ntz", "2024-12-31T23:59:60", "second must be in 0..59"),
    ("timestamp_ntz", "0000-01-01T00:00:00", "is out of range"),
    ("date", "2024-03-31T00:00:00", "has a time"),
    ("date", "2023-02-29", "day is out of range for month"),
    ("date", "0000-01-01", "is out of range"),
    ("date", "31.03.2024", "is not a date, which is written as 2024-03-31"),
]


def of_json(type_: str, text: str, folder: Path) -> Any:
    Path(folder, "a.json").write_text(json.dumps({"at": text}) + "\n")
    ((value,),) = rows(JsonFileSpout(folder, f"at: {type_}"))
    return value


def of_json_within(type_: str, text: str, folder: Path) -> Any:
    Path(folder, "a.json").write_text(json.dumps({"w": {"at": [None, text]}}) + "\n")
    ((value,),) = rows(JsonFileSpout(folder, f"w: struct<at:array<{type_}>>"))
    return value["at"][1]


def of_csv(type_: str, text: str, folder: Path) -> Any:
    Path(folder, "a.csv").write_text(f"n,at\n1,{text}\n")
    ((value,),) = rows(CsvFileSpout(folder, f"at: {type_}"))
    return value


def of_csv_with_line_ends(type_: str, text: str, folder: Path) -> Any:
    Path(folder, "a.csv").write_text(f"n,at\n1,{text}\n")
    ((value,),) = rows(CsvFileSpout(folder, f"at: {type_}", multiline=True, tail=0))
    return value


def of_kafka(type_: str, text: str, folder: Path) -> Any:
    (column,) = Json(f"at: {type_}").read(pa.array([json.dumps({"at": text}).encode()]))
    return column[0].as_py()


def of_redis(type_: str, text: str, folder: Path) -> Any:
    return EntryTables(f"at: {type_}", False).table([Entry("s", "1-0", {b"at": text.encode()})])["at"][0].as_py()


def of_a_cast(type_: str, text: str, folder: Path) -> Any:
    batch = pa.record_batch({"s": [text]})
    return evaluate(col("s").cast(type_), batch)[0].as_py()


def of_a_literal_cast(type_: str, text: str, folder: Path) -> Any:
    return evaluate(sql(f"{type_} '{text}'"), pa.record_batch({"s": ["x"]}))[0].as_py()


DOORS = [of_json, of_json_within, of_csv, of_csv_with_line_ends, of_kafka, of_redis, of_a_cast, of_a_literal_cast]


@pytest.mark.parametrize("read", DOORS)
def test_every_door_reads_a_moment_as_it_is_written(read: Callable[..., Any], tmp_path: Path) -> None:
    for type_, text, value in RIGHT:
        if text == "2024-03-31T02:30+02" and read is of_a_literal_cast:  # Spark wants seconds before an offset
            continue
        assert read(type_, text, tmp_path) == value, (type_, text)


@pytest.mark.parametrize("read", DOORS)
def test_every_door_refuses_a_moment_of_another_type_by_its_text(read: Callable[..., Any], tmp_path: Path) -> None:
    for type_, text, why in WRONG:
        if why == "has no offset" and read is of_a_literal_cast:  # written in the program, whose zone is UTC
            continue
        with pytest.raises((SpoutError, pa.ArrowInvalid, TopologyError)) as caught:
            read(type_, text, tmp_path)
        assert f"{text!r}" in str(caught.value)
        assert why in str(caught.value), (type_, text)


def test_a_line_with_a_moment_of_another_type_is_a_bad_line(tmp_path: Path) -> None:
    lines = ['{"at": "2024-03-31T02:30:00"}', '{"at": "2024-03-31T02:30:00+02:00"}']
    Path(tmp_path, "a.json").write_text("\n".join(lines) + "\n")
    assert rows(JsonFileSpout(tmp_path, "at: timestamp_ntz", bad_lines="bad")) == [(WALL, None), (None, lines[1])]
    with pytest.raises(
        SpoutError, match=r"line 2 of .*a.json \(at byte 30\) is not a row: at: '2024-03-31T02:30:00\+02:00' has"
    ):
        rows(JsonFileSpout(tmp_path, "at: timestamp_ntz"))


MOMENTS = st.datetimes(timezones=st.one_of(st.none(), st.just(dt.UTC), st.just(OSLO)))


@given(st.one_of(MOMENTS.map(dt.datetime.isoformat), st.text("2013-T:+Z. ", max_size=30)), st.sampled_from(("", "Z")))
def test_one_text_and_a_column_of_texts_are_read_alike(text: str, end: str) -> None:
    for type_ in ("timestamp", "timestamp_ntz", "date"):
        assert said_of_column(text + end, type_) == said_of_text(text + end, type_)


def said_of_text(text: str, type_: str) -> Any:
    try:
        return moment_of(text, type_)
    except ValueError as error:
        return f"at: {error}"


def said_of_column(text: str, type_: str) -> Any:
    try:
        return read_moments(pa.array([None, text]), arrow_type(type_), "at")[1].as_py()
    except pa.ArrowInvalid as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("30.02.2024", "%d.%m.%Y"),
        ("31.04.2024", "%d.%m.%Y"),
        ("2024-03-31 23:59:60", "%Y-%m-%d %H:%M:%S"),
        ("2024-03-31 23:59:60", "%F %T"),
        ("2024-03-31 02:30 CET", "%Y-%m-%d %H:%M %Z"),
        ("30.02.2024 00:30 +0200", "%d.%m.%Y %H:%M %z"),
        ("366 2023", "%j %Y"),
        ("Feb 30 2024", "%B %d %Y"),
        ("Sunday 31 Nov 2000", "%a %d %b %Y"),
        ("2024- 2-30", "%Y-%m-%d"),
        ("Feb 30 2024", "%h %d %Y"),
        ("2024-02-30 07:05:06 PM", "%Y-%m-%d %r"),
        ("2024-11-27 22:59:60 +05", "%Y-%m-%d %H:%M:%S %z"),
    ],
)
def test_a_format_bends_no_day_and_no_second(text: str, format_: str, tmp_path: Path) -> None:
    type_ = "timestamp" if "%z" in format_ else "timestamp_ntz"
    with pytest.raises(pa.ArrowInvalid, match="is not a time in"):
        read_formatted(pa.array([text]), [format_], arrow_type(type_), "at")
    with pytest.raises(pa.ArrowInvalid, match="is not a time in"):
        evaluate(col("s").to_timestamp(format_), pa.record_batch({"s": [text]}))
    Path(tmp_path, "a.csv").write_text(f"at\n{text}\n")
    with pytest.raises(SpoutError, match=r"column 'at': .* is not a time in"):
        rows(CsvFileSpout(tmp_path, f"at: {type_}", timestamp_formats=[format_]))


def test_arrow_takes_other_words_and_spaces_for_the_same() -> None:
    cases = [("Mar 1 2024", "%B %d %Y"), ("Friday 01 Mar 2024", "%a %d %b %Y"), ("2024- 3-01", "%Y-%m-%d")]
    read = [read_formatted(pa.array([text]), [format_], pa.timestamp("us"), "at") for text, format_ in cases]
    read.append(read_formatted(pa.array(["2024-03-01 05+05"]), ["%F %H%z"], pa.timestamp("us", "UTC"), "at"))
    assert [one[0].as_py().date().isoformat() for one in read] == ["2024-03-01"] * 4


def test_formats_are_tried_in_turn_for_each_value() -> None:
    texts = pa.array(["1.3.2024", None, "2024-03-02", "01.03.2024"])
    read = read_formatted(texts, ["%d.%m.%Y", "%Y-%m-%d"], pa.timestamp("us"), "at")
    assert [one and one.day for one in read.to_pylist()] == [1, None, 2, 1]


@pytest.mark.parametrize(
    ("text", "format_"), [("01.03.24", "%d.%m.%Y"), ("24-03-01 +0100", "%F %z"), ("24-3-1", "%Y-%m-%d")]
)
def test_a_year_of_two_digits_is_not_one_of_the_first_century(text: str, format_: str) -> None:
    zone = "UTC" if "%z" in format_ else None
    with pytest.raises(pa.ArrowInvalid, match="is not a timestamp"):
        read_formatted(pa.array([text]), [format_], pa.timestamp("us", zone), "at")
    with pytest.raises(pa.ArrowInvalid, match="is not a timestamp"):
        evaluate(col("s").to_timestamp(format_), pa.record_batch({"s": [text]}))


def test_a_format_for_two_digits_reads_what_one_for_four_does_not() -> None:
    texts = pa.array(["01.03.24", "1.3.0024", "05.03.2024", None])
    read = read_formatted(texts, ["%d.%m.%Y", "%d.%m.%y"], pa.timestamp("us"), "at")
    assert [one and one.year for one in read.to_pylist()] == [2024, 24, 2024, None]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: col("s").to_timestamp("%H:%M"), "'%H:%M' names no year"),
        (lambda: CsvFileSpout(".", "at: timestamp_ntz", timestamp_formats=["%H:%M"]), "'%H:%M' names no year"),
        (lambda: col("s").to_date("%Y-%m-%d %z"), "has an offset, which a date does not"),
        (lambda: sql("to_timestamp(s, 'HH:mm')"), "a pattern of dates has yyyy"),
        (lambda: sql("to_date(s, 'dd.MM.yy')"), "a pattern of dates has yyyy"),
        (lambda: sql("to_date(s, 'MMMM dd yyyy')"), "a pattern of dates has yyyy"),
        (lambda: sql("to_timestamp(s, 'yyyy-MM-dd HH:mm:ss.SSS')"), "a pattern of dates has yyyy"),
        (lambda: sql("at > timestamp '2024-02-30'"), "'2024-02-30' is not a timestamp"),
        (lambda: sql("at > timestamp 'noon'"), "'noon' is not a timestamp"),
    ],
)
def test_a_format_that_would_be_guessed_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        make()
