"""Event times keep their precision; those of another unit are told of, come as late rows, and are known to the verdict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state, keep, run_all
from trident import BatchFailedError, TridentCollector, TridentTopology, TridentTuple
from trident.observe.health import verdict
from trident.operations import Count, KeyedProcess, ReducerAggregator, SessionWindow, TumblingDurationWindow
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

MS, US = timedelta(milliseconds=1), timedelta(microseconds=1)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
TYPES = ["timestamp", "timestamp_ntz"]


class InOrder(ReducerAggregator[list[int]]):
    def init(self) -> list[int]:
        return []

    def reduce(self, curr: list[int], tuple: TridentTuple) -> list[int]:
        return [*curr, tuple[0]]


def at(us: int, type_: str = "timestamp") -> datetime:
    return (NOON if type_ == "timestamp" else NOON.replace(tzinfo=None)) + us * US


def run_batches(driver: TopologyTestDriver, *batches: Sequence[Any]) -> None:
    for rows in batches:
        driver.feed("s", *rows)
        driver.run()


# ---- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("type_", TYPES)
def test_sessions_are_told_apart_and_put_in_order_by_the_microsecond(type_: str, engine: str) -> None:
    topology = TridentTopology("t")
    rows = [("a", us, at(us, type_)) for us in (900, 100, 500, 1901, 2902, 5000)]
    later = [("b", 0, at(10**6, type_))]
    stream = topology.new_stream("s", RowsSpout(f"key: string, n: int, at: {type_}", {1: rows, 2: later}))
    sessions = stream.group_by("key").window(
        SessionWindow.of(MS, "at"), "n", InOrder(), "n: array<int>", bounds="first, last"
    )
    kept = keep(sessions.project("n", "first", "last"))
    run_all(topology, engine)
    assert [row[0] for row in kept.rows] == [[100, 500, 900], [1901], [2902], [5000]]
    assert kept.rows[0][1:] == (at(100, type_), at(900, type_))


def test_a_window_ends_and_tuples_are_late_by_the_microsecond() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("at: timestamp", {}))
    ten = TumblingDurationWindow.of(10 * MS).by_event_time("at", delay=MS)
    windows, late = stream.window_with_late_rows(ten, Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        run_batches(driver, [(at(0),), (at(9_999),), (at(10_999),)], [(at(9_500),)], [(at(11_000),)], [(at(9_999),)])
        assert driver.captured(windows) == {1: [], 2: [], 3: [(at(0), at(10_000), 3)], 4: []}
        assert driver.captured(late)[4] == [(at(9_999),)]


def test_timers_fire_at_the_microsecond_by_either_time() -> None:
    class Echo(KeyedProcess[Any]):
        def process(self, value: Any, tuple: TridentTuple, timers: Any, collector: TridentCollector) -> Any:
            timers.set(timers.now + 7 * US)
            timers.set(timers.now + 8 * US)

        def on_timer(self, value: Any, time: Any, timers: Any, collector: TridentCollector) -> Any:
            collector.emit([time, timers.times])

    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("k: string, at: timestamp", {}))
    out = "at: timestamp, left: array<timestamp>"
    by_event = stream.group_by("k").process(Echo(), out, event_time="at")
    by_batch = stream.group_by("k").process(Echo(), out, state_name="by-batch")
    with TopologyTestDriver(topology) as driver:
        driver.feed("s", ("a", at(3)))
        driver.run()
        now = datetime.fromtimestamp(driver.clock.wall_ms() / 1000, UTC)
        driver.clock.advance(0.001)
        driver.run()
        assert [row for rows in driver.captured(by_batch).values() for row in rows] == [
            ("a", now + 7 * US, [now + 8 * US]), ("a", now + 8 * US, [])
        ]  # fmt: skip
        driver.feed("s", ("b", at(10)))
        driver.run()
        assert [row for rows in driver.captured(by_event).values() for row in rows] == [("a", at(10), [at(11)])]


def test_rows_are_joined_by_the_microsecond() -> None:
    topology = TridentTopology("t")
    sides = [topology.new_stream(name, RowsSpout(f"k: string, {name}: timestamp", {})) for name in "lr"]
    joined = topology.join_within(
        sides[0], "k", sides[1], "k", "k, l, r", times=("l", "r"), within=300 * US, state=MemoryMapState.opaque()
    )
    with TopologyTestDriver(topology) as driver:
        driver.feed("l", ("a", at(1000)))
        driver.feed("r", *(("a", at(us)) for us in (699, 700, 1300, 1301)))
        driver.run()
        assert sorted(row[2] for row in driver.captured(joined)[1]) == [at(700), at(1300)]


def test_what_was_kept_in_milliseconds_is_not_taken_for_microseconds(tmp_path: Any) -> None:
    def topology(type_: str, given: dict[int, list[Any]]) -> TridentTopology:
        made = TridentTopology("t")
        stream = made.new_stream("s", RowsSpout(f"at: {type_}", given, SpoutType.OPAQUE))
        ten = TumblingDurationWindow.of(10 * MS).by_event_time("at")
        stream.window(ten, dict_state(store), Count(), "n", state_name="w")
        return made

    store: dict[Any, Any] = {}
    run_all(topology("bigint", {1: [(5,)]}), "in_process", log_dir=str(tmp_path))
    with pytest.raises(BatchFailedError, match="but this topology keeps .* in panes of 10000 microseconds"):
        run_all(
            topology("timestamp", {1: [(at(5),)], 2: [(at(6),)]}),
            "in_process",
            log_dir=str(tmp_path),
            allow_changed_topology=True,
            max_batch_attempts=1,
        )


@pytest.mark.parametrize("type_", TYPES)
def test_the_last_moments_that_a_datetime_has_are_times(type_: str) -> None:
    topology, last = TridentTopology("t"), datetime.max.replace(tzinfo=UTC if type_ == "timestamp" else None)
    stream = topology.new_stream("s", RowsSpout(f"k: string, at: {type_}", {1: [("a", last)], 2: [("a", last)]}))
    day = TumblingDurationWindow.of(timedelta(days=1)).by_event_time("at")
    kept = keep(stream.window(day, Count(), "n", bounds="start, end").each("end", lambda end: end.year, "year: int"))
    run = run_all(topology, "in_process")
    assert (run.status["metrics"], kept.rows) == ({}, [])


# ---- another unit ------------------------------------------------------------------------------------------------------

IN_S = 1_700_000_000
SAYS = "in {} it would be 2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(("factor", "unit"), [(10**6, "microseconds"), (10**9, "nanoseconds")])
def test_times_of_another_unit_are_told_of_and_come_as_late_rows(
    factor: int, unit: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    topology, given = TridentTopology("t"), [(n, (IN_S + n) * factor) for n in range(3)]
    right = (3, IN_S * 1000)
    stream = topology.new_stream("s", RowsSpout("n: int, at: bigint", {1: given, 2: [right, *given]}))
    minute = TumblingDurationWindow.of(timedelta(minutes=1)).by_event_time("at")
    windows, late = stream.window_with_late_rows(minute, Count(), "count")
    kept, kept_late = keep(windows), keep(late, "late")
    with caplog.at_level(logging.WARNING):
        run = run_all(topology, engine)
    assert sorted(kept_late.rows) == sorted([*given, *given])
    assert (kept.rows, run.status["metrics"]) == ([], {"count-window/no_event_time": 6})
    (said,) = [record.getMessage() for record in caplog.records if "event time" in record.getMessage()]
    assert any(f"at={time}" in said for _, time in given)
    for part in ("not within the years 1 to 9999", unit, "but a late row"):
        assert part in said


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    "config",
    [
        SessionWindow.of(MS, "at"),
        TumblingDurationWindow.of(9 * MS).by_event_time("at", allowed_lateness=MS),
        TumblingDurationWindow.of(timedelta(days=1), zone="Europe/Berlin").by_event_time("at", allowed_lateness=MS),
    ],
    ids=str,
)
def test_a_time_that_no_calendar_has_moves_no_watermark(config: Any, partitions: int) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("k: string, at: bigint", {})).group_by("k")
    windows, late = stream.window_with_late_rows(config, Count(), "n", parallelism=partitions)
    wrong = [("a", 1 << 60), ("b", -(1 << 60)), ("c", IN_S * 10**6)]
    right = [("a", 0), ("b", 1), ("a", 0)]
    with TopologyTestDriver(topology) as driver:
        run_batches(driver, wrong, [*right[:2], wrong[0]], [("a", None), wrong[2], right[2]], [("z", 10**10)])
        found, found_late = driver.captured(windows), driver.captured(late)
    assert [sorted(rows) for rows in found_late.values()] == [sorted(wrong), [wrong[0]], [wrong[2]], []]
    assert [sorted(rows) for rows in found.values()] == [[], [], [], [("a", 2), ("b", 1)]]


def test_times_in_seconds_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of("bigint", [IN_S], caplog) == [
        "the event time at=1700000000 is 1970-01-20 16:13:20 UTC, because it is taken as milliseconds since 1970; "
        f"{SAYS.format('seconds')}. If so, convert the field before 'count-window'"
    ]


@pytest.mark.parametrize(("factor", "unit"), [(1, "seconds"), (1000, "milliseconds")])
def test_timestamps_made_of_another_unit_are_told_of(factor: int, unit: str, caplog: pytest.LogCaptureFixture) -> None:
    made = datetime(1970, 1, 1, tzinfo=UTC) + IN_S * factor * US
    (said,) = warnings_of("timestamp", [made], caplog)
    assert "taken as microseconds since 1970; " + SAYS.format(unit) in said


def test_a_time_far_ahead_of_the_clock_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    far = datetime(2262, 4, 11, tzinfo=UTC)
    (said,) = warnings_of("timestamp", [NOON, far, far + MS], caplog)
    assert "the event time 2262-04-11 00:00:00 UTC in 'at' is " in said
    assert "days ahead of the clock; the watermark of 'count-window' goes with it" in said


def test_of_times_that_may_be_right_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of("bigint", [0, 5, 60_000, IN_S * 1000, None], caplog) == []


def warnings_of(type_: str, times: Sequence[Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout(f"at: {type_}", {n: [(at,)] for n, at in enumerate(times, 1)}))
    stream.window(TumblingDurationWindow.of(MS).by_event_time("at"), Count(), "count")
    with caplog.at_level(logging.WARNING):
        run_all(topology, "in_process")
    found = [record.getMessage() for record in caplog.records]
    return [text.partition(": step ")[2].partition(": ")[2] for text in found if "event time" in text]


def test_a_join_and_a_process_tell_of_such_times_too(caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    sides = [topology.new_stream(name, RowsSpout(f"k: string, {name}: bigint", {1: [("a", 1 << 60)]})) for name in "lr"]
    topology.join_within(
        sides[0], "k", sides[1], "k", "k, l, r", times=("l", "r"), within=MS, state=MemoryMapState.opaque()
    )

    class Nothing(KeyedProcess[Any]):
        def process(self, value: Any, tuple: TridentTuple, timers: Any, collector: TridentCollector) -> Any:
            """Do nothing."""

    sides[0].group_by("k").process(Nothing(), "n: int", event_time="l", state_name="p")
    with caplog.at_level(logging.WARNING):
        run_all(topology, "in_process")
    said = [record.getMessage() for record in caplog.records if "event time" in record.getMessage()]
    assert sorted(text.partition("is left out of ")[2][:3] for text in said) == ["'k-", "'p'"]


def test_the_verdict_knows_a_topology_whose_tuples_all_vanish() -> None:
    topology = TridentTopology("t")
    given = {1: [(IN_S * 10**6,)] * 9, 2: [(IN_S * 10**6,)] * 9}
    stream = topology.new_stream("s", RowsSpout("at: bigint", given))
    stream.window(TumblingDurationWindow.of(MS).by_event_time("at"), Count(), "n")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        page = running.pages.status().as_mapping()
    assert "18 of the last 18 tuples were left out of 'n-window'" in str(verdict(page))
