"""Rows of a Delta state that expire: never early, always whole, never back, whoever reads and whatever is replayed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta import DeltaState, upkeep
from tests.harness.topology_runs import RowsSpout
from tests.states.delta.delta_states import Log, changes, commit, reader_at, state_at, values
from tests.states.delta.test_delta_staging import stage, step
from trident import TopologyError, TridentTopology
from trident.errors import ConfigError
from trident.operations import Count, TumblingCountWindow
from trident.spout import SpoutType
from trident.state.interfaces import StateType
from trident.testing import TopologyTestDriver

pytestmark = pytest.mark.slow

DAY = 86_400
STEP = DAY // 16


class Clock:
    """The time of the driver."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(time=clock.time))
    return clock


class Batches:
    """Commits batches, a step of the clock apart."""

    def __init__(self, clock: Clock, state: Any) -> None:
        self.clock, self.state, self.log, self.number = clock, state, Log(), 0

    def run(self, counts: dict[str, int], times: int = 1) -> None:
        for _ in range(times):
            self.number += 1
            commit(self.state, self.log, self.number, 1, counts)
            self.clock.now += STEP


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", list(StateType))
def test_what_was_not_written_for_so_long_goes_for_every_reader_and_starts_again(
    tmp_path: Path, clock: Clock, kind: StateType
) -> None:
    batches = Batches(clock, state_at(tmp_path, kind=kind, ttl_s=DAY, background_maintenance=False))
    batches.run({"old": 1, "new": 1})
    batches.run({"new": 1}, 16)
    assert values(batches.state, "old", "new") == [1, 17]
    before = batches.number
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old", "new", "x") == [None, 17, 2]
    for reader in (reader_at(tmp_path, kind), state_at(tmp_path, kind=kind)):
        assert sorted(reader.get_tuples()) == [("new", 17), ("x", 2)]
        assert values(reader, "old") == [None]
    assert values(reader_at(tmp_path, kind).at(before), "old", "new") == [1, 17]
    batches.state.close()
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().column("word").to_pylist()) == ["new", "x"]
    batches.run({"old": 5})
    assert values(batches.state, "old") == [5]


@pytest.mark.long
def test_the_next_full_compaction_takes_it_out_of_the_files(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY, compact_after_commits=4, background_maintenance=False))
    batches.run({"old": 1, "new": 1})
    batches.run({"new": 1}, 40)
    rows = DeltaTable(changes(tmp_path)).to_pyarrow_table().to_pylist()
    assert {row["word"] for row in rows} == {"new", None}  # None: the sentinels, which never expire
    assert batches.state.read_sentinel() == batches.log.expected


@pytest.mark.long
def test_marks_go_on_after_a_start_and_another_ttl(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"old": 1})
    batches.run({"x": 1}, 8)
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 8)
    batches.state = state_at(tmp_path)  # nothing expires, and nothing is noted
    batches.run({"other": 1})
    clock.now += 30 * DAY
    batches.run({"x": 1})
    assert values(batches.state, "old", "other") == [1, 1]
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old", "other") == [None, 1]  # of the other it is not known since when it is there
    batches.run({"x": 1}, 17)
    assert values(batches.state, "other") == [None]


def test_rows_of_before_count_from_the_first_commit_with_a_ttl(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path))
    batches.run({"old": 1})
    clock.now += 30 * DAY
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 17)
    assert values(batches.state, "old") == [1]
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old") == [None]


@pytest.mark.long
def test_marks_of_before_make_no_row_of_an_emptied_table_older(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"x": 1}, 20)
    batches.state.reset()
    batches.log = Log("another")
    batches.run({"old": 1})
    batches.run({"x": 1}, 15)
    assert values(batches.state, "old", "x") == [1, 15]
    batches.run({"x": 1}, 4)
    assert values(batches.state, "old", "x") == [None, 19]


def test_a_clock_that_goes_back_makes_no_row_older(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"x": 1}, 3)
    clock.now -= 10 * DAY
    batches.run({"old": 1})
    batches.run({"x": 1}, 20)
    assert values(batches.state, "old") == [1]


def test_what_tasks_stage_expires_by_the_clock_of_their_driver(tmp_path: Path, clock: Clock) -> None:
    task, driver, log = state_at(tmp_path, ttl_s=DAY), state_at(tmp_path, ttl_s=DAY), Log()
    step(task, driver, log, 1, 1, {"old": 1})
    for number in range(2, 20):
        clock.now += STEP
        stage(task, log.txid(number, 2 * number), {"x": 100})  # lost
        txid = log.txid(number, 2 * number + 1)
        clock.now -= 5 * DAY  # in the task
        staged = stage(task, txid, {"x": 1})
        clock.now += 5 * DAY
        driver.publish(txid, staged)
        log.record(txid)
        assert values(reader_at(tmp_path), "old") == [1 if number < 18 else None]
    assert values(reader_at(tmp_path), "x") == [18]


def test_a_commit_that_writes_a_row_keeps_it(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"old": 1, "other": 1})
    batches.run({"x": 1}, 16)
    batches.run({"old": 1})  # in the very commit that deletes what has expired
    assert values(batches.state, "old", "other") == [2, None]


def test_a_state_with_a_ttl_stays_in_memory_and_one_in_files_takes_none(tmp_path: Path, clock: Clock) -> None:
    log, words = Log(), {f"w{number}": 1 for number in range(30)}
    state = state_at(tmp_path / "a", ttl_s=DAY, max_keys_in_memory=5)
    for number in range(1, 4):
        commit(state, log, number, 1, words)
    assert state_at(tmp_path / "a", ttl_s=DAY)._backing.read_sentinel() == log.expected
    log = Log()
    state = state_at(tmp_path / "b", max_keys_in_memory=5)
    for number in range(1, 4):
        commit(state, log, number, 1, words)
    state.close()
    assert values(reader_at(tmp_path / "b"), "w3") == [3]
    with pytest.raises(ConfigError, match=r"ttl_s=86400 of state 'counts' .*: the state has outgrown memory"):
        state_at(tmp_path / "b", ttl_s=DAY).read_sentinel()


def test_what_cannot_expire_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ttl_s=60 of a Delta state: a value may expire before its batch is replayed"
    ):
        DeltaState.opaque(tmp_path, ttl_s=60)
    stream = TridentTopology("t").new_stream("s", RowsSpout("word: string", {}))
    with pytest.raises(TopologyError, match="expire 86400 seconds after they were written"):
        stream.window(TumblingCountWindow.of(3), DeltaState.opaque(tmp_path, ttl_s=DAY), "word", Count(), "n")


# ---- replays ---------------------------------------------------------------------------------------------------------

POINTS = ["process", "begin_commit:count", "put:count", "commit:count", "record"]
LIVES = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 300))]


@pytest.mark.long
@pytest.mark.parametrize("seed", LIVES)
def test_a_row_goes_whole_after_its_time_and_never_comes_back(seed: int, tmp_path: Path, clock: Clock) -> None:
    """A batch may be tried with other words each time, hours later; what an attempt wrote that failed counts as a write."""
    draw, topology, keys = random.Random(seed), TridentTopology("t"), "abcdef"
    spec = DeltaState.opaque(
        tmp_path, ttl_s=DAY, fsync=False, background_maintenance=False, compact_after_commits=draw.choice([3, 50])
    )
    stream = topology.new_stream("s", RowsSpout("word: string", {}, SpoutType.OPAQUE))
    counts = stream.group_by("word").persistent_aggregate(spec, Count(), "count")
    expected, written = Counter[str](), dict[str, float]()
    with TopologyTestDriver(topology, max_batch_attempts=9) as driver:
        for _ in range(25):
            rows = [draw.choice(keys[: draw.choice([1, 2, 6])]) for _ in range(draw.randint(1, 4))]
            driver.feed("s", *rows)
            for _ in range(draw.choice([0, 0, 0, 1, 2])):
                point = draw.choice(POINTS)
                driver.fail_at(point)
                result = driver.step()
                assert result is not None
                assert not result.committed
                if point not in ("process", "begin_commit:count", "put:count"):
                    written.update(dict.fromkeys(rows, clock.now))
                rows = [draw.choice(keys) for _ in range(draw.randint(1, 4))]
                driver.replay("s", *rows)
                clock.now += draw.choice([1, STEP, DAY // 2])
            found = dict(zip(keys, driver.state(counts).multi_get(list(keys)), strict=True))
            for key, value in found.items():
                if value is None and expected[key]:
                    assert clock.now - written[key] >= DAY, (seed, key)
                    del expected[key]  # it starts again
                assert value == (expected[key] or None), (seed, key)
            driver.run()
            gone = [key for key in keys if key not in rows and driver.state(counts).multi_get([key]) == [None]]
            for key in gone:
                assert not expected[key] or clock.now - written[key] >= DAY, (seed, key)
                del expected[key]
            expected.update(rows)
            written.update(dict.fromkeys(rows, clock.now))
            assert dict(driver.state(counts).get_tuples()) == dict(+expected), seed
            clock.now += draw.choice([1, STEP, DAY // 3])
        for _ in range(20):
            driver.feed("s", "z")
            driver.run()
            clock.now += STEP
        assert dict(driver.state(counts).get_tuples()) == {"z": 20}
