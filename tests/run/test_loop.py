"""The life of a batch on both engines: order, overlap, throttle, replays, timeouts, stops. Events say when."""

import gc
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.topology_runs import (
    GATES,
    WAIT_S,
    FailTimes,
    GatedState,
    Keep,
    OneSpout,
    Points,
    RowsSpout,
    RowsState,
    dict_state,
    keep,
    run_all,
    start,
    touch,
)
from trident import BatchFailedError, Config, FailedException, ReportedFailedException, TridentTopology
from trident.channel import Clock
from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import InProcessRunner
from trident.engine.tasks import run_parts_task
from trident.errors import FencedError, RetriesUsedUpError, SpoutError, TopologyError, TridentError
from trident.log.file_log import FileLog
from trident.log.log_interface import MemoryLog
from trident.operations import Count, Function
from trident.plan import make_plan
from trident.run.batch import Lane
from trident.run.execution import lanes
from trident.run.loop import BatchLoop
from trident.run.opened_topology import OpenedTopology
from trident.run.progress import Progress
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import RETRY_BITS
from trident.steps.failures import failure_of
from trident.testing import TopologyTestDriver

LIFE = ["defined", "processed", "committing", "committed", "recorded", "succeeded"]


def letters(text: str = "abc") -> FixedBatchSpout:
    return FixedBatchSpout("x: string", 1, *([letter] for letter in text))


def test_every_batch_passes_its_points_in_order(engine: str, topology: TridentTopology) -> None:
    rows, points = keep(topology.new_stream("s", letters("abcdef"))), Points()
    with start(topology, engine, points) as running:
        running.process_all_available()
    assert rows.rows == [(letter,) for letter in "abcdef"]
    for txid in range(1, 7):
        assert points.of(txid) == LIFE
    order = [(point, attempt.txid) for point, attempt in points.reached]
    for txid in range(1, 6):
        assert order.index(("defined", txid)) < order.index(("defined", txid + 1))
        assert order.index(("recorded", txid)) < order.index(("committing", txid + 1))


def test_later_batches_are_processed_while_one_commits(engine: str, topology: TridentTopology, gate: str) -> None:
    state, points = GatedState(gate, 1), Points()
    topology.new_stream("s", letters("abcde")).partition_persist(state, Keep(), "y: string")
    with start(topology, engine, points, max_spout_pending=3) as running:
        GATES.await_reached(gate)
        points.await_point("processed", 2)
        points.await_point("processed", 3)
        assert (running.txid, points.of(2), points.of(3), points.of(4)) == (0, LIFE[:2], LIFE[:2], [])
        GATES.open(gate)
        running.process_all_available()
        assert running.txid == 5
    assert state.calls == [f"{call} {txid}" for txid in range(1, 6) for call in ("begin", "commit")]


class HandClock(Clock):
    """Moves when told to; knows how often it was looked at."""

    def __init__(self) -> None:
        self._changed, self._now, self._looks = threading.Condition(), 1000.0, 0

    def monotonic(self) -> float:
        with self._changed:
            self._looks += 1
            self._changed.notify_all()
            return self._now

    def wall_ms(self) -> int:
        return 86_400_000

    def cpu(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds

    def settle(self, wake: Callable[[], object]) -> None:
        """Let the loop go round at least twice: it looks nine times, and at most three times in a round."""
        enough, ends = self._looks + 9, time.monotonic() + WAIT_S
        while self._looks < enough:
            assert time.monotonic() < ends, f"it looks {enough - self._looks} times too few"
            wake()  # again, as a round may look less often, and the next one would be long in coming
            with self._changed:
                self._changed.wait_for(lambda: self._looks >= enough, 0.01)


@contextmanager
def looping(topology: TridentTopology, clock: Clock, points: Points, **conf: Any) -> Iterator[BatchLoop]:
    """Run a loop of the real parts, in process, by a given clock."""
    graph = topology.graph()
    opened = OpenedTopology(graph, make_plan(graph), Config.of(conf), lambda states: MemoryLog("t"))
    with ThreadPoolExecutor(3) as pool, ThreadPoolExecutor(1) as commits, ThreadPoolExecutor(1) as driver:
        lane_of, progress = lanes(Lane(pool.submit, commits.submit)), Progress(opened.plan, 9, clock)
        loop = BatchLoop(opened, lane_of, progress, clock, points, True)
        ended = driver.submit(loop.run)
        try:
            yield loop
        finally:
            loop.stop()
            ended.result(WAIT_S)


def test_the_emit_interval_caps_the_starts(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", letters()))
    clock, points = HandClock(), Points()
    with looping(topology, clock, points, engine="in_process", batch_emit_interval_ms=10_000) as loop:
        points.await_point("succeeded", 1)
        for seconds, started in ((0.0, 1), (9.75, 1), (0.25, 2), (9.75, 2), (100.0, 3)):
            clock.advance(seconds)
            if len(points.attempts("defined")) < started:
                loop.drain()
                points.await_point("succeeded", started)
            else:
                clock.settle(loop.drain)
            assert len(points.attempts("defined")) == started


def test_a_replay_waits_for_a_backoff_that_doubles_up_to_its_maximum(topology: TridentTopology, tmp_path: Path) -> None:
    keep(topology.new_stream("s", letters("a")).each("x", FailTimes(tmp_path, "a", 4, FailedException("no")), "y"))
    clock, points = HandClock(), Points()
    conf = {"max_batch_attempts": 5, "retry_backoff_ms": 1000, "retry_backoff_max_ms": 3000, "poll_interval_ms": 0}
    with looping(topology, clock, points, engine="in_process", **conf) as loop:
        points.await_point("defined", 1)
        for tries, backoff in ((1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0)):
            while loop._progress.failures < tries:  # until the loop has heard that the attempt failed
                clock.settle(loop.drain)
            clock.settle(loop.drain)
            clock.advance(backoff - 0.25)
            clock.settle(loop.drain)
            assert len(points.attempts("defined")) == tries
            clock.advance(0.25)
            loop.drain()
            points.await_point("defined", 1, times=tries + 1)
        points.await_point("succeeded", 1)
    assert [attempt.attempt & 0xFFFFF for attempt in points.attempts("defined")] == [0, 1, 2, 3, 4]


def test_an_idle_driver_that_was_replaced_ends(topology: TridentTopology) -> None:
    topology.new_stream("s", letters()).persistent_aggregate(MemoryMapState(), Count(), "count")
    with TopologyTestDriver(topology) as driver:
        assert driver.step() is None
        driver._memory_log.reopen(takeover=True)
        driver.clock.advance(1.9)
        assert driver.step() is None  # it looks every few seconds only
        driver.clock.advance(0.1)
        with pytest.raises(FencedError, match="this writer is epoch 1, but epoch 2 has taken over"):
            driver.step()


def test_a_driver_that_is_replaced_while_processing_commits_nothing(topology: TridentTopology, tmp_path: Path) -> None:
    state = keep(topology.new_stream("s", letters()))

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if (point, attempt.txid) == ("processed", 2):  # the first batch also logs what is declared
            FileLog.open(tmp_path, "t", takeover=True).close()

    running = start(topology, "in_process", observe, log_dir=tmp_path, max_spout_pending=1)
    with pytest.raises(FencedError, match="has taken over"):
        running.await_termination(WAIT_S)
    assert state.calls == ["begin 1", "commit 1"]


def test_a_driver_that_was_replaced_does_not_say_that_all_is_committed(topology: TridentTopology) -> None:
    feeder = FeederBatchSpout("x: string")
    topology.new_stream("s", feeder).persistent_aggregate(MemoryMapState(), Count(), "count")
    first = start(topology, "in_process")
    feeder.feed([["a"]])
    with start(topology, "in_process", takeover=True), pytest.raises(FencedError, match="has taken over"):
        first.process_all_available()
    assert not first.is_active


@pytest.mark.parametrize("error", [FailedException("please replay"), RuntimeError("a bug")])
def test_a_failed_batch_is_replayed(error: Exception, engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    stream, points = topology.new_stream("s", letters()), Points()
    rows = keep(stream.each("x", FailTimes(tmp_path, "b", 2, error), "y").project("y"))
    with start(topology, engine, points, max_batch_attempts=3) as running:
        running.process_all_available()
        assert running.status["failures"] == 2
        assert running.status["lastFailure"] == f"{type(error).__name__}: {error}"
    assert rows.batches == {1: [("a",)], 2: [("b",)], 3: [("c",)]}
    won = {attempt.txid: attempt.attempt for attempt in points.attempts("recorded")}
    assert won[2] == won[3] == 1 << RETRY_BITS | 2
    assert won[1] <= won[2]


def test_a_batch_that_fails_too_often_stops_it_until_a_restart(
    engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    (tmp_path / "calls").mkdir()
    entries: dict[Any, Any] = {}
    words = topology.new_stream("s", letters()).each(
        "x", FailTimes(tmp_path / "calls", "b", 3, RuntimeError("lost")), "y"
    )
    state = words.group_by("y").persistent_aggregate(dict_state(entries), Count(), "count")
    running = start(topology, engine, log_dir=tmp_path / "log")
    with pytest.raises(BatchFailedError) as caught:
        running.process_all_available()
    error = caught.value
    assert (error.txid, error.attempts, error.step, error.row) == (2, 3, "s/FailTimes", "[x='b']")
    assert str(error) == (
        "batch 2 failed 3 times in step 's/FailTimes' on tuple [x='b']: RuntimeError: lost. Nothing of it is committed; after "
        'the cause is fixed a restart continues with this batch (or set on_poison="dead_letter" to leave such tuples out)'
    )
    assert running.exception() is error
    assert (running.is_active, running.txid) == (False, 1)
    assert running.status["message"] == f"failed: {error}"
    for wait in (running.await_termination, running.process_all_available):
        with pytest.raises(BatchFailedError, match="batch 2 failed 3 times"):
            wait()
    with start(topology, engine, points := Points(), log_dir=tmp_path / "log") as again:
        again.process_all_available()
        assert again.state(state).multi_get(["a", "b", "c"]) == [1, 1, 1]
    assert [attempt.txid for attempt in points.attempts("recorded")] == [2, 3]
    assert all(attempt.attempt >> RETRY_BITS == 2 for attempt in points.attempts("defined"))


class Failing(RowsState):
    """Raises at a call of the commit of a batch, so and so often."""

    def __init__(self, times: dict[tuple[str, int], int]) -> None:
        super().__init__()
        self.times, self.txid = times, 0

    def fail(self, call: str) -> None:
        if self.times.get((call, self.txid), 0):
            self.times[call, self.txid] -= 1
            raise ConnectionError(f"in {call}")

    def begin_commit(self, txid: int) -> None:
        self.txid = int(txid)
        self.fail("begin")
        super().begin_commit(txid)

    def commit(self, txid: int) -> None:
        super().commit(txid)
        self.fail("commit")


class FailingKeep(Keep):
    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        super().update_state(state, tuples, collector)
        state.fail("update")


def test_failures_of_an_earlier_batch_do_not_count_as_tries(engine: str, topology: TridentTopology) -> None:
    conf: dict[str, Any] = {"max_batch_attempts": 3, "max_spout_pending": 3}
    state = Failing({("commit", 1): 2, ("commit", 2): 2})
    topology.new_stream("s", letters("abc")).partition_persist(state, Keep(), "y: string")
    running = run_all(topology, engine, **conf)
    assert (running.txid, running.status["failures"]) == (3, 4)
    assert state.rows == [("a",), ("b",), ("c",)]
    again = TridentTopology("t")
    state = Failing({("commit", 1): 2, ("commit", 2): 3})
    again.new_stream("s", letters("abc")).partition_persist(state, Keep(), "y: string")
    with pytest.raises(BatchFailedError, match="batch 2 failed 3 times"):
        run_all(again, engine, **conf)


def test_failures_of_an_earlier_batch_make_no_dead_letters(topology: TridentTopology, tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    stream = topology.new_stream("s", letters("abc"))
    committed = stream.partition_persist(Failing({("commit", 1): 2}), Keep(), "y: string").new_values_stream()
    rows = keep(committed.each("y", FailTimes(tmp_path / "calls", "b", 2, RuntimeError("twice")), "z").project("z"))
    conf = {"max_batch_attempts": 3, "on_poison": "dead_letter", "dead_letter_dir": tmp_path / "dead"}
    run_all(topology, "in_process", **conf)
    assert rows.rows == [("a",), ("b",), ("c",)]
    assert not (tmp_path / "dead").exists()


def test_a_driver_out_of_attempt_numbers_ends_and_a_restart_goes_on(topology: TridentTopology, tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    feeder, points = FeederBatchSpout("x: string"), Points()
    failing = FailTimes(tmp_path / "calls", "b", 2, FailedException("again"))
    rows = keep(topology.new_stream("s", feeder).each("x", failing, "y").project("y"))
    conf = {"max_batch_attempts": 9, "log_dir": tmp_path / "log"}
    running = start(topology, "in_process", points, **conf)
    feeder.feed([["a"]])
    running.loop._coordinator._retry = (1 << RETRY_BITS) - 2  # as after a million failures
    feeder.feed_nowait([["b"]])
    with pytest.raises(RetriesUsedUpError, match="batch 2 failed 2 times.* a restart numbers from the beginning"):
        running.await_termination(WAIT_S)
    with start(topology, "in_process", points, **conf) as again:
        again.process_all_available()
    assert rows.rows == [("a",), ("b",)]
    assert [str(attempt) for attempt in points.attempts("defined")] == [
        "1 (start 1)", "2 (start 1, retry 1048574)", "2 (start 1, retry 1048575)", "2 (start 2)",
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["begin", "update", "commit"])
def test_a_failed_commit_is_replayed_and_counts_once(call: str, engine: str, topology: TridentTopology) -> None:
    failing, stream = Failing({(call, 1): 1}), topology.new_stream("s", letters("aab"))
    # It is committed before the failure:
    counts = stream.group_by("x").persistent_aggregate(MemoryMapState(), Count(), "count")
    stream.partition_persist(failing, FailingKeep(), "y: string")
    running = run_all(topology, engine)
    assert dict(running.state(counts).get_tuples()) == {"a": 2, "b": 1}
    assert failing.rows == [("a",), ("a",), ("b",)]
    assert (running.status["failures"], running.status["lastFailure"]) == (1, f"ConnectionError: in {call}")


def test_no_attempt_commits_while_an_earlier_one_is_still_at_a_partition(topology: TridentTopology, gate: str) -> None:
    failed = threading.Event()

    class Two(RowsState):
        """Partition 0 fails once; partition 1 is slow, and tells if it is begun anew meanwhile."""

        def __init__(self, partition: int = 0) -> None:
            super().__init__()
            self.partition, self.at_work, self.overlaps = partition, False, 0

        def begin_commit(self, txid: int) -> None:
            self.overlaps += self.at_work
            super().begin_commit(txid)

        def commit(self, txid: int) -> None:
            if not failed.is_set() and self.partition == 0:
                GATES.await_reached(gate)
                failed.set()
                raise ConnectionError("partition 0 is away")
            if self.partition == 1 and not self.calls.count("commit 1"):
                self.at_work = True
                GATES[f"{gate} reached"].set()
                assert failed.wait(WAIT_S)
                points_or_not = points_seen.wait(0.3)  # a new attempt would begin within this time, were it let to
                self.at_work = False
                assert not points_or_not
            super().commit(txid)

    partitions = [Two(0), Two(1)]
    points_seen = threading.Event()

    class Factory:
        in_memory = True

        def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Two:
            return partitions[partition_index]

    rows = [[f"w{n}"] for n in range(8)]
    stream = topology.new_stream("s", FixedBatchSpout("x: string", 8, *rows))
    stream.shuffle().partition_persist(Factory(), Keep(), "y: string").parallelism_hint(2)

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if point == "committing" and attempt.attempt & 0xFFFFF:
            points_seen.set()

    with start(topology, "in_process", observe) as running:
        running.process_all_available()
    assert failed.is_set()
    assert [state.overlaps for state in partitions] == [0, 0]
    assert sorted(partitions[0].rows + partitions[1].rows) == sorted((row[0],) for row in rows)


def test_a_definition_that_cannot_be_had_is_tried_again(engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    def rows() -> list[list[str]]:
        if touch(tmp_path) < 2:
            raise FailedException("the source is away")
        return [["b"]]

    kept = keep(topology.new_stream("s", RowsSpout("x: string", {1: [["a"]], 2: rows, 3: [["c"]]})))
    running = run_all(topology, engine)
    assert kept.batches == {1: [("a",)], 2: [("b",)], 3: [("c",)]}
    assert running.status["lastFailure"] == "FailedException: the source is away"


def never() -> list[list[str]]:
    raise OSError("no such source")


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ({1: [[1]], 2: never}, "batch 2 failed 3 times in step 's': OSError: no such source"),
        ({1: [[1]], 2: [["a"]]}, r"SpoutError: RowsSpout.emit_batch\(2\) emitted rows that do not fit"),
    ],
)
def test_a_definition_that_never_comes_ends_it(
    batches: dict[int, Any], said: str, engine: str, topology: TridentTopology
) -> None:
    keep(topology.new_stream("s", RowsSpout("x: int", batches)))
    running = start(topology, engine)
    with pytest.raises(BatchFailedError, match=said):
        running.process_all_available()
    assert running.txid == 1


class UncutSpout(OneSpout):
    """A spout of a row whose parts cannot be cut so and so often; it notes into how many they are to be cut."""

    def __init__(self, times: int = 0) -> None:
        self.times, self.asked = times, list[int]()

    def parts(self, attempt: TransactionAttempt, definition: Any, parallelism: int) -> list[Any]:
        self.asked.append(parallelism)
        if len(self.asked) <= self.times:
            raise SpoutError("cannot list the parts")
        return [definition]

    def emit(self, part: Any) -> list[pa.Table]:
        return [pa.table({"x": ["a"]})]


def test_parts_that_cannot_be_cut_fail_the_attempt(engine: str, topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", UncutSpout(2)))
    running = run_all(topology, engine)
    assert rows.rows == [("a",)]
    assert running.status["lastFailure"] == "SpoutError: cannot list the parts"


class Coordinator:
    """It has not all that it needs."""

    def initialize_transaction(self, txid: int, previous: Any) -> None: ...
    def success(self, txid: int, definition: Any) -> None: ...
    def close(self) -> None: ...


COORDINATORS: dict[str, tuple[dict[str, Any], str]] = {
    "without parts": (
        {"get_coordinator": lambda self, conf: Coordinator()}, "stream 's': its spout's coordinator, a Coordinator, lacks parts"
    ),
    **{
        name: ({name: lambda self, *given: False}, f"has {name}, which nothing asks any more|{name} of its .* is a method")
        for name in ("is_start_position", "runs_spark_jobs")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", COORDINATORS)
def test_a_coordinator_of_another_interface_is_refused_at_the_start(case: str, topology: TridentTopology) -> None:
    methods, said = COORDINATORS[case]
    keep(topology.new_stream("s", type("Spout", (UncutSpout,), methods)()))
    with pytest.raises(TopologyError, match=said):
        run_all(topology, "in_process")


def test_the_hint_of_a_stage_and_not_that_of_a_state_says_how_many_parts(topology: TridentTopology) -> None:
    spouts = UncutSpout(), UncutSpout()
    hinted = topology.new_stream("hinted", spouts[0]).filter(lambda row: True).parallelism_hint(3)
    for stream, name in ((hinted, "a"), (topology.new_stream("free", spouts[1]), "b")):
        stream.group_by("x").persistent_aggregate(MemoryMapState(), Count(), name).parallelism_hint(7)
    run_all(topology, "in_process")
    assert [spout.asked for spout in spouts] == [[3], [1]]


class Blocking(Function):
    """Waits at a gate of this process in the first calls, and passes on which one it was."""

    output_types = ("bigint",)

    def __init__(self, gate: str, folder: Path, times: int = 1) -> None:
        self.gate, self.folder, self.times = gate, str(folder), times

    def execute(self, tuple: Any, collector: Any) -> None:
        number = touch(self.folder)
        if number < self.times:
            GATES.pass_through(self.gate)
        collector.emit([number])


def time_out(clock: HandClock, loop: BatchLoop) -> None:
    """Let the attempt that is at work be late, and the next one begin."""
    clock.settle(loop.drain)
    clock.advance(61)
    clock.settle(loop.drain)
    clock.advance(1)  # the backoff
    loop.drain()


def test_an_attempt_that_takes_too_long_is_replayed_and_its_late_result_ignored(
    topology: TridentTopology,
    tmp_path: Path,
    gate: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = keep(topology.new_stream("s", letters("ab")).each("x", Blocking(gate, tmp_path), "n"))
    clock, points, ignored = HandClock(), Points(), threading.Event()
    loop_logger = logging.getLogger("trident.run.loop")

    def heard(record: logging.LogRecord) -> bool:
        if record.getMessage() == f"topology t: ignoring a result of dead attempt {points.attempts('defined')[0]}":
            ignored.set()
        return True

    caplog.set_level(logging.DEBUG, "trident.run.loop")
    loop_logger.addFilter(heard)
    with looping(topology, clock, points, engine="in_process", message_timeout_s=60, max_spout_pending=1) as loop:
        cancelled: list[TransactionAttempt] = []
        monkeypatch.setattr(loop._opened.runner, "cancel", cancelled.append)
        GATES.await_reached(gate)
        clock.settle(loop.drain)
        assert len(points.attempts("defined")) == 1
        time_out(clock, loop)
        points.await_point("succeeded", 1)
        points.await_point("succeeded", 2)
        GATES.open(gate)
        assert ignored.wait(WAIT_S)
        assert cancelled == points.attempts("defined")[:1]
    loop_logger.removeFilter(heard)
    assert rows.batches == {1: [("a", 1)], 2: [("b", 2)]}
    assert len(points.attempts("processed")) == 2


def test_neither_a_commit_nor_a_batch_that_waits_for_it_is_overdue(topology: TridentTopology, gate: str) -> None:
    clock, points = HandClock(), Points()
    topology.new_stream("s", letters()).partition_persist(GatedState(gate, 1), Keep(), "y: string")
    with looping(topology, clock, points, engine="in_process", message_timeout_s=60, max_spout_pending=3) as loop:
        GATES.await_reached(gate)
        points.await_point("processed", 3)
        clock.advance(61)
        clock.settle(loop.wake)
        GATES.open(gate)
        assert loop._progress.failures == 0


def test_attempts_in_a_row_that_take_too_long_say_what_to_raise(
    topology: TridentTopology, tmp_path: Path, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep(topology.new_stream("s", letters("a")).each("x", Blocking(gate, tmp_path, 2), "n"))
    clock, points, told = HandClock(), Points(), "raise message_timeout_s"
    with looping(topology, clock, points, engine="in_process", message_timeout_s=60, max_spout_pending=1) as loop:
        GATES.await_reached(gate)
        for late in (1, 2):
            clock.settle(loop.drain)
            assert told not in caplog.text
            time_out(clock, loop)
            until(lambda late=late: len(points.attempts("defined")) > late, "the next attempt begins")  # type: ignore[misc]
        points.await_point("succeeded", 1)
        assert caplog.text.count(told) == 1
        GATES.open(gate)


def test_a_writer_that_a_later_attempt_of_the_same_driver_has_fenced_ends_nothing(
    topology: TridentTopology, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, process, calls = keep(topology.new_stream("s", letters("ab"))), InProcessRunner.process, Counter[str]()

    def fenced_at_first(runner: InProcessRunner, *given: Any) -> TaskOutput:
        """As of tasks that commit, which are slow and then meet the sentinel of the next attempt."""
        calls["process"] += 1
        if calls["process"] > 1:
            return process(runner, *given)
        GATES.pass_through(gate)
        told = ("state 'counts' partition 0", "batch 1 attempt 0", "batch 1 attempt 1")
        return TaskOutput(failure=failure_of("counts", FencedError(*told)), fenced=told)

    monkeypatch.setattr(InProcessRunner, "process", fenced_at_first)
    clock, points = HandClock(), Points()
    with looping(topology, clock, points, engine="in_process", message_timeout_s=60, max_spout_pending=1) as loop:
        GATES.await_reached(gate)
        time_out(clock, loop)
        points.await_point("succeeded", 2)
        GATES.open(gate)
        clock.settle(loop.drain)  # it ends with what ended the loop
    assert rows.batches == {1: [("a",)], 2: [("b",)]}


def test_a_spark_task_that_hangs_is_replaced(spark: SparkSession, topology: TridentTopology, tmp_path: Path) -> None:
    calls, pipe = tmp_path / "calls", tmp_path / "pipe"
    calls.mkdir()
    os.mkfifo(pipe)

    def block(x: str) -> int:
        if (number := touch(calls)) == 1:  # the second call, in whatever process, waits for a writer of the pipe
            pipe.read_bytes()
        return number

    rows = keep(topology.new_stream("s", letters("ab")).each("x", block, "n: bigint"))
    points = Points()
    conf = {"message_timeout_s": 4, "max_batch_attempts": 50, "max_spout_pending": 1}
    with start(topology, "spark", points, **conf) as running:
        points.await_point("succeeded", 1)  # may take long: workers start
        try:
            points.await_point("succeeded", 2)
        finally:
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # lets the reader go on, if there is one
        running.process_all_available()
        assert running.status["lastFailure"] == "not processed within message_timeout_s=4 seconds"
    assert rows.batches == {1: [("a", 0)], 2: [("b", 2)]}
    assert len(points.attempts("processed")) == 2


def awaiting(folder: Path) -> Callable[[str], int]:
    """Return a function that waits, in whatever process, until the file of its tuple exists."""

    def wait(x: str) -> int:
        until((folder / x).exists, "the tuple is let go")
        return 0

    return wait


def test_the_start_of_python_workers_is_not_held_against_an_attempt_on_spark(
    spark: SparkSession, topology: TridentTopology, tmp_path: Path
) -> None:
    keep(topology.new_stream("s", letters("ab")).each("x", awaiting(tmp_path), "n: bigint"))
    clock, points = HandClock(), Points()
    with looping(topology, clock, points, engine="spark", message_timeout_s=5, max_spout_pending=1) as loop:

        def passes(seconds: float) -> None:
            clock.settle(loop.drain)
            clock.advance(seconds)
            clock.settle(loop.drain)

        def await_defined(count: int) -> None:
            until(lambda: len(points.attempts("defined")) == count, f"attempt {count} begins")

        await_defined(1)
        passes(20)  # the first job: longer than message_timeout_s, and not late
        (tmp_path / "a").touch()
        points.await_point("succeeded", 1)
        await_defined(2)
        passes(6)  # with warm workers it is late
        passes(1)  # the backoff
        loop.drain()
        await_defined(3)
        passes(20)  # its workers were ended with the job
        (tmp_path / "b").touch()
        points.await_point("succeeded", 2)
    assert [attempt.txid for attempt in points.attempts("defined")] == [1, 2, 2]


def test_the_worker_that_replaces_that_of_a_cancelled_attempt_imports_nothing_again(
    spark: SparkSession, topology: TridentTopology, tmp_path: Path
) -> None:
    def tell(x: str) -> int:
        """Say which processes run this, and that nothing of Trident was imported in the one that does; then wait."""
        fresh = {id(one) for one in gc.get_objects()}  # without those that its parent froze before the fork
        imported = [name for name in (run_parts_task.__module__, "spouts", "pandas") if id(sys.modules[name]) in fresh]
        assert not imported, imported
        (tmp_path / f"{os.getpid()}.worker").write_text(str(os.getppid()))
        return awaiting(tmp_path)(x)

    keep(topology.new_stream("s", letters("a")).each("x", tell, "n: bigint"))
    clock, points = HandClock(), Points()

    def workers() -> dict[str, str]:
        return {path.stem: path.read_text() for path in tmp_path.glob("*.worker")}

    with looping(topology, clock, points, engine="spark", message_timeout_s=5, max_spout_pending=1) as loop:
        until(lambda: len(workers()) == 1, "the first attempt is at work")
        clock.advance(31)
        clock.settle(loop.drain)
        clock.advance(1)  # the backoff
        loop.drain()
        until(lambda: len(workers()) == 2, "another worker has begun")
        (tmp_path / "a").touch()
        points.await_point("succeeded", 1)
    assert len(set(workers().values())) == 1
    assert [attempt.txid for attempt in points.attempts("defined")] == [1, 1]


def test_stop_waits_for_the_commit_under_way_and_records_it(engine: str, topology: TridentTopology, gate: str) -> None:
    state, points = GatedState(gate, 1), Points()
    topology.new_stream("s", letters()).partition_persist(state, Keep(), "y: string")
    running = start(topology, engine, points)
    GATES.await_reached(gate)
    with ThreadPoolExecutor(1) as other:
        stopping = other.submit(running.stop)
        assert running.loop._stopping.wait(WAIT_S)
        assert not running.await_termination(0)
        GATES.open(gate)
        stopping.result(WAIT_S)
    assert (points.of(1), running.txid, state.rows) == (LIFE, 1, [("a",)])
    assert running.await_termination()
    assert running.exception() is None
    assert running.status["message"] == "stopped"
    with pytest.raises(TridentError, match="topology 't' was stopped before all available data was processed"):
        running.process_all_available()


def test_a_failure_in_the_last_commit_leaves_the_batch_to_the_next_start(topology: TridentTopology, gate: str) -> None:
    class Broken(GatedState):
        def commit(self, txid: int) -> None:
            super().commit(txid)
            raise ConnectionError("away")

    topology.new_stream("s", letters()).partition_persist(Broken(gate, 1), Keep(), "y: string")
    running = start(topology, "in_process")
    GATES.await_reached(gate)
    running.loop.stop()
    GATES.open(gate)
    assert running.await_termination(WAIT_S)
    assert (running.txid, running.exception()) == (0, None)


def test_the_context_manager_stops_and_raises_what_ended_it(
    engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    feeder = FeederBatchSpout("x: string")
    keep(topology.new_stream("s", feeder).each("x", FailTimes(tmp_path, "bad", 99, ValueError("bad")), "y"))
    with start(topology, engine) as running:
        feeder.feed([["good"]])
    assert not running.is_active
    with pytest.raises(ZeroDivisionError), start(topology, engine, Points()) as running:
        raise ZeroDivisionError  # of the block, and not what ended the topology
    assert not running.is_active
    feeder.feed_nowait([["bad"]])
    with pytest.raises(BatchFailedError), start(topology, engine, Points(), max_batch_attempts=1) as running:
        running._ended.wait(WAIT_S)
    assert not running.is_active


def test_a_topology_that_lost_its_log_stops_and_says_so(engine: str, topology: TridentTopology, tmp_path: Path) -> None:
    feeder = FeederBatchSpout("x: string")
    state = topology.new_stream("s", feeder).persistent_aggregate(dict_state({}), Count(), "count")
    first = start(topology, engine, log_dir=tmp_path)
    feeder.feed([["a"]])
    with start(topology, engine, log_dir=tmp_path, takeover=True) as second:
        feeder.feed_nowait([["b"]])
        assert first._ended.wait(WAIT_S)
        second.process_all_available()
        assert second.state(state).get() == 2
        assert isinstance(first.exception(), FencedError)
        with pytest.raises(FencedError, match="has taken over; nothing more is written from here"):
            first.await_termination()


def test_progress_tells_of_the_last_batches(engine: str, topology: TridentTopology) -> None:
    feeder = FeederBatchSpout("x: string")
    topology.new_stream("s", feeder).group_by("x").persistent_aggregate(MemoryMapState(), Count(), "count")
    with start(topology, engine, progress_kept=1) as running:
        assert (running.last_progress, running.recent_progress, running.seconds) == (None, [], 0.0)
        feeder.feed([["a"], ["b"]])
        feeder.feed([["c"]])
        assert running.recent_progress == [running.last_progress]
        last = running.last_progress
        assert last is not None
        assert (last["name"], last["batchId"], last["numInputRows"]) == ("t", 2, 1)
        assert last["stateKeysUpdated"] == {"count": 1}
        assert all(value >= 0 for value in last["durationMs"].values())
        status = running.status
        assert (status["txid"], status["batches"], status["tuples"], status["failures"]) == (2, 2, 3, 0)
        assert running.seconds > 0
        assert repr(running) == "RunningTopology('t', running, txid 2)"


def test_a_reported_failure_is_kept_as_such(topology: TridentTopology, tmp_path: Path) -> None:
    keep(
        topology.new_stream("s", letters("a")).each(
            "x", FailTimes(tmp_path, "a", 1, ReportedFailedException("see")), "y"
        )
    )
    running = run_all(topology, "in_process")
    failure = running.progress.last_failure
    assert failure is not None
    assert (failure.reported, failure.cause) == (True, "ReportedFailedException: see")
    assert "in execute" in failure.details


def test_a_topology_in_memory_goes_on_in_the_same_process(engine: str, topology: TridentTopology) -> None:
    feeder = FeederBatchSpout("x: string")
    state = topology.new_stream("s", feeder).persistent_aggregate(MemoryMapState(), Count(), "count")
    for expected in (1, 2, 3):
        with start(topology, engine) as running:
            feeder.feed([["a"]])
            assert (running.state(state).get(), running.txid) == (expected, expected)


def test_two_topologies_in_one_session_do_not_cancel_each_other(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one, two = TridentTopology("one"), TridentTopology("two")
    failing = FailTimes(tmp_path / "one", "a", 2, FailedException("again"))
    kept_one = keep(one.new_stream("s", letters("abcdef")).each("x", failing, "y").project("y"))
    kept_two = keep(two.new_stream("s", letters("abcdef")))
    with start(one, "spark") as first, start(two, "spark") as second:
        first.process_all_available()
        second.process_all_available()
        assert (first.status["failures"], second.status["failures"]) == (2, 0)
    assert kept_one.rows == kept_two.rows == [(letter,) for letter in "abcdef"]


def test_a_batch_spout_is_asked_again_for_what_its_driver_left(
    engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    (tmp_path / "calls").mkdir()
    spout = RowsSpout("x: string", {1: [["a"]], 2: [["b"]]})
    failing = FailTimes(tmp_path / "calls", "b", 1, ConnectionError("away"))
    rows = keep(topology.new_stream("s", spout).each("x", failing, "y").project("y"))
    with pytest.raises(
        BatchFailedError, match="batch 2 failed once in step 's/FailTimes' on tuple .*: ConnectionError"
    ):
        run_all(topology, engine, max_batch_attempts=1, log_dir=tmp_path / "log")
    run_all(topology, engine, max_batch_attempts=1, log_dir=tmp_path / "log")
    assert rows.batches == {1: [("a",)], 2: [("b",)]}
    assert spout.calls == ["open", "ack 1", "close", "open", "ack 2", "close"]


def test_a_batch_that_failed_for_good_lets_those_before_it_be_committed(
    engine: str, topology: TridentTopology, gate: str, tmp_path: Path
) -> None:
    state = GatedState(gate, 1)
    stream = topology.new_stream("s", letters("abc")).each("x", FailTimes(tmp_path, "b", 99, ValueError("bad")), "y")
    stream.partition_persist(state, "y", Keep(), "z: string")
    running = start(topology, engine, max_batch_attempts=1)
    GATES.await_reached(gate)
    while not running.status["failures"]:
        assert not running.await_termination(0.01)
    assert (running.is_active, running.txid) == (True, 0)
    GATES.open(gate)
    with pytest.raises(BatchFailedError, match="batch 2 failed once"):
        running.await_termination(WAIT_S)
    assert (running.txid, state.rows) == (1, [("a",)])


def test_an_observer_that_raises_at_a_commit_fails_the_attempt_alone(engine: str, topology: TridentTopology) -> None:
    rows, left = keep(topology.new_stream("s", letters("ab"))), [RuntimeError("the observer"), RuntimeError("again")]

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if point == "committed" and left:
            raise left.pop()

    with start(topology, engine, observe) as running:
        running.process_all_available()
        assert (running.status["failures"], running.status["lastFailure"]) == (2, "RuntimeError: the observer")
    assert rows.rows == [("a",), ("b",)]
