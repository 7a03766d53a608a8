"""Windows by the clocks of a zone: days, hours and weeks about changes of the clocks, compared with `zoneinfo`."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest

from tests.harness.topology_runs import RowsSpout, keep, run_all
from trident import TopologyError, TridentTopology
from trident.moments import changes_in
from trident.operations import Count, SlidingDurationWindow, TumblingDurationWindow, col
from trident.testing import TopologyTestDriver

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
CHANGES = [
    ("Europe/Berlin", datetime(2024, 3, 31, 1)),
    ("Europe/Berlin", datetime(2024, 10, 27, 1)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3)),
    ("America/Sao_Paulo", datetime(2018, 2, 18, 2)),
    ("America/Havana", datetime(2024, 11, 3, 5)),
    ("Australia/Lord_Howe", datetime(2024, 4, 6, 15)),
]


def moments(moment: datetime, seed: int = 1, count: int = 150) -> list[datetime]:
    chosen = random.Random(seed)
    return [moment.replace(tzinfo=UTC) + timedelta(seconds=chosen.randint(-200_000, 200_000)) for _ in range(count)]


def fired(
    config: TumblingDurationWindow | SlidingDurationWindow, given: list[datetime], type_: str = "timestamp"
) -> list[Any]:
    """What windows give for moments in an order of their own; the last batch is far behind all of them."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout(f"at: {type_}", {}))
    windows = stream.window(config.by_event_time("at", delay=timedelta(days=9)), Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        for at in (*(given[n : n + 40] for n in range(0, len(given), 40)), [max(given) + timedelta(days=40)]):
            driver.feed("s", *((one if type_ == "timestamp" else int(one.timestamp() * 1000),) for one in at))
            driver.run()
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
    hours = Counter(
        at.astimezone(tz).replace(minute=0, second=0, microsecond=0).astimezone(UTC) for at in given
    )  # its fold stays
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
        for at in (midnight - HOUR, midnight - second, midnight, midnight - HOUR, midnight + HOUR, midnight - HOUR):
            driver.feed("s", (at,))
            driver.run()
        found = {txid: [(end, n) for _, end, n in rows] for txid, rows in driver.captured(windows).items()}
        assert found == {1: [], 2: [], 3: [(midnight, 2)], 4: [(midnight, 3)], 5: [], 6: []}
        assert driver.captured(late)[6] == [(midnight - HOUR,)]


def test_by_the_time_of_the_batch_a_local_day_ends_at_local_midnight() -> None:
    topology, midnight = TridentTopology("t"), datetime(2024, 7, 1, 22, tzinfo=UTC).timestamp()
    stream = topology.new_stream("s", RowsSpout("n: int", {}))
    windows = stream.window(TumblingDurationWindow.of(DAY, zone="Europe/Berlin"), Count(), "n", bounds="start, end")
    with TopologyTestDriver(topology) as driver:
        driver.clock.advance((midnight - 60 - driver.clock.wall_ms() / 1000) % (400 * 365 * 86_400))
        driver.feed("s", (1,), (2,))
        driver.run()
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
    with pytest.raises(
        TopologyError, match=r"zone 'Europe/Berln', which is unknown: .* did you mean 'Europe/Berlin'\?"
    ):
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
