"""Code of the user's that never returns: the topology ends and says where, and the process can end."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import QUICK, RowsSpout, RowsState, dict_state, keep, operation
from trident import TridentTopology, TridentTuple
from trident.channel import DaemonPool
from trident.errors import BatchFailedError, SpoutError
from trident.graph import EachNode
from trident.operations import (
    BaseAggregator,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Count,
    ReducerAggregator,
    TumblingCountWindow,
)
from trident.run import running as running_module
from trident.run.execution import Attempts
from trident.state import map_state
from trident.state.interfaces import Key
from trident.steps.applying import EmittedRows
from trident.steps.failures import TupleErrors

pytestmark = pytest.mark.slow

LIMITS: dict[str, Any] = {**QUICK, "engine": "in_process", "message_timeout_s": 0.1, "max_batch_attempts": 2}
let_go, began, over = threading.Event(), threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    let_go.clear()
    began.clear()
    yield
    let_go.set()


def hangs(word: str) -> str:
    if word == "b":
        let_go.wait()
    return word


class HangingSum(CombinerAggregator[int]):
    def init(self, row: Any) -> int:
        return 1

    def combine(self, left: int, right: int) -> int:
        if left:  # not in the batch's own sum, which begins with zero
            let_go.wait()
        return left + right

    def zero(self) -> int:
        return 0


def words(*texts: str, name: str = "t") -> tuple[TridentTopology, Any]:
    topology = TridentTopology(name)
    return topology, topology.new_stream("in", FixedBatchSpout("word: string", 1, *[[text] for text in texts]))


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("call", ["each", "filter", "map"])
def test_a_function_that_hangs_is_named_with_its_tuple(call: str, pending: int) -> None:
    topology, stream = words("a", "b")
    steps = {"each": ("word", hangs, "v"), "filter": ("word", hangs), "map": (lambda row: (hangs(row[0]),),)}
    getattr(stream, call)(*steps[call]).project("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    running = topology.start({**LIMITS, "max_spout_pending": pending})
    with pytest.raises(BatchFailedError) as raised:
        running.process_all_available()
    error = raised.value
    assert (error.txid, error.attempts) == (2, 1 if pending == 1 else 2)
    assert error.step == ("in/map" if call == "map" else "in/hangs")
    assert "message_timeout_s=0.1 seconds; it is still on tuple [word='b'] in " in error.cause
    assert f"{__file__}:" in error.cause
    running.stop()
    assert not running.is_active
    assert running.txid == 1


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_combiner_that_hangs_in_a_commit_ends_the_topology(tmp_path: Path, partitions: int, pending: int) -> None:
    topology, stream = words("a", "a")
    state = dict_state({}, partitions=partitions)
    stream.group_by("word").persistent_aggregate(state, HangingSum(), "n")
    running = topology.start({**LIMITS, "max_spout_pending": pending}, log_dir=str(tmp_path))
    with pytest.raises(
        BatchFailedError, match=r"batch 2 failed once in step 'in/HangingSum@n': no end within .* in combine, "
    ):
        running.process_all_available()
    assert running.txid == 1


class SlowMap(DictMap):
    """Takes its time with a batch, longer than user code may; without a bound it hangs."""

    def __init__(self, wait_s: float | None = 0.5) -> None:
        super().__init__()
        self.wait_s = wait_s

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if ("a",) in keys:
            began.set()
            let_go.wait(self.wait_s)
        super().multi_put(keys, values)


def test_a_store_that_is_slow_ends_nothing(tmp_path: Path) -> None:
    topology, stream = words("a", "b")
    store = SlowMap()
    stream.group_by("word").persistent_aggregate(map_state(lambda *_: store, "opaque"), Count(), "n")
    with topology.start(LIMITS, log_dir=str(tmp_path)) as running:
        running.process_all_available()
        assert (running.txid, began.is_set()) == (2, True)


class SlowSum(ReducerAggregator[int]):
    def init(self) -> int:
        return 0

    def reduce(self, current: int, row: Any) -> int:
        let_go.wait(0.02)
        return current + 1


@pytest.mark.parametrize("pending", [1, 3])
def test_a_commit_of_many_short_calls_may_take_its_time(tmp_path: Path, pending: int) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("word: string", 40, *[[f"w{at}"] for at in range(40)]))
    stream.group_by("word").persistent_aggregate(dict_state({}), SlowSum(), "n: bigint")
    # Of 0.8 seconds, none of which is a call that is as long as a busy machine may hold one up.
    conf = {**LIMITS, "message_timeout_s": 0.6, "max_spout_pending": pending}
    with topology.start(conf, log_dir=str(tmp_path)) as running:
        running.process_all_available()
        assert running.txid == 1


class SlowState(RowsState):
    def store(self, rows: Sequence[Any]) -> None:
        let_go.wait(0.5)
        self.pending.extend(rows)


Stores = operation("Stores", BaseStateUpdater, update_state=lambda state, rows, collector: state.store(rows))
PutsAll = operation(
    "PutsAll", BaseStateUpdater,
    update_state=lambda state, rows, collector: state.multi_put([row.values for row in rows], [1] * len(rows)),
)  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", ["own", "map"])
def test_an_updater_that_waits_for_a_slow_store_ends_nothing(tmp_path: Path, kind: str, pending: int) -> None:
    topology, stream = words("a", "b")
    store = SlowMap()
    spec, updater = (SlowState(), Stores()) if kind == "own" else (map_state(lambda *_: store, "opaque"), PutsAll())
    stream.partition_persist(spec, updater, "word: string")
    with topology.start({**LIMITS, "max_spout_pending": pending}, log_dir=str(tmp_path)) as running:
        running.process_all_available()
        assert running.txid == 2


class HangingQuery(BaseQueryFunction[Any, int]):
    def batch_retrieve(self, state: Any, rows: Sequence[Any]) -> list[int]:
        began.set()
        let_go.wait()
        return [0] * len(rows)

    def execute(self, row: Any, result: Any, collector: Any) -> None:
        collector.emit([result])


class HangingEnd(BaseAggregator[list[int]]):
    def init(self, batch_id: Any, collector: Any) -> list[int]:
        return []

    def aggregate(self, val: list[int], row: Any, collector: Any) -> list[int]:
        return val

    def complete(self, val: list[int], collector: Any) -> None:
        let_go.wait()


class HangingSpout(RowsSpout):
    """Hangs in one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__("word: string", {1: [["a"], ["a"]], 2: [["a"]]})
        self.call = call

    def emit_batch(self, batch_id: int, collector: Any) -> bool | None:
        if self.call == "emit_batch":
            let_go.wait()
        return super().emit_batch(batch_id, collector)

    def ack(self, batch_id: int) -> None:
        if self.call == "ack":
            let_go.wait()


def hanging(call: str) -> TridentTopology:
    topology = TridentTopology("t")
    spout = HangingSpout(call)
    stream = topology.new_stream("in", spout)
    if call == "batch_retrieve":
        counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
        keep(stream.state_query(counts, "word", HangingQuery(), "before: bigint"))
    elif call == "complete":
        keep(stream.window(TumblingCountWindow.of(1), "word", HangingEnd(), "size: bigint"))
    elif call == "combine":  # what two tasks give
        parts = stream.shuffle().map(lambda row: row).parallelism_hint(2)
        parts.group_by("word").persistent_aggregate(MemoryMapState(), HangingSum(), "n")
    else:
        keep(stream)
    return topology


CALLS = {
    "emit_batch": "in",
    "ack": "in",
    "batch_retrieve": "in/HangingQuery@n",
    "complete": "in/HangingEnd@size-window",
}
"""And their steps."""


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("call", [*CALLS, "combine"])
def test_a_call_that_hangs_beside_the_steps_of_a_worker_ends_the_topology(call: str, pending: int) -> None:
    running = hanging(call).start({**LIMITS, "max_spout_pending": pending})
    with pytest.raises(BatchFailedError) as raised:
        running.await_termination(20)
    error = raised.value
    assert (error.txid, running.txid) == ((2, 1) if call == "ack" else (1, 0))
    assert error.step == CALLS.get(call, error.step)
    assert f" in {call}, {__file__}:" in error.cause
    running.stop()
    assert not running.is_active


@pytest.mark.parametrize("pending", [1, 3])
def test_a_topology_that_hangs_can_be_stopped(pending: int) -> None:
    running = hanging("batch_retrieve").start({**LIMITS, "max_spout_pending": pending})
    assert began.wait(20)
    running.stop()
    assert "in batch_retrieve" in str(running.exception())


def test_a_function_of_c_is_not_found() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("seconds: double", 1, [0.5]))
    count = stream.filter("seconds", time.sleep).persistent_aggregate(MemoryMapState(), Count(), "n")
    with topology.start({**LIMITS, "max_spout_pending": 1}) as running:
        running.process_all_available()
        assert running.state(count).get() == 0


def test_stopping_leaves_a_store_behind_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running_module, "_STOP_S", 0.2)
    topology, stream = words("a")
    stream.group_by("word").persistent_aggregate(map_state(lambda *_: SlowMap(None), "opaque"), Count(), "n")
    running = topology.start(LIMITS, log_dir=str(tmp_path))
    assert began.wait(20)
    running.stop()
    assert "topology 't' did not end within 0.2 seconds after it was told to stop" in str(running.exception())


def test_who_waits_for_a_feed_is_told_that_the_topology_ended() -> None:
    topology, spout = TridentTopology("t"), FeederBatchSpout("word: string")
    keep(topology.new_stream("in", spout).filter("word", hangs))
    running = topology.start({**LIMITS, "max_spout_pending": 1})
    with pytest.raises(SpoutError, match="feed 0 was not committed: the topology stopped before"):
        spout.feed([["b"]], timeout_s=20)
    assert "in hangs" in str(running.exception())


def test_a_spout_is_closed_once_though_the_thread_comes_back() -> None:
    topology, spout = TridentTopology("t"), RowsSpout("word: string", {1: [["b"]]})
    keep(topology.new_stream("in", spout).filter("word", hangs))
    running = topology.start({**LIMITS, "max_spout_pending": 1})
    with pytest.raises(BatchFailedError):
        running.await_termination(20)
    thread = next(thread for thread in threading.enumerate() if thread.name == "trident-t")
    let_go.set()
    thread.join(20)
    assert spout.calls == ["open", "close"]
    assert "in hangs" in str(running.exception())


class LongSum(HangingSum):
    def combine(self, left: int, right: int) -> int:
        if left:
            began.set()
            over.wait(20)
        return left + right


def test_a_topology_does_not_look_at_the_threads_of_another_one(tmp_path: Path) -> None:
    """Their names begin alike."""
    other, stream = words("a", "a", name="t-state")
    stream.group_by("word").persistent_aggregate(dict_state({}, partitions=2), LongSum(), "n")
    topology, stream = words("a")
    stream.group_by("word").persistent_aggregate(map_state(lambda *_: SlowMap(), "opaque"), Count(), "n")
    over.clear()
    with other.start({**LIMITS, "message_timeout_s": 60}, log_dir=str(tmp_path / "other")):
        assert began.wait(20)
        try:
            with topology.start(LIMITS, log_dir=str(tmp_path / "log")) as running:
                running.process_all_available()
                assert running.txid == 1
        finally:
            over.set()


PROGRAM = """
import sys, time

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count


def hangs(word):
    time.sleep(1e6)


def topology():
    t = TridentTopology("t")
    words = t.new_stream("in", FixedBatchSpout("word: string", 1, ["a"], ["b"]))
    words.filter("word", hangs).persistent_aggregate(MemoryMapState(), Count(), "n")
    return t


if __name__ == "__main__":
    limits = {"message_timeout_s": 0.2, "max_batch_attempts": 2, "retry_backoff_ms": 1}
    with topology().start(limits, engine="in_process") as running:
        running.process_all_available()
"""


@pytest.mark.long
def test_one_signal_ends_a_run_that_hangs(tmp_path: Path) -> None:
    program = PROGRAM.replace("def hangs(word):", "def hangs(word):\n    open('began', 'w').close()")
    Path(tmp_path, "program.py").write_text(program, encoding="utf-8")
    options = ["--engine", "in_process", "--conf", "message_timeout_s=2", "--conf", "max_spout_pending=1"]
    command = [sys.executable, "-m", "trident.cli", "run", "program.py:topology", *options]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not Path(tmp_path, "began").exists() and process.poll() is None:
            let_go.wait(0.01)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "stopping after the commit under way" in said
    assert "in step 'in/hangs'" in " ".join(said.split())


@pytest.mark.long
@pytest.mark.parametrize("program", ["trident run", "python"])
@pytest.mark.parametrize("pending", [1, 3])
def test_a_run_whose_function_hangs_ends_with_exit_code_1(tmp_path: Path, pending: int, program: str) -> None:
    limits = f'"max_spout_pending": {pending}, "message_timeout_s"'
    Path(tmp_path, "program.py").write_text(PROGRAM.replace('"message_timeout_s"', limits), encoding="utf-8")
    settings = f"message_timeout_s=0.2 max_batch_attempts=2 retry_backoff_ms=1 max_spout_pending={pending}"
    options = [word for setting in settings.split() for word in ("--conf", setting)]
    run = ["-m", "trident.cli", "run", "program.py:topology", "--engine", "in_process", "--once", *options]
    command = [sys.executable, *(["program.py"] if program == "python" else run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "in step 'in/hangs': " in said
    assert "it is still on tuple [word='a'] in hangs" in said


ENDLESS = """
import sys

from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count

topology = TridentTopology("t")
spout = FixedBatchSpout("word: string", 1, ["a"], cycle=True)
topology.new_stream("in", spout).group_by("word").persistent_aggregate(DeltaState.opaque("state"), Count(), "n")
running = topology.start(engine="in_process", log_dir="log", max_spout_pending=int(sys.argv[1]))
while running.txid < 20:
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("pending", [1, 3])
def test_a_program_that_stops_no_topology_ends_as_if_it_did(tmp_path: Path, pending: int) -> None:
    command = [sys.executable, "-c", ENDLESS, str(pending)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_row_that_was_the_last_one_is_not_looked_for() -> None:
    """A thread may come back while another one looks where it is."""
    _, stream = words("a")
    node = stream.each("word", hangs, "v")._node
    assert isinstance(node, EachNode)
    calls = EmittedRows("in/each", node, pa.table({"word": ["a"]}))
    assert calls.row() == TridentTuple(node.inputs, ("a",))
    calls.run(TupleErrors())
    assert calls.row() is None


def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([ValueError("look")])

    def overdue(work: Attempts, limit_s: float, cause: str) -> Any:
        for error in looks:
            raise error
        return found(work, limit_s, cause)

    found = Attempts.overdue
    monkeypatch.setattr(Attempts, "overdue", overdue)
    running = hanging("batch_retrieve").start(LIMITS)
    with pytest.raises(BatchFailedError, match="in batch_retrieve"):
        running.await_termination(20)


def test_a_pool_starts_no_thread_while_one_is_idle_and_no_more_than_it_may() -> None:
    pool = DaemonPool(2, "pool-test")
    for number in range(5):
        assert pool.submit(lambda number=number: number).result(10) == number
    running = [one.name for one in threading.enumerate() if one.name.startswith("pool-test")]
    assert len(running) <= 2
    hung = [pool.submit(let_go.wait) for _ in range(4)]
    running = [one.name for one in threading.enumerate() if one.name.startswith("pool-test")]
    assert sorted(running) == ["pool-test_0", "pool-test_1"]
    let_go.set()
    assert [future.result(10) for future in hung] == [True] * 4
    pool.shutdown()
    assert not any(one.name.startswith("pool-test") for one in threading.enumerate())


def test_a_pool_hands_on_what_a_function_raises_and_takes_nothing_after_its_end() -> None:
    pool = DaemonPool(1, "pool-test")
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(10)
    assert list(pool.map(str, range(3))) == ["0", "1", "2"]
    blocked, waiting = pool.submit(let_go.wait), pool.submit(str)
    while not blocked.running():
        threading.Event().wait(0.001)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="the pool pool-test was shut down"):
        pool.submit(str)
    let_go.set()
    pool.shutdown()
    assert waiting.cancelled()
