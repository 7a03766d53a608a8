"""Event times keep their precision; windows by the clocks of a zone; times of another unit come as late rows, and are told."""

import logging
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state, keep, run_all, stream_of
from tests.windows.test_windows import fed
from tests.windows.test_windows_model import Numbers
from trident import BatchFailedError, TopologyError, TridentCollector, TridentTopology, TridentTuple
from trident.moments import changes_in
from trident.observe.health import verdict
from trident.operations import Count, KeyedProcess, SessionWindow, SlidingDurationWindow, TumblingDurationWindow, col
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

MS, US = timedelta(milliseconds=1), timedelta(microseconds=1)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
TYPES = ["timestamp", "timestamp_ntz"]


def at(us: int, type_: str = "timestamp") -> datetime:
    return (NOON if type_ == "timestamp" else NOON.replace(tzinfo=None)) + us * US


@pytest.mark.sample(2)
@pytest.mark.parametrize("type_", TYPES)
def test_sessions_are_told_apart_and_put_in_order_by_the_microsecond(type_: str, engine: str) -> None:
    rows = [("a", us, at(us, type_)) for us in (900, 100, 500, 1901, 2902, 5000)]
    later = [("b", 0, at(10**6, type_))]
    topology, stream = stream_of(RowsSpout(f"key: string, n: int, at: {type_}", {1: rows, 2: later}))
    config = SessionWindow.of(MS, "at")
    sessions = stream.group_by("key").window(config, "n", Numbers(), "n: array<int>", bounds="first, last")
    kept = keep(sessions.project("n", "first", "last"))
    run_all(topology, engine)
    assert [row[0] for row in kept.rows] == [[100, 500, 900], [1901], [2902], [5000]]
    assert kept.rows[0][1:] == (at(100, type_), at(900, type_))


def test_a_window_ends_and_tuples_are_late_by_the_microsecond(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("at: timestamp", {}))
    ten = TumblingDurationWindow.of(10 * MS).by_event_time("at", delay=MS)
    windows, late = stream.window_with_late_rows(ten, Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        fed(driver, [(at(0),), (at(9_999),), (at(10_999),)], [(at(9_500),)], [(at(11_000),)], [(at(9_999),)])
        assert driver.captured(windows) == {1: [], 2: [], 3: [(at(0), at(10_000), 3)], 4: []}
        assert driver.captured(late)[4] == [(at(9_999),)]


def test_timers_fire_at_the_microsecond_by_either_time(topology: TridentTopology) -> None:
    class Echo(KeyedProcess[Any]):
        def process(self, value: Any, tuple: TridentTuple, timers: Any, collector: TridentCollector) -> Any:
            timers.set(timers.now + 7 * US)
            timers.set(timers.now + 8 * US)

        def on_timer(self, value: Any, time: Any, timers: Any, collector: TridentCollector) -> Any:
            collector.emit([time, timers.times])

    stream = topology.new_stream("s", RowsSpout("k: string, at: timestamp", {}))
    out = "at: timestamp, left: array<timestamp>"
    by_event = stream.group_by("k").process(Echo(), out, event_time="at")
    by_batch = stream.group_by("k").process(Echo(), out, state_name="by-batch")
    with TopologyTestDriver(topology) as driver:
        fed(driver, [("a", at(3))])
        now = datetime.fromtimestamp(driver.clock.wall_ms() / 1000, UTC)
        driver.clock.advance(0.001)
        driver.run()
        fired_by_batch = [row for rows in driver.captured(by_batch).values() for row in rows]
        assert fired_by_batch == [("a", now + 7 * US, [now + 8 * US]), ("a", now + 8 * US, [])]
        fed(driver, [("b", at(10))])
        assert [row for rows in driver.captured(by_event).values() for row in rows] == [("a", at(10), [at(11)])]


def test_rows_are_joined_by_the_microsecond(topology: TridentTopology) -> None:
    sides = [topology.new_stream(name, RowsSpout(f"k: string, {name}: timestamp", {})) for name in "lr"]
    options: dict[str, Any] = {"times": ("l", "r"), "within": 300 * US, "state": MemoryMapState.opaque()}
    joined = topology.join_within(sides[0], "k", sides[1], "k", "k, l, r", **options)
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


IN_S = 1_700_000_000
SAYS = "in {} it would be 2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(("factor", "unit"), [(10**6, "microseconds"), (10**9, "nanoseconds")])
def test_times_of_another_unit_come_late(factor: int, unit: str, engine: str, caplog: pytest.LogCaptureFixture) -> None:
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
        fed(driver, wrong, [*right[:2], wrong[0]], [("a", None), wrong[2], right[2]], [("z", 10**10)])
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
    topology, stream = stream_of(RowsSpout(f"at: {type_}", {n: [(at,)] for n, at in enumerate(times, 1)}))
    stream.window(TumblingDurationWindow.of(MS).by_event_time("at"), Count(), "count")
    with caplog.at_level(logging.WARNING):
        run_all(topology, "in_process")
    found = [record.getMessage() for record in caplog.records]
    return [text.partition(": step ")[2].partition(": ")[2] for text in found if "event time" in text]


def test_a_join_and_a_process_tell_of_such_times_too(caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    sides = [topology.new_stream(name, RowsSpout(f"k: string, {name}: bigint", {1: [("a", 1 << 60)]})) for name in "lr"]
    options: dict[str, Any] = {"times": ("l", "r"), "within": MS, "state": MemoryMapState.opaque()}
    topology.join_within(sides[0], "k", sides[1], "k", "k, l, r", **options)

    class Nothing(KeyedProcess[Any]):
        def process(self, value: Any, tuple: TridentTuple, timers: Any, collector: TridentCollector) -> Any:
            """Do nothing."""

    sides[0].group_by("k").process(Nothing(), "n: int", event_time="l", state_name="p")
    with caplog.at_level(logging.WARNING):
        run_all(topology, "in_process")
    said = [record.getMessage() for record in caplog.records if "event time" in record.getMessage()]
    assert sorted(text.partition("is left out of ")[2][:3] for text in said) == ["'k-", "'p'"]


def test_the_verdict_knows_a_topology_whose_tuples_all_vanish(topology: TridentTopology) -> None:
    given = {1: [(IN_S * 10**6,)] * 9, 2: [(IN_S * 10**6,)] * 9}
    stream = topology.new_stream("s", RowsSpout("at: bigint", given))
    stream.window(TumblingDurationWindow.of(MS).by_event_time("at"), Count(), "n")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        page = running.pages.status().as_mapping()
    assert "18 of the last 18 tuples were left out of 'n-window'" in str(verdict(page))


DAY, HOUR = timedelta(days=1), timedelta(hours=1)
CHANGES = [
    ("Europe/Berlin", datetime(2024, 3, 31, 1)), ("Europe/Berlin", datetime(2024, 10, 27, 1)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3)), ("America/Sao_Paulo", datetime(2018, 2, 18, 2)),
    ("America/Havana", datetime(2024, 11, 3, 5)), ("Australia/Lord_Howe", datetime(2024, 4, 6, 15)),
]  # fmt: skip


def moments(moment: datetime, seed: int = 1, count: int = 150) -> list[datetime]:
    chosen = random.Random(seed)
    return [moment.replace(tzinfo=UTC) + timedelta(seconds=chosen.randint(-200_000, 200_000)) for _ in range(count)]


def fired(
    config: TumblingDurationWindow | SlidingDurationWindow, given: list[datetime], type_: str = "timestamp"
) -> list[Any]:
    """What windows give for moments in an order of their own; the last batch is far behind all of them."""
    topology, stream = stream_of(RowsSpout(f"at: {type_}", {}))
    windows = stream.window(config.by_event_time("at", delay=timedelta(days=9)), Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        for at in (*(given[n : n + 40] for n in range(0, len(given), 40)), [max(given) + timedelta(days=40)]):
            fed(driver, [(one if type_ == "timestamp" else int(one.timestamp() * 1000),) for one in at])
        return [row for rows in driver.captured(windows).values() for row in rows]


@pytest.mark.parametrize("type_", ["timestamp", "bigint"])
@pytest.mark.parametrize(("zone", "moment"), CHANGES)
def test_a_day_is_from_one_local_midnight_to_the_next(zone: str, moment: datetime, type_: str) -> None:
    check_days(zone, moments(moment), type_)


@pytest.mark.long
def test_local_days_are_right_about_many_changes() -> None:
    chosen = random.Random(35)
    zones = chosen.sample(sorted(available_timezones()), 150)
    found = [(zone, change) for zone in zones for year in range(1900, 2040) for change, _ in changes_in(zone, year)[1:]]
    for zone, change in chosen.sample(found, 400):
        check_days(zone, moments(datetime.fromtimestamp(change, UTC), chosen.randint(0, 1 << 30), 100), "timestamp")


def check_days(zone: str, given: list[datetime], type_: str) -> None:
    tz = ZoneInfo(zone)
    rows = fired(TumblingDurationWindow.of(DAY, zone=zone), given, type_)
    assert {start.astimezone(tz).date(): n for start, _, n in rows} == Counter(at.astimezone(tz).date() for at in given)
    for start, end, _ in rows:
        first, after = start.astimezone(tz).date(), end.astimezone(tz).date()
        assert after - first == DAY
        for edge, day in ((start, first), (end, after)):
            assert edge.astimezone(tz).date() == day
            assert (edge - timedelta(microseconds=1)).astimezone(tz).date() < day


@pytest.mark.parametrize(
    ("zone", "moment"), [("Asia/Kolkata", datetime(2024, 10, 27)), ("Australia/Adelaide", datetime(2024, 4, 6, 16, 30))]
)
def test_hours_are_those_of_clocks_and_an_hour_that_they_show_twice_is_two(zone: str, moment: datetime) -> None:
    given, tz = moments(moment), ZoneInfo(zone)
    rows = fired(TumblingDurationWindow.of(HOUR, zone=zone), given)
    full = (at.astimezone(tz).replace(minute=0, second=0, microsecond=0) for at in given)  # its fold stays
    hours = Counter(at.astimezone(UTC) for at in full)
    assert {start.astimezone(UTC): n for start, _, n in rows} == hours
    assert {end - start for start, end, _ in rows} == {HOUR}


def test_a_sliding_window_has_the_last_local_days() -> None:
    given, tz = moments(datetime(2024, 10, 27, 1)), ZoneInfo("Europe/Berlin")
    days = Counter(at.astimezone(tz).date() for at in given)
    for start, end, n in fired(SlidingDurationWindow.of(3 * DAY, DAY, zone="Europe/Berlin"), given):
        first, after = start.astimezone(tz), end.astimezone(tz)
        assert (first.hour, after.hour, after.date() - first.date()) == (0, 0, 3 * DAY)
        assert n == sum(count for day, count in days.items() if first.date() <= day < after.date())


def test_an_offset_is_a_zone_too() -> None:
    (row,) = fired(TumblingDurationWindow.of(DAY, zone="+05:30"), [datetime(2024, 5, 5, 20, tzinfo=UTC)])
    assert row[:2] == (datetime(2024, 5, 5, 18, 30, tzinfo=UTC), datetime(2024, 5, 6, 18, 30, tzinfo=UTC))


def test_a_local_day_fires_and_is_over_with_its_own_midnight() -> None:
    """22:00 UTC is midnight in Berlin in summer; a tuple may come for an hour after that, by the watermark."""
    topology, midnight = TridentTopology("t"), datetime(2024, 7, 1, 22, tzinfo=UTC)
    stream = topology.new_stream("s", RowsSpout("at: timestamp", {}))
    day = TumblingDurationWindow.of(DAY, zone="Europe/Berlin").by_event_time("at", allowed_lateness=HOUR)
    windows, late = stream.window_with_late_rows(day, Count(), "n", bounds="start, end")
    second = timedelta(seconds=1)
    with TopologyTestDriver(topology) as driver:
        times = midnight - HOUR, midnight - second, midnight, midnight - HOUR, midnight + HOUR, midnight - HOUR
        fed(driver, *([(at,)] for at in times))
        found = {txid: [(end, n) for _, end, n in rows] for txid, rows in driver.captured(windows).items()}
        assert found == {1: [], 2: [], 3: [(midnight, 2)], 4: [(midnight, 3)], 5: [], 6: []}
        assert driver.captured(late)[6] == [(midnight - HOUR,)]


def test_by_the_time_of_the_batch_a_local_day_ends_at_local_midnight() -> None:
    topology, midnight = TridentTopology("t"), datetime(2024, 7, 1, 22, tzinfo=UTC).timestamp()
    stream = topology.new_stream("s", RowsSpout("n: int", {}))
    windows = stream.window(TumblingDurationWindow.of(DAY, zone="Europe/Berlin"), Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        driver.clock.advance((midnight - 60 - driver.clock.wall_ms() / 1000) % (400 * 365 * 86_400))
        fed(driver, [(1,), (2,)])
        driver.clock.advance(59)
        assert driver.step() is None
        driver.clock.advance(1)
        driver.run()
        (row,) = [row for rows in driver.captured(windows).values() for row in rows]
    assert (row[1].timestamp(), row[2]) == (midnight, 2)


def test_another_zone_is_another_window(tmp_path: Any) -> None:
    def topology(zone: str | None) -> TridentTopology:
        made = TridentTopology("t")
        stream = made.new_stream("s", RowsSpout("at: bigint", {1: [(5,)]}))
        stream.window(TumblingDurationWindow.of(DAY, zone).by_event_time("at"), Count(), "n")
        return made

    run_all(topology("Europe/Berlin"), "in_process", log_dir=str(tmp_path))
    with pytest.raises(TopologyError, match="tumbling time of 1 day, 0:00:00 in zone Europe/Berlin"):
        run_all(topology(None), "in_process", log_dir=str(tmp_path))


def test_a_zone_that_is_none_is_refused_and_so_is_one_for_local_times() -> None:
    said = r"zone 'Europe/Berln', which is unknown: .* did you mean 'Europe/Berlin'\?"
    with pytest.raises(TopologyError, match=said):
        TumblingDurationWindow.of(DAY, zone="Europe/Berln")
    with pytest.raises(TopologyError, match="zone '', which is unknown"):
        TumblingDurationWindow.of(DAY, zone="")
    with pytest.raises(TopologyError, match="zone '', which is unknown"):
        col("at").date_trunc("day", "")
    with pytest.raises(TopologyError, match="offset such as"):
        SlidingDurationWindow.of(DAY, DAY, zone="+5")
    stream = TridentTopology("t").new_stream("s", RowsSpout("at: timestamp_ntz", {}))
    with pytest.raises(TopologyError, match="what clocks showed at its place, so leave out the zone"):
        stream.window(TumblingDurationWindow.of(DAY, zone="Europe/Berlin").by_event_time("at"), Count(), "n")


def test_local_days_are_the_same_on_spark(engine: str) -> None:
    topology, given = TridentTopology("t"), moments(datetime(2024, 10, 27, 1))
    last = max(given) + timedelta(days=40)
    stream = topology.new_stream("s", RowsSpout("at: timestamp", {1: [(at,) for at in given], 2: [(last,)]}))
    day = TumblingDurationWindow.of(DAY, zone="Europe/Berlin").by_event_time("at")
    kept = keep(stream.window(day, Count(), "n", bounds="start, end"))
    run_all(topology, engine)
    days = Counter(at.astimezone(ZoneInfo("Europe/Berlin")).date() for at in given)
    assert [(row[0].astimezone(ZoneInfo("Europe/Berlin")).date(), row[2]) for row in kept.rows] == sorted(days.items())
