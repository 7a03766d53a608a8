"""Topologies with threads in this process: exceptions, restarts, full queues, cycles, the end."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.storm.random_trees import chain
from trident.errors import TopologyError
from trident.storm import (
    BaseBasicBolt,
    BaseRichBolt,
    BaseRichSpout,
    BasicOutputCollector,
    LocalCluster,
    LocalTopology,
    SpoutOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    TopologyDiedError,
    Tuple,
)
from trident.storm.execution.executors import BoltExecutor

pytestmark = pytest.mark.usefixtures("board")


class Board:
    """What the tasks of one test have in common; they run in this process."""

    acked: list[int]
    distinct: set[int]
    failed: list[int]
    executed: list[Any]
    done: threading.Event
    go: threading.Event

    @classmethod
    def clear(cls) -> None:
        cls.acked, cls.failed, cls.executed = [], [], []
        cls.distinct = set()
        cls.done, cls.go = threading.Event(), threading.Event()


@pytest.fixture
def board() -> type[Board]:
    Board.clear()
    return Board


class Numbers(BaseRichSpout):
    """The numbers below `count`, each until it is acknowledged; a fresh instance begins with those that are not."""

    def __init__(self, count: int) -> None:
        self.count = count

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("n: bigint")

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self.collector = collector
        self.waiting = sorted(set(range(self.count)) - Board.distinct, reverse=True)

    def next_tuple(self) -> None:
        if self.waiting:
            n = self.waiting.pop()
            self.collector.emit([n], n)

    def ack(self, msg_id: Any) -> None:
        Board.acked.append(msg_id)
        Board.distinct.add(msg_id)
        if len(Board.distinct) == self.count:
            Board.done.set()

    def fail(self, msg_id: Any) -> None:
        Board.failed.append(msg_id)
        self.waiting.append(msg_id)


class Sink(BaseBasicBolt):
    """Notes what it executes."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        Board.executed.append(tuple["n"])


def numbers(count: int, sink: Any, parallelism: int = 2) -> StormTopology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(count))
    builder.set_bolt("sink", sink, parallelism).shuffle_grouping("numbers")
    return builder.create_topology()


@contextmanager
def running_here(topology: StormTopology, **settings: Any) -> Iterator[LocalTopology]:
    with LocalCluster() as cluster:
        yield cluster.submit_topology("numbers", settings, topology)


@pytest.mark.parametrize("settings", [{}, {"workers": 3}, {"acker_executors": 2, "receive_buffer_size": 1}])
def test_every_message_is_executed_and_acked(settings: dict[str, Any]) -> None:
    with running_here(numbers(5000, Sink()), **settings):
        assert Board.done.wait(60)
    assert sorted(Board.executed) == sorted(Board.acked) == list(range(5000))
    assert Board.failed == []


class FailsOnce(Sink):
    """Raises at the number 500, the first time."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        if tuple["n"] == 500 and not Board.go.is_set():
            Board.go.set()
            raise ValueError("once")
        super().execute(tuple, collector)


def test_a_worker_that_dies_comes_back_and_nothing_is_lost() -> None:
    with running_here(numbers(2000, FailsOnce()), message_timeout_s=1) as running:
        assert Board.done.wait(60)
        assert running.errors[0].component == "sink"
        assert "execute Tuple(n=500;" in running.errors[0].text
    assert set(Board.executed) == set(range(2000))


class Dies(Sink):
    """Raises always."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        raise ValueError("always")


def test_a_topology_whose_workers_keep_dying_ends_with_the_cause() -> None:
    died = "its workers died 3 times within 300 s, worker 0 last, of: .*always"
    with pytest.raises(TopologyDiedError, match=died) as caught, LocalCluster() as cluster:
        cluster.submit_topology("numbers", {"max_worker_deaths": 2}, numbers(10, Dies())).await_termination(60)
    assert isinstance(caught.value.__cause__.__cause__, ValueError)  # type: ignore[union-attr]


class OpensBadly(Numbers):
    """Cannot connect."""

    def open(self, *given: Any) -> None:
        raise OSError("no such queue")


def test_a_spout_that_cannot_open_is_an_error_with_its_cause() -> None:
    topology = chain(numbers=OpensBadly(1), sink=Sink())
    died = "component 'numbers', task 1: open: OSError\\('no such queue'\\)"
    with pytest.raises(TopologyDiedError, match=died), LocalCluster() as cluster:
        cluster.submit_topology("numbers", {"max_worker_deaths": 0}, topology).await_termination(60)


class Slow(Sink):
    """Waits for the test before the first tuple."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        assert Board.go.wait(60)
        super().execute(tuple, collector)


@pytest.mark.slow
def test_a_full_queue_holds_up_the_spout() -> None:
    with running_here(numbers(50_000, Slow(), 1), receive_buffer_size=2) as running:
        held = -1
        while running.pending > held:  # grows until the queue is full
            held = running.pending
            Board.done.wait(0.3)
        assert held < 20_000
        Board.go.set()
        assert Board.done.wait(100)
    assert sorted(Board.acked) == list(range(50_000))


class Around(BaseRichBolt):
    """Sends each number around a cycle five times."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("n: bigint")
        declarer.declare_stream("again", "n: bigint", "left: bigint")

    def execute(self, tuple: Tuple) -> None:
        left = tuple["left"] if "left" in tuple.fields else 5
        for _ in range(2 if left == 5 else 1):
            self.collector.emit([tuple["n"], left - 1], tuple, "again") if left else self.collector.emit(
                [tuple["n"]], tuple
            )
        self.collector.ack(tuple)


@pytest.mark.slow
def test_a_cycle_of_bolts_with_full_queues_does_not_lock_up() -> None:
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(3000))
    around = builder.set_bolt("around", Around(), 2).shuffle_grouping("numbers")
    around.shuffle_grouping("around", "again")
    builder.set_bolt("sink", Sink()).shuffle_grouping("around")
    topology = builder.create_topology()
    assert topology.on_cycles == {("around", "around")}
    with LocalCluster() as cluster:
        cluster.submit_topology("cycle", {"receive_buffer_size": 1, "max_spout_pending": 1000}, topology)
        assert Board.done.wait(100)
    assert sorted(Board.executed) == sorted([*range(3000), *range(3000)])


class WaitsForItsAck(Sink):
    """Goes on with the second number only when the first one is acknowledged."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        if tuple["n"] == 0:
            Board.go.wait(0.05)  # a slow call
        else:
            for _ in range(200):
                if Board.acked or Board.go.wait(0.05):
                    break
        super().execute(tuple, collector)


def test_the_answer_to_a_slow_execution_does_not_wait_for_the_rest_of_the_delivery() -> None:
    with running_here(numbers(64, WaitsForItsAck(), 1)):
        assert Board.done.wait(60)
    assert Board.acked[0] == Board.executed[0]
    assert Board.failed == []


class EmitsOnAck(Numbers):
    """Emits the next number from `ack`."""

    def next_tuple(self) -> None:
        if not Board.acked:
            super().next_tuple()

    def ack(self, msg_id: Any) -> None:
        super().ack(msg_id)
        super().next_tuple()


def test_a_spout_may_emit_from_ack_without_ackers() -> None:
    with running_here(chain(numbers=EmitsOnAck(500), sink=Sink()), acker_executors=0):
        assert Board.done.wait(60)
    assert sorted(Board.acked) == sorted(Board.executed) == list(range(500))


def test_stop_waits_for_what_is_pending() -> None:
    with LocalCluster() as cluster:
        running = cluster.submit_topology("numbers", {"max_spout_pending": 50}, numbers(100_000, Sink()))
        while len(Board.acked) < 100:
            assert running.exception() is None
        cluster.kill_topology("numbers")
    assert len(Board.acked) < 100_000
    assert sorted(Board.executed) == sorted(Board.acked)
    assert running.await_termination(0)


@pytest.mark.slow
def test_deactivated_spouts_are_not_asked() -> None:
    with running_here(numbers(20_000, Sink()), max_spout_pending=10) as running:
        running.deactivate()
        assert running.drain()
        acked = len(Board.acked)
        running.activate()
        assert Board.done.wait(60)
        assert acked < 20_000 == len(Board.acked)


def test_names_are_unique_and_unknown_ones_are_named() -> None:
    with LocalCluster() as cluster:
        cluster.submit_topology("one", None, numbers(1, Sink()))
        with pytest.raises(TopologyError, match="topology 'one' runs already"):
            cluster.submit_topology("one", None, numbers(1, Sink()))
        with pytest.raises(TopologyError, match="no topology 'two' runs in this LocalCluster; there are \\['one'\\]"):
            cluster.kill_topology("two")


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with running_here(numbers(10, Sink()), workers=2):
        assert Board.done.wait(60)
    assert set(threading.enumerate()) == before


def test_an_executor_that_cannot_send_its_last_tuples_ends_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def close(executor: BoltExecutor) -> None:
        raise TopologyError(f"{executor.place.component} cannot send")

    monkeypatch.setattr(BoltExecutor, "close", close)
    with running_here(numbers(10, Sink())) as running:
        assert Board.done.wait(20)
    assert running.exception() is None
    assert "component sink: its last tuples are lost: sink cannot send" in caplog.text
