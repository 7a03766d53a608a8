"""RateSpout: which rows are due when, in batches that a restart continues without a gap."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import RateSpout
from spouts.rows.rate import RowSchedule
from tests.spouts.reading import definitions, is_plain, rows_of
from trident.spout import Lag, TransactionAttempt

BEGAN = 1_700_000_000.0


class Now:
    """A clock that stands still until it is told to go on."""

    def __init__(self, time: float = BEGAN) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def seconds(row: tuple[Any, ...]) -> float:
    moment: datetime.datetime = row[1]
    return moment.timestamp() - BEGAN


def test_rows_of_a_second_come_when_it_is_over_with_the_time_they_were_due() -> None:
    now, spout = Now(), RateSpout(4)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 0.999
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 0.002
    first = coordinator.initialize_transaction(1, None)
    assert is_plain(first)
    rows = rows_of(spout, coordinator, first)
    assert [(row[0], seconds(row)) for row in rows] == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    assert coordinator.initialize_transaction(2, first) is None


def test_a_restart_takes_the_rows_that_became_due_meanwhile_and_no_row_twice() -> None:
    now, spout = Now(), RateSpout(1000, rows_per_batch=1500)
    before = spout.get_coordinator({}, now)
    assert before.initialize_transaction(1, None) is None
    now.time += 1
    first = before.initialize_transaction(1, None)
    now.time += 2
    after = spout.get_coordinator({}, now)
    found = list(definitions(after, first, 2))
    assert [(one["start"], one["end"]) for one in found] == [(1000, 2500), (2500, 3000)]
    assert [seconds(row) for row in rows_of(spout, after, found[1])][::100] == pytest.approx(
        [2.5, 2.6, 2.7, 2.8, 2.9], abs=1e-6
    )


def test_another_rate_goes_on_after_the_last_row_of_the_old_one() -> None:
    now = Now()
    slow = RateSpout(2).get_coordinator({}, now)
    assert slow.initialize_transaction(1, None) is None
    now.time += 3
    first = slow.initialize_transaction(1, None)
    now.time += 1
    spout = RateSpout(5, tick_s=0.2)
    (second,) = definitions(spout.get_coordinator({}, now), first, 2)
    rows = rows_of(spout, spout.get_coordinator({}, now), second)
    assert [(row[0], round(seconds(row), 6)) for row in rows] == [(6, 3.0), (7, 3.2), (8, 3.4), (9, 3.6), (10, 3.8)]
    again = spout.get_coordinator({}, now)
    assert [row[0] for row in rows_of(spout, again, first)] == [0, 1, 2, 3, 4, 5]


def test_without_a_rate_each_batch_has_the_given_rows_until_all_are_emitted() -> None:
    spout = RateSpout(rows_per_batch=40, rows=100)
    coordinator = spout.get_coordinator({}, Now())
    found = list(definitions(coordinator))
    assert [row[0] for one in found for row in rows_of(spout, coordinator, one, 3)] == list(range(100))
    assert [one["end"] for one in found] == [40, 80, 100]
    assert {seconds(row) for row in rows_of(spout, coordinator, found[0])} == {0.0}


def test_a_ramp_gives_half_of_the_rows_and_ends_at_the_rate() -> None:
    now, spout = Now(), RateSpout(100, ramp_up_s=10)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    ends = []
    previous = None
    for second in range(1, 13):
        now.time = BEGAN + second
        previous = coordinator.initialize_transaction(second, previous)
        assert previous is not None
        ends.append(previous["end"])
    assert ends == [5, 20, 45, 80, 125, 180, 245, 320, 405, 500, 600, 700]


@given(
    st.floats(0.01, 1e6), st.sampled_from([0.0, 0.5, 7.0]), st.lists(st.integers(0, 5_000_000), min_size=1, max_size=8)
)
def test_a_row_is_never_emitted_before_it_is_due_and_times_do_not_fall(
    rate: float, ramp_up_s: float, waits: list[int]
) -> None:
    schedule = RowSchedule(0, 1_000_000, rate, ramp_up_s)
    at, last = schedule.from_us, 0
    for wait in waits:
        at += wait
        due = schedule.due(at)
        assert due >= last
        if due > last:
            times = schedule.times_of(max(last, due - 1000), due)
            assert (times[1:] >= times[:-1]).all()
            assert times[-1] <= at
            assert schedule.times_of(due - 1, due) == times[-1:]
        last = due


def test_throttled_it_takes_its_share_and_lag_tells_what_waits() -> None:
    now, spout = Now(), RateSpout(1000, rows_per_batch=500)
    coordinator = spout.get_coordinator({}, now)
    assert coordinator.initialize_transaction(1, None) is None
    now.time += 2
    coordinator.throttle(0.1)
    first = coordinator.initialize_transaction(1, None)
    assert first is not None
    assert (first["end"], coordinator.lag(first), coordinator.size(first)) == (50, Lag(1950, "records"), 800)
    coordinator.throttle(0.0001)
    second = coordinator.initialize_transaction(2, first)
    assert second is not None
    assert second["end"] == 51
    assert RateSpout(rows_per_batch=5).get_coordinator({}).lag(first) is None


def test_parts_are_as_many_as_said_and_have_all_rows() -> None:
    spout = RateSpout(rows_per_batch=100_000, rows=100_001, partitions=3)
    coordinator = spout.get_coordinator({})
    one, rest = definitions(coordinator)
    assert [end - start for _, start, end in coordinator.parts(TransactionAttempt(1, 0), one, 8)] == [
        33333,
        33333,
        33334,
    ]
    assert len(coordinator.parts(TransactionAttempt(2, 0), rest, 8)) == 1
    wide = RateSpout(rows_per_batch=100_000).get_coordinator({})
    assert [len(wide.parts(TransactionAttempt(1, 0), one, cores)) for cores in (1, 4, 64)] == [1, 4, 6]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "needs a rate"),
        ({"rows_per_second": 0}, "rows_per_second=0 of RateSpout: give a number above 0 or None"),
        ({"rows_per_second": float("inf")}, "rows_per_second=inf of RateSpout: give a number above 0, at most"),
        ({"rows_per_batch": 0}, "rows_per_batch=0 of RateSpout: give a whole number of at least 1 or None"),
        ({"rows_per_batch": 1, "partitions": 0}, "partitions=0 of RateSpout: give a whole number of at least 1"),
        ({"rows_per_batch": 1, "ramp_up_s": 1}, "there is no rate to reach"),
        ({"rows_per_second": 1, "ramp_up_s": -1}, "ramp_up_s=-1 of RateSpout: give seconds of at least 0"),
        ({"rows_per_second": 1, "rows": -1}, "rows=-1 of RateSpout: give a whole number of at least 0"),
        ({"rows_per_second": 1, "tick_s": 0}, "tick_s=0 of RateSpout: give seconds of at least 0.001"),
        ({"rows_per_second": 1, "tick_s": math.inf}, "tick_s=inf of RateSpout: give seconds of at least 0.001"),
        ({"rows_per_second": 1, "ramp_up_s": math.nan}, "ramp_up_s=nan of RateSpout: give seconds"),
        ({"rows_per_batch": math.inf}, "rows_per_batch=inf of RateSpout: give a whole number of at least 1"),
        ({"rows_per_batch": 1, "rows": 1.5}, "rows=1.5 of RateSpout: give a whole number"),
        ({"rows_per_batch": 1, "rows": math.nan}, "rows=nan of RateSpout: give a whole number"),
        ({"rows_per_batch": 1, "partitions": 1.5}, "partitions=1.5 of RateSpout: give a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RateSpout(**arguments)
