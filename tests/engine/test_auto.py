"""engine="auto": which batch runs where, with equal results, exact after failures; Spark starts when it is needed."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext

from spouts import FeederBatchSpout, FixedBatchSpout, TextFileSpout
from spouts.rows.driver_rows import _FixedBatchCoordinator
from states.memory import MemoryMapState
from tests.harness.topology_runs import WAIT_S, FailTimes, OneSpout, RowsSpout, counted, dict_state, keep, start
from trident import TridentTopology
from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import AutoRunner, InProcessRunner
from trident.engine.worker import Order, Program
from trident.errors import BatchFailedError, ConfigError, EnvironmentProblem, FailedException
from trident.operations import Count, Split
from trident.run import engine_choice as engines
from trident.run.loop import BatchLoop
from trident.spout.interfaces import TransactionAttempt

ORDER = Order(TransactionAttempt(1, 1 << 20))
BATCHES = [["a"] * 3, ["b"] * 3000 + ["x"], ["a", "c"], ["c"] * 4000, ["a"]]
"""Small and large ones, in turn, where 1,000 bytes are the limit."""


class Recorder(InProcessRunner):
    """Remembers what it processed; stands for Spark."""

    here = False

    def __init__(self, program: Program) -> None:
        super().__init__(program, 2)
        self.txids: list[int] = []
        self.cancelled: list[TransactionAttempt] = []
        self.closed = 0

    def process(self, parts: Sequence[Any], order: Order) -> TaskOutput:
        self.txids.append(order.attempt.txid)
        return super().process(parts, order)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.cancelled.append(attempt)

    def close(self) -> None:
        self.closed += 1
        super().close()


def program() -> Program:
    return Program("t", {}, {}, {}, {})


class Opening:
    """Opens a recorder each time that it is called, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.opened = error, list[Recorder]()

    def __call__(self, given: Program | None = None, config: Any = None, memory_mb: Any = None) -> Recorder:
        if self.error is not None:
            raise self.error
        self.opened.append(Recorder(given or program()))
        return self.opened[-1]


def words(topology: TridentTopology, *steps: Any) -> tuple[FeederBatchSpout, Any]:
    feeder = FeederBatchSpout("word: string")
    stream = topology.new_stream("words", feeder)
    for step in steps:
        stream = stream.each("word", step, "seen")
    return feeder, stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")


@pytest.mark.parametrize(("size", "here"), [(0, True), (1000, True), (1001, False), (None, False)])
def test_a_batch_is_small_up_to_the_limit_and_unknown_is_large(size: int | None, here: bool) -> None:
    runner = AutoRunner(program(), 2, lambda: Recorder(program()), most_bytes=1000)
    assert (runner.of_size(size) is runner) is not here
    assert runner.of_size(size).here is here


def test_a_late_runner_is_opened_once_with_the_first_batch_and_closed() -> None:
    late = AutoRunner(program(), 2, opening := Opening(), most_bytes=0)
    opened = opening.opened
    late.cancel(ORDER.attempt)
    assert opened == []
    for _ in range(2):
        late.process([], ORDER)
    late.cancel(ORDER.attempt)
    late.close()
    assert [(one.txids, one.cancelled, one.closed) for one in opened] == [([1, 1], [ORDER.attempt], 1)]
    assert late.process([], ORDER) == TaskOutput()
    assert len(opened) == 1


def test_a_runner_for_the_first_batch_opens_once_and_has_the_width_of_what_it_opened() -> None:
    first = AutoRunner(program(), 1, opening := Opening())
    opened = opening.opened
    assert opened == []
    first.of_size(None).process([], ORDER)
    assert (first.of_size(3), opened[0].txids) == (first, [1])
    assert (first.parallelism, first.program is opened[0].program, len(opened)) == (2, True, 1)
    first.close()
    assert opened[0].closed == 1
    assert first.of_size(3) is first  # and processes nothing any more
    assert first.process([], ORDER) == TaskOutput()


def test_a_runner_for_the_first_batch_raises_why_it_cannot_be_opened() -> None:
    with pytest.raises(EnvironmentProblem, match="no Java"):
        AutoRunner(program(), 1, Opening(EnvironmentProblem("no Java"))).of_size(None)


def test_the_size_of_a_negative_limit_is_refused(topology: TridentTopology) -> None:
    with pytest.raises(ConfigError, match="auto_bytes=-1: give a whole number of at least 0"):
        topology.start(engine="auto", auto_bytes=-1)


def test_the_spouts_know_how_large_their_batches_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    fixed = FixedBatchSpout("n: bigint", 3, *[(n,) for n in range(10)]).get_coordinator({})
    assert fixed.size({"start": 0, "end": 3}) == 24
    assert fixed.size({"start": 9, "end": 10}) == 8
    feeder = FeederBatchSpout("n: bigint")
    feeder.feed_nowait([[1], [2]])
    fed = feeder.get_coordinator({})
    definition = fed.initialize_transaction(1, None)
    assert fed.size(definition) == 16
    assert fed.size({"feeder": "another", "feed": 0}) is None
    texts = TextFileSpout(tmp_path, follow=False).get_coordinator({})
    found = texts.initialize_transaction(1, None)
    assert found is not None
    assert texts.size(found) == 8
    packed = {**found, "ranges": [["a.txt.gz", 0, 8, 0]]}
    assert texts.size(packed) is None


def test_a_size_that_cannot_be_told_fails_the_batch(topology: TridentTopology, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder, _ = words(topology)

    def size(self: Any, definition: Any) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(type(feeder.get_coordinator({})), "size", size)
    feeder.feed_nowait([["a"]])
    running_topology = start(topology, "in_process", max_batch_attempts=2)
    with pytest.raises(BatchFailedError, match="the disk is gone"):
        running_topology.process_all_available()
    assert running_topology.status["failures"] == 2


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The runners that were opened in the place of Spark."""
    monkeypatch.setattr(engines, "_spark_runner", opening := Opening())
    return opening.opened


@pytest.mark.parametrize("pending", [1, 3])
def test_small_and_large_batches_in_one_run(pending: int, topology: TridentTopology, large: list[Recorder]) -> None:
    feeder, counts = words(topology)
    for batch in BATCHES:
        feeder.feed_nowait([[word] for word in batch])
    with start(topology, "auto", auto_bytes=1000, max_spout_pending=pending) as running_topology:
        running_topology.process_all_available()
        assert running_topology.state(counts).multi_get(["a", "b", "c"]) == [5, 3000, 4001]
    assert [sorted(one.txids) for one in large] == [[2, 4]]


@pytest.mark.parametrize(("rows", "on_spark"), [(2, []), (2000, [1, 1])])
def test_a_replay_runs_where_the_batch_ran(
    rows: int, on_spark: list[int], topology: TridentTopology, large: list[Recorder], tmp_path: Path
) -> None:
    feeder, counts = words(topology, FailTimes(tmp_path, "x", 1, FailedException("once")))
    feeder.feed_nowait([["x"], *[["a"]] * rows])
    with start(topology, "auto", auto_bytes=1000) as running_topology:
        running_topology.process_all_available()
        assert running_topology.state(counts).multi_get(["a"]) == [rows]
        assert running_topology.status["failures"] == 1
    assert [txid for one in large for txid in one.txids] == on_spark


def test_a_spout_that_says_no_size_of_batches_runs_on_spark(topology: TridentTopology, large: list[Recorder]) -> None:
    topology.new_stream("s", Unsized()).persistent_aggregate(MemoryMapState(), Count(), "n")
    with start(topology, "auto") as running_topology:
        running_topology.process_all_available()
    assert [one.txids for one in large] == [[1]]


def test_the_rows_of_a_simple_spout_are_counted(topology: TridentTopology, large: list[Recorder]) -> None:
    spout = RowsSpout("x: bigint", {1: [(1,)], 2: [(n,) for n in range(500)]})
    topology.new_stream("s", spout).persistent_aggregate(MemoryMapState(), Count(), "n")
    with start(topology, "auto", auto_bytes=1000) as running_topology:
        running_topology.process_all_available()
    assert [one.txids for one in large] == [[2]]


class Unsized(OneSpout):
    """Does not say how large its batches are."""

    def emit(self, part: Any) -> list[pa.Table]:
        return [pa.table({"x": ["a"]})]


def test_where_spark_does_not_start_the_topology_ends_at_once_and_says_why(
    topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_spark_runner", Opening(EnvironmentProblem("there is no Java here")))
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # whatever other tests have started
    feeder, _ = words(topology)
    feeder.feed_nowait([["a"]])
    feeder.feed_nowait([["a"]] * 2000)
    running_topology = start(topology, "auto", auto_bytes=1000)
    with pytest.raises(BatchFailedError, match="there is no Java here") as caught:
        running_topology.process_all_available()
    assert (caught.value.txid, running_topology.status["failures"]) == (2, 1)
    assert running_topology.txid == 1


@pytest.mark.spark
def test_small_and_large_batches_beside_spark(spark: Any, topology: TridentTopology, tmp_path: Path) -> None:
    feeder, counts = words(topology, FailTimes(tmp_path, "x", 1, FailedException("once")))
    for batch in BATCHES:
        feeder.feed_nowait([[word] for word in batch])
    with start(topology, "auto", auto_bytes=1000) as running_topology:
        running_topology.process_all_available()
        expected = counted(word for batch in BATCHES for word in batch)
        assert running_topology.state(counts).multi_get(list(expected)) == list(expected.values())
        assert running_topology.status["failures"] == 1
    assert not spark.sparkContext._jsc.sc().isStopped()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_starts_with_the_first_large_batch(tmp_path: Path) -> None:
    script = """
from pyspark import SparkContext
from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count

topology = TridentTopology("t")
feeder = FeederBatchSpout("word: string")
words = topology.new_stream("words", feeder)
counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
with topology.start(engine="auto", auto_bytes=1000, master="local[2]") as running:
    feeder.feed([["a"]])
    print(SparkContext._active_spark_context is not None)
    feeder.feed([["a"]] * 2000, timeout_s=250)
    print(SparkContext._active_spark_context is not None, running.state(counts).multi_get(["a"]))
print(SparkContext._active_spark_context is not None)
"""
    (tmp_path / "program.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["False", "True", "[2001]", "False"], "")


def test_one_small_batch_at_a_time_stays_in_the_loops_thread(topology: TridentTopology) -> None:
    threads: set[str] = set()

    def seen(word: str) -> str:
        threads.add(threading.current_thread().name)
        return word

    feeder = FeederBatchSpout("word: string")
    topology.new_stream("words", feeder).each("word", seen, "seen: string").persistent_aggregate(
        MemoryMapState(), Count(), "n"
    )
    with start(topology, "auto", max_spout_pending=1) as running_topology:
        feeder.feed([["a"]], WAIT_S)
        assert threads == {"trident-t"}
        assert running_topology.txid == 1


class OwnEmitter:
    def emit(self, part: Any) -> list[Any]:
        return [part.table]


class OwnSpout(FixedBatchSpout):
    """Knows its sizes, and may have to wait for its source."""

    def get_emitter(self, conf: Any) -> Any:
        return OwnEmitter()


def where_committed(topology: TridentTopology, folder: Path) -> tuple[list[str], list[int]]:
    """Run batches with three in work; return the threads that committed, and the txids in the order of their points."""
    threads: list[str] = []
    txids: list[int] = []

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if point == "committing":
            threads.append(threading.current_thread().name)
        txids.append(attempt.txid)

    with start(topology, "in_process", observe, log_dir=str(folder), max_spout_pending=3) as running_topology:
        running_topology.process_all_available()
    return threads, txids


LARGE_BYTES = 1 << 20
SMALL, LARGE = [["a b"]] * 10, [["a b " * 10]] * 4000


@pytest.mark.parametrize(
    ("rows", "thread"), [(SMALL, "trident-t"), (LARGE, "trident-t-commit")], ids=["small", "large"]
)
def test_small_batches_that_meet_kernels_and_memory_only_stay_in_the_loops_thread(
    topology: TridentTopology, tmp_path: Path, rows: list[list[str]], thread: str
) -> None:
    spout = FixedBatchSpout("text: string", len(rows), *rows * 4)
    words = topology.new_stream("texts", spout).each("text", Split(), "word: string").group_by("word")
    words.persistent_aggregate(MemoryMapState(), Count(), "n")
    threads, txids = where_committed(topology, tmp_path)
    assert {name.rpartition("_")[0] or name for name in threads} == {thread}
    assert len(threads) == 4
    assert thread != "trident-t" or txids == sorted(txids)  # each is brought to its end before the next one begins


def test_a_small_batch_behind_one_that_takes_its_time_keeps_nobody_waiting(
    topology: TridentTopology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spout = FixedBatchSpout("text: string", 1, ["a b"], ["a b"], ["a c"], *[["a b"]] * 7)
    monkeypatch.setattr(
        _FixedBatchCoordinator, "size", lambda self, definition: LARGE_BYTES if definition["start"] in (0, 2) else 3
    )
    words = topology.new_stream("texts", spout).each("text", Split(), "word: string").group_by("word")
    counts = words.persistent_aggregate(MemoryMapState(), Count(), "n")
    third_defined, turns = threading.Event(), list[int]()
    process, begin = InProcessRunner.process, BatchLoop._begin

    def slowly(self: Any, parts: Any, order: Order) -> Any:
        if order.attempt.txid == 1:
            assert third_defined.wait(WAIT_S), "it is not begun before the first one is done"
            turns.clear()
            time.sleep(0.3)
            assert len(turns) < 50, "the loop does not wait"
        return process(self, parts, order)

    def counted_begin(self: BatchLoop) -> float:
        turns.append(1)
        return begin(self)

    def observe(point: str, attempt: TransactionAttempt) -> None:
        points.append((point, attempt.txid))
        if point == "committing":
            threads.append(threading.current_thread().name.rpartition("_")[0])
        if (point, attempt.txid) == ("defined", 3):
            third_defined.set()

    points: list[tuple[str, int]] = []
    threads: list[str] = []
    monkeypatch.setattr(InProcessRunner, "process", slowly)
    monkeypatch.setattr(BatchLoop, "_begin", counted_begin)
    with start(topology, "in_process", observe, max_spout_pending=3, max_batch_attempts=1) as running_topology:
        running_topology.process_all_available()
        assert running_topology.state(counts).multi_get([("a",), ("b",), ("c",)]) == [10, 9, 1]
    assert [txid for point, txid in points if point == "recorded"] == list(range(1, 11))
    assert threads[:3] == ["trident-t-commit"] * 3
    assert threads[-1] == ""  # in the loop's thread again, once no large one is before it


def test_a_batch_without_tuples_is_no_small_one_where_none_is(topology: TridentTopology, tmp_path: Path) -> None:
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"]))
    fired = words.tumbling_window(timedelta(milliseconds=200), Count(), "n")
    rows = keep(fired.each("n", str, "text: string"))
    threads: list[str] = []
    done = threading.Event()

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if point == "committing":
            threads.append(threading.current_thread().name)
        if (point, attempt.txid) == ("recorded", 2):
            done.set()

    with start(topology, "in_process", observe, log_dir=str(tmp_path), max_spout_pending=3):
        assert done.wait(WAIT_S)
    assert rows.rows == [(1, "1")]
    assert {name.rpartition("_")[0] for name in threads} == {"trident-t-commit"}


@pytest.mark.parametrize("what", ["a spout", "a function", "a store", "an updater"])
def test_what_may_take_its_time_does_not_hold_up_the_loop(topology: TridentTopology, tmp_path: Path, what: str) -> None:
    spout = (OwnSpout if what == "a spout" else FixedBatchSpout)("word: string", 1, ["a"], ["b"], ["a"])
    words = topology.new_stream("words", spout)
    if what == "a function":
        words = words.each("word", lambda word: word.upper(), "upper: string")
    if what == "an updater":
        keep(words)
    else:
        words.group_by("word").persistent_aggregate(
            dict_state({}) if what == "a store" else MemoryMapState(), Count(), "n"
        )
    threads, _ = where_committed(topology, tmp_path)
    assert {name.rpartition("_")[0] for name in threads} == {"trident-t-commit"}
