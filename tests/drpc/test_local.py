"""DRPC in process: what requests see, how they fail, how they end."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.drpc_functions import word_counts
from tests.harness.topology_runs import GATES, Points, start
from trident import TopologyError, TridentCollector, TridentError, TridentTopology, TridentTuple
from trident.drpc import LocalDRPC
from trident.drpc.batching import OwnLog, RequestExecutor
from trident.errors import BackendError, ConfigError, DRPCExecutionException, LogError, UnsupportedOperation
from trident.log.log_state import LogState
from trident.operations import BaseQueryFunction, Count, Function, MapGet, Split
from trident.plan import make_request_plan
from trident.run.running import RunningTopology


def run_all(topology: TridentTopology, **conf: Any) -> RunningTopology:
    running = start(topology, "in_process", **conf)
    running.process_all_available()
    return running


def test_the_tutorials_words_are_counted_also_when_asked_as_storm_does() -> None:
    topology, _ = word_counts()
    with run_all(topology) as running, LocalDRPC(running) as drpc:
        assert running.drpc("words").execute("cat dog the man") == [[5]]  # "the" four times, "man" once
        assert running.drpc("words").execute("") == [[0]]
        assert (drpc.functions, drpc.txid, drpc.execute("words", "the cow")) == (["words"], 2, [[5]])
        with pytest.raises(DRPCExecutionException, match=r"'wrds' gave no answer \(unknown\).*\['words'\]"):
            drpc.execute("wrds", "the")


@pytest.mark.slow
def test_a_request_sees_all_states_after_one_committed_batch() -> None:
    """Two states that are fed alike never differ, however many batches are committed between their reads."""
    topology, counts = word_counts(cycle=True)
    lines = topology.graph().spouts()[0]
    again = (
        _stream(topology, lines.id)
        .each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), "again")
    )
    both = topology.new_drpc_stream("both").state_query(counts, "args", MapGet(), "a")
    both.state_query(again, "args", Slow(), "b: bigint")
    with start(topology, "in_process") as running:
        drpc = running.drpc("both")
        found = [drpc.execute("the")[0] for _ in range(150)]
    assert all(a == b for _, a, b in found)
    assert len({a for _, a, _ in found}) > 5


class Slow(BaseQueryFunction[Any, Any]):
    """Waits (not for long: a reader may hold up commits) for two further batches in every third call, then reads."""

    output_types = ("bigint",)

    def __init__(self) -> None:
        self.calls = 0

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        self.calls += 1
        if self.calls % 3 == 0:
            before = state._parts.snapshot().txid
            deadline = time.monotonic() + 0.05
            while state._parts.snapshot().txid < before + 2 and time.monotonic() < deadline:
                pass
        return list(state.multi_get([one.values for one in args]))

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit([result])


def _stream(topology: TridentTopology, node: str) -> Any:
    from trident.stream import Stream

    return Stream(topology, topology.graph().node(node))


def test_a_batch_that_is_not_committed_is_not_seen() -> None:
    topology, _ = word_counts()
    points = Points()
    with start(topology, "in_process", points) as running:
        points.await_point("recorded", 2)
        executor = RequestExecutor(make_request_plan(topology.graph(), "words"), running.config, _Before(running, 1))
        assert executor.answers(["the", "four"]) == [[[4]], [[0]]]
        assert running.drpc("words").execute("four") == [[1]]


class _Before(OwnLog):
    """The log as it was some batches ago."""

    def __init__(self, running: RunningTopology, txid: int) -> None:
        super().__init__(running)
        self._txid = txid

    def now(self) -> LogState:
        return replace(super().now(), txid=self._txid)


class Failing(Function):
    """Fails for the word `bad`, ends the thread for `exit`, waits at a gate for `wait`."""

    output_types = ("string",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0] == "wait":
            GATES.pass_through("request")
        if tuple[0] == "bad":
            raise KeyError("bad word")
        if tuple[0] == "exit":
            raise SystemExit(3)
        collector.emit([tuple[0].upper()])


def failing() -> TridentTopology:
    topology = TridentTopology("failing")
    topology.new_drpc_stream("f").each("args", Failing(), "up").project("up")
    return topology


def occupied(drpc: LocalDRPC, name: str) -> Any:
    """Keep the thread of the function at work until the gate is opened."""
    GATES.clear()
    first = drpc.function(name).submit("wait")
    GATES.await_reached("request")
    return first


def test_a_request_that_fails_fails_alone() -> None:
    with LocalDRPC(failing()) as drpc:
        first = occupied(drpc, "f")
        args = ["a", "bad", "b", "bad", *"cdefg", "exit"]
        futures = [drpc.function("f").submit(one) for one in args]
        GATES.open("request")
        wait([first, *futures])
        errors = {one: str(future.exception()) for one, future in zip(args, futures, strict=True) if future.exception()}
        assert errors.keys() == {"bad", "exit"}
        assert "in step 'drpc:f/Failing': KeyError: 'bad word' on tuple" in errors["bad"]
        assert [future.result() for one, future in zip(args, futures, strict=True) if one not in errors] == [
            [[one.upper()]] for one in "abcdefg"
        ]


class Broken(Slow):
    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        self.calls += 1
        raise BackendError("the store does not answer")


def test_a_store_that_does_not_answer_is_asked_once_for_all() -> None:
    topology = TridentTopology("broken")
    state, broken = topology.new_static_state(MemoryMapState()), Broken()
    topology.new_drpc_stream("f").each("args", Failing(), "up").state_query(state, "up", broken, "n: bigint")
    with LocalDRPC(topology) as drpc:
        first = occupied(drpc, "f")
        futures = [drpc.function("f").submit(str(number)) for number in range(16)]
        GATES.open("request")
        wait([first, *futures])
        assert {str(future.exception()) for future in futures} == {
            "DRPC function 'f' gave no answer (failed) in step 'drpc:f/Failing/Broken@static0': BackendError: "
            "the store does not answer"
        }
        assert broken.calls == 2


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_request_may_be_waited_for_without_an_end(timeout: float) -> None:
    topology = TridentTopology("waited")
    topology.new_drpc_stream("f").each("args", Split(), "word").project("word")
    with LocalDRPC(topology) as drpc:
        assert drpc.execute("f", "a b", timeout=timeout) == [["a"], ["b"]]


def test_a_request_that_takes_too_long_is_given_up_and_one_that_waited_is_not_run() -> None:
    with LocalDRPC(failing()) as drpc:
        first = occupied(drpc, "f")
        with pytest.raises(DRPCExecutionException, match=r"gave no answer \(timeout\): no answer within 0.05 s"):
            drpc.execute("f", "bad", timeout=0.05)
        assert drpc.function("f").waiting == 0
        GATES.open("request")
        assert first.result(30) == [["WAIT"]]
        assert drpc.execute("f", "next") == [["NEXT"]]


def test_closing_refuses_what_waits_and_ends_what_is_at_work() -> None:
    drpc = LocalDRPC(failing())
    first = occupied(drpc, "f")
    waiting = drpc.function("f").submit("late")
    closer = threading.Thread(target=drpc.close)
    closer.start()
    with pytest.raises(DRPCExecutionException, match="stopped"):
        waiting.result(30)
    with pytest.raises(DRPCExecutionException, match="stopped"):
        drpc.execute("f", "later still")
    assert not first.done()
    GATES.open("request")
    assert first.result(30) == [["WAIT"]]
    closer.join(30)
    assert drpc.closed
    assert not closer.is_alive()


def test_functions_end_with_their_topology() -> None:
    topology, _ = word_counts()
    with run_all(topology) as running:
        function = running.drpc("words")
    with pytest.raises(DRPCExecutionException, match="stopped"):
        function.execute("the")
    with pytest.raises(DRPCExecutionException, match="stopped"):
        running.drpc("words").execute("the")
    assert [thread for thread in threading.enumerate() if thread.name.startswith("trident-drpc-words")] == []

    untouched = run_all(word_counts()[0])
    untouched.stop()
    with pytest.raises(TridentError, match="has ended, and its DRPC functions with it"):
        untouched.drpc("words")


class Prepared(Function):
    output_types = ("string",)
    calls: list[str] = []  # noqa: RUF012  of the class: copies tell here as well

    def prepare(self, conf: Any, context: Any) -> None:
        self.calls.append("prepare")

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([tuple[0]])

    def cleanup(self) -> None:
        self.calls.append("cleanup")


@pytest.mark.parametrize("threads", [1, 3])
def test_operations_are_prepared_and_cleaned_up_for_each_thread(threads: int) -> None:
    Prepared.calls.clear()
    topology = TridentTopology("prepared")
    topology.new_drpc_stream("f").each("args", Prepared(), "out")
    with LocalDRPC(topology, threads=threads) as drpc:
        assert Prepared.calls == ["prepare"] * threads
        assert drpc.execute("f", "x") == [["x", "x"]]
    assert Prepared.calls == ["prepare"] * threads + ["cleanup"] * threads


def test_operations_that_cannot_be_copied_are_refused_for_several_threads() -> None:
    lock = threading.Lock()
    topology = TridentTopology("locked")
    topology.new_drpc_stream("f").peek(lambda row: lock.locked())
    with pytest.raises(TopologyError, match=r"'f': its operations cannot be copied for 2 threads .*use threads=1"):
        LocalDRPC(topology, threads=2)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ConfigError, "threads=0, max_batch=1024: expected", {"threads": 0}),
        (ConfigError, "max_batch=0", {"max_batch": 0}),
        (ConfigError, "unknown setting 'thread'", {"thread": 2}),
    ],
)
def test_impossible_settings_are_refused(error: type[Exception], text: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=text):
        LocalDRPC(failing(), **arguments)


def test_a_topology_without_functions_is_refused() -> None:
    with pytest.raises(TopologyError, match="has no DRPC function; declare one with new_drpc_stream"):
        LocalDRPC(TridentTopology("empty"))


def test_arguments_are_one_text() -> None:
    with (
        LocalDRPC(failing()) as drpc,
        pytest.raises(DRPCExecutionException, match="the arguments must be one text, got 3"),
    ):
        drpc.execute("f", 3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_declared_topology_is_read_through_its_log(tmp_path: Path) -> None:
    log_dir = str(tmp_path / "log")
    topology, _ = word_counts(DeltaState.opaque(str(tmp_path / "table")), cycle=True)
    with start(topology, "in_process", log_dir=log_dir, batch_emit_interval_ms=5) as running:
        while running.txid < 2:
            running.await_termination(0.01)
        with LocalDRPC(word_counts(DeltaState.opaque(str(tmp_path / "table")))[0], log_dir=log_dir) as drpc:
            first = drpc.execute("words", "the")[0][0]
            seen = drpc.txid
            assert seen is not None
            while running.txid < seen + 3:
                running.await_termination(0.01)
            assert drpc.execute("words", "the")[0][0] > first >= 4


def test_a_state_in_the_memory_of_another_process_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperation, match="is in the memory of the process that runs 'word-count'"):
        LocalDRPC(word_counts()[0], log_dir=str(tmp_path))


def test_without_a_log_nothing_is_committed(tmp_path: Path) -> None:
    table = DeltaState.opaque(str(tmp_path / "table"))
    with pytest.raises(LogError, match="there is no transaction log in"):
        LocalDRPC(word_counts(table)[0], log_dir=str(tmp_path / "log"))
