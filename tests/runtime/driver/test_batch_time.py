"""The time of a batch: what is logged stays, it never goes back, and time alone is a reason only while a window is due."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, dict_state
from trident import TridentTopology
from trident.coordination.records import DefineRecord
from trident.coordination.transaction_log import FileLog
from trident.operations import Count, Sum, TumblingCountWindow, TumblingDurationWindow
from trident.planner import make_plan
from trident.runtime.driver.batch_time import TIME, BatchTime, now_of
from trident.runtime.windows.grid import Grid
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

S = timedelta(seconds=1)
TUMBLING = BatchTime([Grid(10, 10)])
SLIDING = BatchTime([Grid(30, 10)])


def test_a_batch_with_tuples_has_the_time_of_the_clock_which_never_goes_back() -> None:
    first = TUMBLING.define(105, None, None, has_tuples=True)
    assert first == {"now": 105, "tuples_at": 105}
    assert TUMBLING.define(90, None, first, has_tuples=True) == {"now": 105, "tuples_at": 105}
    assert TUMBLING.define(107, None, first, has_tuples=True) == {"now": 107, "tuples_at": 107}


def test_what_was_logged_stays() -> None:
    before = {"now": 105, "tuples_at": 103}
    assert TUMBLING.define(200, {"now": 110}, before, has_tuples=True) == {"now": 110, "tuples_at": 110}
    assert TUMBLING.define(200, {"now": 110}, before, has_tuples=False) == {"now": 110, "tuples_at": 103}
    assert TUMBLING.define(200, {"now": 110}, None, has_tuples=False) == {"now": 110, "tuples_at": 110}


def test_nothing_is_due_before_the_first_tuples() -> None:
    assert TUMBLING.define(10_000, None, None, has_tuples=False) is None


@pytest.mark.parametrize(
    ("time", "clock", "due"),
    [
        (TUMBLING, 109, False),
        (TUMBLING, 110, True),
        (TUMBLING, 10_000, True),
        (SLIDING, 110, True),
    ],
)
def test_a_window_with_tuples_is_due_at_its_end(time: BatchTime, clock: int, due: bool) -> None:
    assert (time.define(clock, None, {"now": 105, "tuples_at": 105}, has_tuples=False) is not None) is due


def test_as_long_as_a_window_has_tuples_and_no_longer() -> None:
    definition: dict[str, int] | None = {"now": 105, "tuples_at": 105}
    started = []
    for clock in range(105, 400):
        after = SLIDING.define(clock, None, definition, has_tuples=False)
        if after is not None:
            started.append(clock)
            definition = after
    assert started == [110, 120, 130]


def test_an_adopted_batch_has_what_was_logged_of_it() -> None:
    assert TUMBLING.define(110, None, {"now": 105}, has_tuples=False) == {"now": 110, "tuples_at": 105}


def test_only_windows_by_the_time_of_the_batch_need_it() -> None:
    def time_of(*configs: Any) -> BatchTime | None:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", FixedBatchSpout("at: timestamp", 1, (None,)))
        for number, config in enumerate(configs):
            stream.window(config, Count(), "n", state_name=f"w{number}")
        return BatchTime.of(make_plan(topology.graph()))

    by_event_time = TumblingDurationWindow.of(S).by_event_time("at")
    assert time_of(TumblingCountWindow.of(2), by_event_time) is None
    assert time_of(by_event_time, TumblingDurationWindow.of(S)) is not None


# ---- in a topology ---------------------------------------------------------------------------------------------------


def counting(state: Any) -> TridentTopology:
    topology = TridentTopology("t")
    spout = RowsSpout("w: string", {}, SpoutType.OPAQUE)
    topology.new_stream("s", spout).tumbling_window(S, state, Count(), "n", state_name="w")
    return topology


@pytest.mark.parametrize("point", ["process", "begin_commit:w", "put:w", "commit:w", "record"])
def test_a_replay_has_the_time_of_the_first_attempt(point: str) -> None:
    with TopologyTestDriver(counting(MemoryMapState.opaque())) as driver:
        driver.clock.advance(0.9)
        driver.feed("s", "a", "b")
        driver.fail_at(point)
        assert [result.committed for result in [driver.step()] if result] == [False]
        driver.clock.advance(0.05)
        driver.replay("s", "a", "b", "c")
        driver.clock.advance(2)  # past the end of the window that the tuples are in
        results = driver.run()
        assert [result.new_values["w"] for result in results] == [[], [(3,)]]
        assert driver.log_state.history[0].spouts[TIME] == {"now": 900, "tuples_at": 900}
        assert now_of(driver.log_state.history[1].spouts) in (2950, 2951)  # a failed attempt waits for 1 ms


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
        {"now": 100_500, "tuples_at": 100_500},
        {"now": 101_000, "tuples_at": 100_500},
    ]
    log.close()


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
            assert "stands still" not in caplog.text or number == 4
            driver.feed("s", [number])
            driver.run()
            assert driver.txid == number
    assert caplog.text.count("stands still") == 1
    ahead = datetime.fromtimestamp(wrong // 1000, UTC)
    assert f"stands still at {ahead:%Y-%m-%d %H:%M:%S} UTC since batch 2" in caplog.text
    assert "begin with another log_dir" in caplog.text
    assert "a spout whose position is in the log begins" in caplog.text
