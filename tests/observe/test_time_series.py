"""What a topology did over time: whatever was added is in one span, memory has an end, and trends are no chance.

Windows give what a model gives that keeps everything that was ever added.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.observe.time_series import ALL_TIME, BUCKETS, SPANS, WINDOWS_S, TimeSeries, TimeSpan, Windows

DAY_S = 86_400.0


@given(
    st.lists(st.tuples(st.floats(0.01, 40_000), st.integers(0, 50), st.integers(0, 9)), max_size=60),
    st.sampled_from([*WINDOWS_S, 0]),
)
def test_what_was_added_within_a_window_is_there_once(added: list[tuple[float, int, int]], window: int) -> None:
    series, now = TimeSeries(0.0), 0.0
    noted: list[tuple[float, int, int]] = []
    for pause, tuples, failed in added:
        now += pause
        series.add(TimeSpan(tuples=tuples, timed=1, took_s=0.5, longest_s=0.5, failed=failed), now)
        noted.append((now, tuples, failed))
    now += 0.9 * DAY_S / SPANS  # so that the last span of each length is not left out as too young
    page = series.page(window, now, now)
    width_s, first_s = page["spanSeconds"], page["at"][0] / 1000
    assert len({len(page[name]) for name in page if name not in ("spanSeconds", "lags")}) == 1
    assert len(page["at"]) <= SPANS
    ends_s = page["at"][-1] / 1000 + width_s
    inside = [each for each in noted if first_s - 0.001 <= each[0] < ends_s - 0.001]
    lasted = [min(width_s, now - at / 1000) for at in page["at"]]
    told = sum(rate * length for rate, length in zip(page["tuplesPerSecond"], lasted, strict=True))
    edge = [each for each in noted if abs(each[0] - first_s) < 0.01 or abs(each[0] - ends_s) < 0.01]
    if not edge:
        assert told == pytest.approx(sum(each[1] for each in inside), abs=1e-3)
        assert sum(page["failed"]) == sum(each[2] for each in inside)
    if window == 0 or window >= now:
        assert first_s <= 0.001
    else:
        assert first_s <= now - window + 2 * width_s


@pytest.mark.slow
def test_its_memory_does_not_grow() -> None:
    series, at, kept = TimeSeries(0.0), 0.0, []
    for minute in range(30_000):  # three weeks
        at, n = minute * 60.0, minute
        series.add(TimeSpan(tuples=n * 1.5, timed=1, took_s=n * 0.1, longest_s=n * 0.2, lags={"records": n}), at)
        if minute in (3_000, 29_999):
            kept.append(sum(len(line.spans) for line in series._lines))
    assert max(kept) <= 4 * SPANS
    page = series.page(0, at, at)
    assert len(page["at"]) <= SPANS
    assert page["at"][0] == 0  # all time is all of it
    assert sum(page["tuplesPerSecond"]) * page["spanSeconds"] >= sum(minute * 1.5 for minute in range(29_000))


def test_spans_are_short_while_the_topology_is_young() -> None:
    series = TimeSeries(100.0)
    for second in range(60):
        series.add(TimeSpan(tuples=10, timed=2, took_s=1.0, longest_s=0.75, lags={"records": 7}), 100.0 + second)
    for window in (*WINDOWS_S, 0):
        page = series.page(window, 160.0, 1_000_160.0)
        assert page["spanSeconds"] == 5
        assert page["at"] == [1_000_100_000 + 5000 * each for each in range(12)]
        assert page["tuplesPerSecond"] == [10.0] * 12
        assert (page["latencyMs"], page["longestMs"]) == ([500.0] * 12, [750.0] * 12)
        assert page["lags"] == {"records": [7] * 12}


def test_where_nothing_happened_nothing_is_known_but_that() -> None:
    series = TimeSeries(0.0)
    series.add(TimeSpan(tuples=10, timed=1, took_s=1.0, longest_s=1.0, lags={"bytes": 3}), 1.0)
    series.add(TimeSpan(tuples=10, timed=1, took_s=1.0, longest_s=1.0), 16.0)
    page = series.page(600, 20.0, 20.0)
    assert page["tuplesPerSecond"] == [2.0, 0.0, 0.0, 2.0]
    assert page["latencyMs"] == [1000.0, None, None, 1000.0]
    assert page["lags"] == {"bytes": [3, None, None, None]}


@pytest.mark.parametrize(
    ("by_span", "trend"),
    [
        ([0] * 20, None),
        ([5, 5], None),  # too short a time
        ([5] * 20, "steady"),
        ([0] * 10 + [1] * 10, "rising"),
        ([9] * 10 + [1] * 10, "falling"),
        ([0] * 19 + [1], "steady"),  # one more is chance
        ([0] * 19 + [9], "rising"),
    ],
)
def test_failures_rise_or_fall_by_more_than_chance(by_span: list[int], trend: str | None) -> None:
    series = TimeSeries(0.0)
    for number, failed in enumerate(by_span):
        series.add(TimeSpan(failed=failed), 5.0 * number + 1)
    assert series.failures(600, 5.0 * len(by_span) - 0.5) == trend


def test_a_trend_is_that_of_its_window() -> None:
    series = TimeSeries(0.0)
    for minute in range(120):
        series.add(TimeSpan(failed=100 if minute < 60 else 1), 60.0 * minute)
    assert series.failures(600, 7200.0) == "steady"
    assert series.failures(10_800, 7200.0) == "falling"
    assert series.failures(0, 7200.0) == "falling"


@pytest.mark.parametrize(
    ("lags", "trend"),
    [
        ([1000] * 40, "steady"),
        ([1000 + 50 * each for each in range(40)], "grows"),
        ([9000 - 200 * each for each in range(40)], "shrinks"),
        ([1000, 5000], None),  # too short a time
        ([1000] * 20 + [None] + [9000] * 19, None),  # what is not known is not 0
    ],
)
def test_the_trend_of_a_lag_is_known_without_anyone_having_looked(lags: list[int | None], trend: str | None) -> None:
    series = TimeSeries(0.0)
    for number, lag in enumerate(lags):
        series.add(TimeSpan(timed=1, lags={} if lag is None else {"records": lag}), 5.0 * number)
    assert series.lag(5.0 * len(lags)) == trend
    assert series.lag(5.0 * len(lags) + 500) is None  # what was long ago says nothing of now


def test_each_unit_has_a_lag_of_its_own() -> None:
    series = TimeSeries(0.0)
    for number in range(40):
        series.add(TimeSpan(timed=1, lags={"records": 5, "bytes": 1000 + 50 * number}), 5.0 * number)
    assert series.page(600, 200.0, 200.0)["lags"] == {
        "bytes": [1000 + 50 * number for number in range(40)],
        "records": [5] * 40,
    }
    assert series.lag(200.0) == "grows"


def test_a_lag_that_a_source_does_not_say_has_no_trend() -> None:
    series = TimeSeries(0.0)
    for number in range(40):
        series.add(TimeSpan(timed=1, lags={"records": 1000}, is_whole=number != 30), 5.0 * number)
    assert series.lag(200.0) is None


def test_a_rate_is_that_of_the_last_seconds() -> None:
    series = TimeSeries(0.0)
    assert series.per_second(0.0) == 0
    for second in range(1, 30):
        series.add(TimeSpan(tuples=50), float(second))
        assert series.per_second(float(second)) == pytest.approx(50, abs=10)
    assert series.per_second(500.0) == 0  # what it was long ago says nothing of now


BEGAN = 1_000


@dataclass
class Everything:
    """The model: a list of all that was added, and when."""

    added: list[tuple[int, str, int]] = field(default_factory=list)

    def over(self, window: int, now: int) -> tuple[float, dict[str, int]]:
        bucket = window // BUCKETS
        begins = max(BEGAN, BEGAN + ((now - BEGAN) // bucket - BUCKETS) * bucket) if window else BEGAN
        sums: dict[str, int] = {}
        for at, key, amount in self.added:
            sums[key] = sums.get(key, 0) + (amount if at >= begins else 0)
        return now - begins, sums


PAUSES = st.one_of(st.integers(0, 40), st.integers(0, 2_000), st.integers(0, 200_000))
STEPS = st.lists(st.tuples(PAUSES, st.sampled_from("ab"), st.integers(0, 9)), max_size=60)


@given(STEPS, PAUSES)
def test_every_window_is_what_was_added_since_its_beginning(steps: list[tuple[int, str, int]], last: int) -> None:
    windows: Windows[str] = Windows(BEGAN)
    model = Everything()
    now = BEGAN
    for pause, key, amount in steps:
        now += pause
        windows.add({key: amount}, now)
        model.added.append((now, key, amount))
        for window in (*WINDOWS_S, ALL_TIME):
            assert windows.over(window, now) == model.over(window, now)
    now += last
    for window in (*WINDOWS_S, ALL_TIME):
        assert windows.over(window, now) == model.over(window, now)


def test_a_year_with_something_in_each_minute_takes_no_more_memory_than_a_day() -> None:
    windows: Windows[str] = Windows(0)
    for minute in range(2 * 24 * 60):
        windows.add({"a": 1}, 60 * minute)
    after_two_days = sum(map(len, windows._notes.values()))
    for day in range(3, 365):
        for second in range(0, 86_400, 3_600):
            windows.add({"a": 1}, 86_400 * day + second)
    assert sum(map(len, windows._notes.values())) <= after_two_days <= len(WINDOWS_S) * (BUCKETS + 1)
    assert windows.over(86_400, 86_400 * 365).added == {"a": 24}
