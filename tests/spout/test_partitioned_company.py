"""Partitioned spouts together with the rest: windows by time, other spouts, back-pressure; a spout that commits its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import WAIT_S, FailTimes, Points, RowsSpout, dict_state, keep, run_all, start
from tests.run.test_loop import looping
from tests.spout.partition_source import Source, Transactional, emitted
from tests.spout.test_partitioned import BOTH, FailingPoints, Fails
from trident import BatchFailedError, Fields, TridentTopology
from trident.channel import Clock
from trident.errors import FencedError
from trident.log.log_reader import LogReader
from trident.operations import Count, Sum
from trident.spout import Definition, Lag, SpoutType, TransactionAttempt

HOUR_MS = 3_600_000


class Wall(Clock):
    """A clock whose wall time is set by hand."""

    now_ms = 10 * HOUR_MS

    def wall_ms(self) -> int:
        return self.now_ms


def drained(loop: Any) -> None:
    done: threading.Event = loop.drain()
    assert done.wait(WAIT_S)


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", BOTH)
def test_windows_fire_while_the_source_is_idle_and_its_next_batch_has_its_own_time(
    kind: SpoutType, pending: int
) -> None:
    source, topology, clock = Source({"a": [1, 2]}), TridentTopology("t"), Wall()
    stream = topology.new_stream("s", source.spout(kind))
    fired = keep(stream.tumbling_window(timedelta(hours=1), MemoryMapState(), Count(), "count"))
    conf = {"engine": "in_process", "poll_interval_ms": 1, "max_spout_pending": pending}
    with looping(topology, clock, Points(), **conf) as loop:
        drained(loop)
        assert fired.rows == []
        clock.now_ms += HOUR_MS
        drained(loop)
        assert fired.rows == [(2,)]
        clock.now_ms += 5 * HOUR_MS
        drained(loop)
        source.rows["a"].append(3)
        drained(loop)
        clock.now_ms += HOUR_MS // 2  # still in the window of that batch, if its time is not that of the last idle look
        drained(loop)
        assert fired.rows == [(2,)]
        clock.now_ms += HOUR_MS
        drained(loop)
        assert fired.rows == [(2,), (1,)]


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", BOTH)
def test_a_replay_with_another_spout_has_what_both_had(kind: SpoutType, pending: int, tmp_path: Path) -> None:
    source, topology = Source({"a": list(range(8))}), TridentTopology("t")
    others = RowsSpout("x: string", {1: [["one"]], 3: [["three"]]})
    rows, other = keep(topology.new_stream("s", source.spout(kind)), "r"), keep(topology.new_stream("o", others), "o")
    run_all(topology, "in_process", observer=FailingPoints(2), max_spout_pending=pending)
    assert [n for _, n in rows.rows] == list(range(8))
    assert other.rows == [("one",), ("three",)]


def test_an_idle_look_logs_nothing_of_the_other_spouts(tmp_path: Path) -> None:
    source, topology = Source({"a": [1]}), TridentTopology("t")
    others = RowsSpout("x: string", {})
    stream = topology.new_stream("s", source.spout(SpoutType.TRANSACTIONAL))
    stream.group_by("partition").persistent_aggregate(dict_state({}, "transactional"), "n", Sum(), "sum")
    keep(topology.new_stream("o", others), "o")
    with start(topology, "in_process", log_dir=str(tmp_path)) as running:
        running.process_all_available()
        log = LogReader(tmp_path).refresh()
        assert (log.txid, log.definitions) == (1, {})


def test_progress_has_the_rows_and_the_lag_of_a_partitioned_source() -> None:
    class Knows(Source):
        def lag(self, metadata: Any) -> Lag:
            return Lag(len(self.rows["a"]) - metadata["a"]["end"], "rows")

    topology = TridentTopology("t")
    keep(topology.new_stream("s", Transactional(Knows({"a": list(range(5))}))))
    with start(topology, "in_process") as running:
        running.process_all_available()
        told = [batch["sources"][0] for batch in running.recent_progress]
    assert [(one["numInputRows"], one["lag"]) for one in told] == [
        (3, {"amount": 2, "unit": "rows"}),
        (2, {"amount": 0, "unit": "rows"}),
    ]


def test_a_tuple_that_always_fails_is_left_out_and_the_rest_counts_once(tmp_path: Path) -> None:
    source, topology = Source({"a": [1, 2, 3, 4]}), TridentTopology("t")
    (tmp_path / "calls").mkdir()
    stream = topology.new_stream("s", source.spout(SpoutType.TRANSACTIONAL)).map(_text, "text: string")
    rows = keep(stream.each("text", FailTimes(tmp_path / "calls", "2", 99, ValueError("bad")), "same: string"))
    conf: dict[str, Any] = {
        "on_poison": "dead_letter",
        "log_dir": str(tmp_path / "log"),
        "dead_letter_dir": str(tmp_path / "dead"),
    }
    run_all(topology, "in_process", **conf)
    assert rows.rows == [("1", "1"), ("3", "3"), ("4", "4")]


def _text(row: Any) -> str:
    return str(row[1])


def test_an_emitter_that_hangs_is_named() -> None:
    gate = threading.Event()
    source = Source({"a": [1]}, before=lambda partition: gate.wait(WAIT_S))
    topology = TridentTopology("t")
    keep(topology.new_stream("feed", source.spout(SpoutType.OPAQUE)))
    with pytest.raises(
        BatchFailedError, match=r"step 'feed': no end within message_timeout_s=0.2 seconds; it is still in "
    ):
        run_all(topology, "in_process", message_timeout_s=0.2, max_spout_pending=1)
    gate.set()


@pytest.mark.parametrize("kind", BOTH)
def test_a_source_that_only_the_driver_cannot_reach_is_an_error_and_no_silence(kind: SpoutType) -> None:
    source = Source({"a": [1, 2]}, before=_unreachable)
    with pytest.raises(
        BatchFailedError,
        match="batch 1 failed 3 times in step 's': SpoutError: .* of partition 'a': OSError: cannot reach a",
    ):
        emitted(source.spout(kind), "auto")


def _unreachable(partition: str) -> None:
    raise OSError(f"cannot reach {partition}")


class Committing:
    """Gives the numbers 0 to 3, two a batch, and writes down what it commits."""

    def __init__(self, spout_type: SpoutType, points: Points, before: Any = lambda: None) -> None:
        self.spout_type, self.points, self.before = spout_type, points, before
        self.committed: list[tuple[TransactionAttempt, Definition]] = []
        self.seen: list[list[str]] = []

    def get_output_fields(self) -> Fields:
        return Fields("n: bigint")

    def get_coordinator(self, conf: Mapping[str, Any]) -> Committing:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> NumbersEmitter:
        return NumbersEmitter()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        start = 0 if previous is None else previous["end"]
        return None if start == 4 else {"start": start, "end": start + 2}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return [(definition["start"], definition["end"])]

    def commit(self, attempt: TransactionAttempt, definition: Definition) -> None:
        self.seen.append(self.points.of(attempt.txid))
        self.committed.append((attempt, definition))
        self.before()

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class NumbersEmitter:
    is_quick = True

    def emit(self, part: tuple[int, int]) -> list[pa.Table]:
        return [pa.table({"n": pa.array(range(*part), pa.int64())})]


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", [SpoutType.TRANSACTIONAL, SpoutType.OPAQUE])
def test_it_commits_when_all_states_have_and_before_the_record(kind: SpoutType, pending: int) -> None:
    points = Points()
    spout = Committing(kind, points)
    rows = emitted(spout, observer=points, max_spout_pending=pending)
    assert [definition for _, definition in spout.committed] == [{"start": 0, "end": 2}, {"start": 2, "end": 4}]
    assert all(seen[-1] == "committed" for seen in spout.seen)
    assert rows.rows == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("pending", [1, 3])
def test_if_it_raises_the_attempt_fails_and_the_batch_is_committed_again(pending: int) -> None:
    points = Points()
    spout = Committing(SpoutType.TRANSACTIONAL, points, Fails(1))
    rows = emitted(spout, observer=points, max_spout_pending=pending)
    first, second, *_ = spout.committed
    assert (first[0].txid, first[1]) == (second[0].txid, second[1])
    assert first[0].attempt < second[0].attempt
    assert rows.rows == [(0,), (1,), (2,), (3,)]
    assert points.of(1).count("recorded") == 1


def test_a_commit_that_always_fails_ends_the_topology_and_nothing_is_recorded(tmp_path: Path) -> None:
    points = Points()
    spout = Committing(SpoutType.OPAQUE, points, Fails(1, 2, 3))
    with pytest.raises(BatchFailedError, match="batch 1 failed 3 times in step 's': OSError: not now"):
        emitted(spout, observer=points, log_dir=str(tmp_path))
    assert LogReader(tmp_path).refresh().txid == 0
    spout.before = lambda: None
    emitted(spout, observer=points, log_dir=str(tmp_path))
    assert [(attempt.txid, definition["end"]) for attempt, definition in spout.committed[-2:]] == [(1, 2), (2, 4)]


def test_a_driver_that_was_replaced_commits_nothing_in_the_source(tmp_path: Path) -> None:
    first, second, points = (make() for make in (Points, Points, Points))
    old, new = Committing(SpoutType.OPAQUE, first), Committing(SpoutType.OPAQUE, second)

    def observe(point: str, attempt: TransactionAttempt) -> None:
        points(point, attempt)
        if point == "committed" and attempt.txid == 1:
            emitted(new, observer=second, log_dir=str(tmp_path), takeover=True)

    with pytest.raises(FencedError):
        emitted(old, observer=observe, log_dir=str(tmp_path))
    assert old.committed == []
    assert [definition["end"] for _, definition in new.committed] == [2, 4]


def test_it_commits_on_each_engine(engine: str) -> None:
    points = Points()
    spout = Committing(SpoutType.OPAQUE, points)
    rows = emitted(spout, engine, points)
    assert [definition["end"] for _, definition in spout.committed] == [2, 4]
    assert rows.rows == [(0,), (1,), (2,), (3,)]
