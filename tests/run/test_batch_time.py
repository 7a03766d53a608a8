"""The time of a batch: what is logged stays, it never goes back, and time alone is a reason only while a window is due."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state
from trident import TridentTopology
from trident.log.file_log import FileLog
from trident.log.records import TIME, DefineRecord
from trident.operations import Count, Sum, TumblingDurationWindow
from trident.run.batch import time_of_batch
from trident.spout import SpoutType
from trident.steps.local_times import LocalClock
from trident.testing import TopologyTestDriver
from trident.windows.grid import Grid

S = timedelta(seconds=1)
BEFORE = {"now": 105, "timers": 110}
# clock, what was logged, the batch before, has tuples: its time
TIMES: dict[str, tuple[int, Any, Any, bool, Any]] = {
    "the first one": (105, None, None, True, {"now": 105}),
    "the clock went back": (90, None, BEFORE, True, {"now": 105}),
    "the clock went on": (107, None, BEFORE, True, {"now": 107}),
    "it was logged": (200, {"now": 110}, BEFORE, True, {"now": 110}),
    "it was logged without tuples": (200, {"now": 110}, None, False, {"now": 110}),
    "nothing is due before the first tuples": (10_000, None, None, False, None),
    "nothing is held": (10_000, None, {"now": 105}, False, None),
    "a window is not yet due": (109, None, BEFORE, False, None),
    "it is due at its end": (110, None, BEFORE, False, {"now": 110}),
    "it is overdue": (10_000, None, BEFORE, False, {"now": 10_000}),
    "a program before did not say when": (106, None, {"now": 105, "tuples_at": 105}, False, {"now": 106}),
}  # fmt: skip


@pytest.mark.parametrize("case", TIMES)
def test_a_batch_has_the_time_that_was_logged_or_the_clocks_which_never_goes_back(case: str) -> None:
    *given, expected = TIMES[case]
    assert time_of_batch(*given) == expected


def test_as_long_as_a_window_has_tuples_and_no_longer() -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", RowsSpout("n: int", {})).sliding_window(30 * S, 10 * S, "n", Sum(), "n", state_name="w")
    started = list[int]()
    with TopologyTestDriver(topology) as driver:
        driver.feed("s", 7)
        for second in range(40):
            driver.run()
            started += [second] * (driver.txid - len(started))
            driver.clock.advance(1)
    assert started == [0, 10, 20, 30]


@given(st.integers(1, 20), st.integers(1, 4), st.integers(-5, 40), st.integers(-50, 400), st.booleans())
def test_the_next_end_is_the_first_moment_at_which_a_window_with_a_pane_ends(
    slide: int, slides: int, pane: int, minutes: int, in_zone: bool
) -> None:
    change, width = 1_743_296_400 * in_zone, slide * 600  # clocks are put forward an hour, in seconds
    grid = Grid(slides * width, width, 0, LocalClock("Europe/Berlin", 1) if in_zone else None)
    pane, frontier = pane + change // width, change + 60 * minutes
    if grid.is_over(pane, frontier):
        return
    found = grid.next_end([pane, pane + 1], frontier)
    end = min(end for end in grid.ends_of(pane) if end > grid.complete_up_to(frontier))
    assert found is not None
    assert found > frontier
    assert grid.complete_up_to(found) >= end > grid.complete_up_to(found - 1)


def test_time_begins_again_at_the_clock_if_it_may_and_is_far_ahead() -> None:
    before, again = {"now": 500_000, "timers": 510_000}, {"now": 105, "begins_again": True}
    assert time_of_batch(105, None, before, False, may_begin_again=True) == again
    assert time_of_batch(900, again, before, False) == again  # a replay
    assert time_of_batch(107, None, again, True, may_begin_again=True) == {"now": 107}
    assert time_of_batch(450_000, None, before, True, may_begin_again=True) == {"now": 500_000}
    assert time_of_batch(105, {"now": 500_000}, before, False, may_begin_again=True) == {"now": 500_000}


def counting(state: Any) -> TridentTopology:
    topology = TridentTopology("t")
    spout = RowsSpout("w: string", {}, SpoutType.OPAQUE)
    topology.new_stream("s", spout).tumbling_window(S, state, Count(), "n", state_name="w")
    return topology


def test_a_batch_that_time_alone_began_is_replayed_with_what_has_come_since() -> None:
    with TopologyTestDriver(counting(MemoryMapState.opaque())) as driver:
        driver.feed("s", "a")
        driver.run()
        driver.clock.advance(1)
        driver.fail_at("put:w")
        failed = driver.step()
        assert failed is not None
        assert not failed.committed
        driver.feed("s", "b")  # an opaque spout is asked anew
        driver.clock.advance(5)
        assert [(result.tuples, result.new_values["w"]) for result in driver.run()] == [(1, [(1,)]), (0, [(1,)])]


def test_time_goes_on_over_a_restart_and_not_back(tmp_path: Any) -> None:
    entries: dict[Any, Any] = {}
    with TopologyTestDriver(counting(dict_state(entries)), log_dir=str(tmp_path)) as driver:
        driver.clock.advance(100.5)
        driver.feed("s", "a")
        driver.run()
    with TopologyTestDriver(counting(dict_state(entries)), log_dir=str(tmp_path)) as driver:  # its clock is at 0
        assert driver.run() == []
        driver.clock.advance(100.9)
        assert driver.run() == []
        driver.clock.advance(0.1)
        assert [result.new_values["w"] for result in driver.run()] == [[(1,)]]
    log = FileLog.open(str(tmp_path), "t")
    assert [record.spouts[TIME] for record in log.state.history] == [
        {"now": 100_500, "timers": 101_000},
        {"now": 101_000},
    ]
    log.close()


POINTS = ["define", "process", "begin_commit:w", "put:w", "commit:w", "record"]


@pytest.mark.parametrize("point", POINTS)
def test_time_that_begins_again_does_so_with_one_batch_whatever_ends_the_driver(point: str, tmp_path: Path) -> None:
    entries: dict[Any, Any] = {}
    with TopologyTestDriver(counting(dict_state(entries)), log_dir=str(tmp_path)) as driver:
        driver.clock.advance(1000.5)
        driver.feed("s", "a")
        driver.run()
    with TopologyTestDriver(counting(dict_state(entries)), log_dir=str(tmp_path), reset_batch_time=True) as driver:
        driver.clock.advance(3.2)
        driver.feed("s", "b")
        driver.fail_at(point)
        assert [result.committed for result in [driver.step()] if result] == [False]
    began = point != "define"  # then the log says so, and the next driver need not be told
    with TopologyTestDriver(counting(dict_state(entries)), log_dir=str(tmp_path), reset_batch_time=not began) as driver:
        driver.clock.advance(3.3)
        driver.feed("s", "b", "c")  # an opaque spout may give more
        assert [result.new_values["w"] for result in driver.run()] == [[(1,)]]  # the first batch's
        driver.clock.advance(1)
        assert [result.new_values["w"] for result in driver.run()] == [[(2,)]]
        times = [record.spouts[TIME] for record in driver.log_state.history]
        driver.clock.advance(2000)
        driver.feed("s", "d")
        assert [result.new_values["w"] for result in driver.run()] == [[]]  # nothing is held any more
    again = 3200 if began else 3300
    assert times == [
        {"now": 1_000_500, "timers": 1_001_000},
        {"now": again, "timers": 4000, "begins_again": True},
        {"now": 4300},
    ]


@pytest.mark.parametrize("point", POINTS)
def test_time_begins_again_once_in_windows_behind_windows(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = TridentTopology("t")
    first = topology.new_stream("s", RowsSpout("n: int", {})).sliding_window(
        20 * S, 10 * S, "n", Sum(), "a", state_name="w"
    )
    second = first.tumbling_window(10 * S, "a", Sum(), "b")
    with TopologyTestDriver(topology, reset_batch_time=True) as driver:

        def runs_at(seconds: float, *rows: int) -> None:
            monkeypatch.setattr(driver.clock, "wall_ms", lambda: round(seconds * 1000))
            if rows:
                driver.feed("s", *rows)
            driver.run()

        runs_at(1005, 1)
        runs_at(1010)  # the first of its two windows
        driver.fail_at(point)
        runs_at(3, 2)
        for seconds in (10, 20, 30, 40):
            runs_at(seconds)
        fired = [
            [(txid, row) for txid, rows in driver.captured(window).items() for row in rows]
            for window in (first, second)
        ]
    assert fired == [[(2, (1,)), (3, (1,)), (4, (2,)), (5, (2,))], [(3, (1,)), (4, (1,)), (5, (2,)), (6, (2,))]]


def test_windows_behind_windows_are_due_without_a_tuple_of_a_spout() -> None:
    topology = TridentTopology("t")
    first = topology.new_stream("s", RowsSpout("n: int", {})).tumbling_window(60 * S, "n", Sum(), "a")
    second = first.tumbling_window(10 * S, "a", Sum(), "b")
    third = second.sliding_window(20 * S, 10 * S, "b", Sum(), "c")
    with TopologyTestDriver(topology) as driver:
        driver.feed("s", 7)
        for _ in range(12):
            driver.run()
            driver.clock.advance(10)
        for window, fired in ((first, 1), (second, 1), (third, 2)):
            assert [row for rows in driver.captured(window).values() for row in rows] == [(7,)] * fired
        driver.clock.advance(1000)
        driver.run()
        assert driver.run() == []  # it comes to an end


def test_what_is_available_is_processed_while_windows_come_due_for_hours() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("n: int", 1, (1,), (2,)))
    total = stream.persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    stream.sliding_window(timedelta(hours=10), timedelta(milliseconds=1), "n", Sum(), "sum")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state(total).get() == 3


def test_a_batch_that_time_alone_began_is_run_also_when_the_window_is_gone(tmp_path: Path) -> None:
    with closing(FileLog.open(tmp_path, "t")) as log:
        log.append(DefineRecord(1, "s", None))
        log.append(DefineRecord(1, TIME, {"now": 5}))
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("n: int", 1, (1,), (2,)))
    total = stream.persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    with topology.start(engine="in_process", log_dir=tmp_path) as running:
        running.process_all_available()
        assert running.state(total).get() == 3


def test_a_clock_that_was_ahead_is_told_once_with_since_when_and_until_when(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout("n: int", {}))
    stream.window(TumblingDurationWindow.of(10 * S), "n", Count(), "count")
    right, wrong = 1_790_000_000_000, 2_105_000_000_000
    with TopologyTestDriver(topology) as driver:
        for number, clock_ms in enumerate((right, wrong, right, right), 1):
            monkeypatch.setattr(driver.clock, "wall_ms", lambda clock_ms=clock_ms: clock_ms)
            assert "has been standing still" not in caplog.text or number == 4
            driver.feed("s", [number])
            driver.run()
            assert driver.txid == number
    assert caplog.text.count("has been standing still") == 1
    ahead = datetime.fromtimestamp(wrong // 1000, UTC)
    assert f"has been standing still at {ahead:%Y-%m-%d %H:%M:%S} UTC since batch 2" in caplog.text
    assert "start once with reset_batch_time=True" in caplog.text
