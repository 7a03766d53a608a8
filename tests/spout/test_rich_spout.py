"""IRichSpout in a Trident topology; and what `new_stream` says to an object that is no spout."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import Points, keep, run_all
from tests.spout.partition_source import Transactional, emitted
from tests.spout.test_partitioned import Fails
from trident import BatchFailedError, Fields, TopologyError, TridentTopology
from trident.errors import InexactPairingError
from trident.operations import Count
from trident.run.batch_spouts import as_trident_spout
from trident.spout import IRichSpout, OutputFieldsDeclarer, TopologyContext


class QueueSpout:
    """A queue that hands out a message again which is failed."""

    def __init__(self, messages: list[str], per_call: int = 1) -> None:
        self.queue, self.per_call = deque(enumerate(messages)), per_call
        self.pending: dict[int, str] = {}
        self.calls: list[str] = []
        self.acked: list[int] = []
        self.failed: list[int] = []
        self.points = Points()

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        self.calls.append(f"open {context.component} {context.task} of {context.tasks} {conf['max_spout_pending']}")
        self.collector = collector

    def next_tuple(self) -> None:
        for _ in range(min(self.per_call, len(self.queue))):
            number, message = self.queue.popleft()
            self.pending[number] = message
            self.collector.emit([message], message_id=number)

    def ack(self, msg_id: int) -> None:
        assert "recorded" in [point for point, _ in self.points.reached]
        self.acked.append(msg_id)
        del self.pending[msg_id]

    def fail(self, msg_id: int) -> None:
        self.failed.append(msg_id)
        self.queue.append((msg_id, self.pending.pop(msg_id)))

    def close(self) -> None:
        self.calls.append("close")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("message: string")


class Switched(QueueSpout):
    max_batch_size = 2

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")


def run(spout: Any, observer: Any = None, **conf: Any) -> Any:
    return emitted(spout, observer=observer, allow_inexact=True, **conf)


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("per_call", [1, 2, 7])
def test_a_message_is_acknowledged_after_the_record_of_its_batch(per_call: int, pending: int) -> None:
    spout = Switched(list("abcde"), per_call)
    rows = run(spout, spout.points, max_spout_pending=pending)
    assert rows.batches == {1: [("a",), ("b",)], 2: [("c",), ("d",)], 3: [("e",)]}
    assert (spout.acked, spout.failed, spout.pending) == ([0, 1, 2, 3, 4], [], {})
    assert spout.calls == [f"open s 0 of 1 {pending}", "activate", "deactivate", "close"]


def test_a_batch_has_a_thousand_tuples_at_most() -> None:
    spout = QueueSpout([str(number) for number in range(2300)])
    rows = run(spout, spout.points)
    assert [len(batch) for batch in rows.batches.values()] == [1000, 1000, 300]
    assert spout.calls == ["open s 0 of 1 3", "close"]


def test_every_batch_ends_with_the_first_call_that_emits_nothing() -> None:
    class Counted(QueueSpout):
        asked = 0

        def next_tuple(self) -> None:
            self.asked += 1
            super().next_tuple()

    spout = Counted(["a", "b"])
    run(spout, spout.points, poll_interval_ms=60_000)
    assert spout.asked < 100  # Storm asks a thousand times from the second batch on


@pytest.mark.parametrize("pending", [1, 3])
def test_the_messages_of_an_attempt_that_ended_are_failed_and_come_again(pending: int) -> None:
    spout = Switched(list("abcd"))
    fails = Fails(1)

    def observe(point: str, attempt: Any) -> None:
        spout.points(point, attempt)
        if point == "committing":
            fails()

    rows = run(spout, observe, max_spout_pending=pending)
    assert {0, 1} <= set(spout.failed)
    assert sorted(spout.acked) == [0, 1, 2, 3]
    assert sorted(rows.rows) == [("a",), ("b",), ("c",), ("d",)]


def test_what_is_not_committed_when_the_topology_ends_is_failed() -> None:
    spout = Switched(list("ab"))

    def observe(point: str, attempt: Any) -> None:
        if point == "committing":
            raise OSError("never")

    with pytest.raises(BatchFailedError):
        run(spout, observe)
    assert spout.failed[-2:] == [0, 1]
    assert (spout.acked, spout.calls[-1]) == ([], "close")


def test_tuples_without_an_id_are_not_acknowledged() -> None:
    class Silent(QueueSpout):
        def next_tuple(self) -> None:
            if self.queue:
                self.collector.emit([self.queue.popleft()[1]])

    spout = Silent(["a"])
    assert run(spout, spout.points).rows == [("a",)]
    assert spout.acked == []


def test_rows_that_do_not_fit_fail_their_messages_and_the_batch() -> None:
    class Wrong(QueueSpout):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("message: int")

    spout = Wrong(["a"])
    with pytest.raises(BatchFailedError, match=r"SpoutError: Wrong.next_tuple\(\) emitted rows that do not fit"):
        run(spout, spout.points)
    assert spout.failed == [0, 0, 0]


def test_another_stream_is_an_error() -> None:
    class Streams(QueueSpout):
        def next_tuple(self) -> None:
            self.collector.emit(["a"], stream_id="errors")

    with pytest.raises(
        BatchFailedError, match="Streams emitted to the stream 'errors'; in a Trident topology a spout has one"
    ):
        run(Streams([]))


def test_its_promise_is_at_least_once() -> None:
    emitted(QueueSpout([]))  # a state of the user's own promises nothing that could be broken
    other = TridentTopology("t")
    stream = other.new_stream("q", QueueSpout([])).group_by("message")
    stream.persistent_aggregate(MemoryMapState(), Count(), "count")
    with pytest.raises(InexactPairingError, match="non-transactional spout"):
        run_all(other, "in_process")


def test_a_throttled_spout_gives_smaller_batches() -> None:
    spout = Switched(list("abcd"), 4)
    coordinator: Any = as_trident_spout(spout, "q").get_coordinator({"max_spout_pending": 1})
    coordinator.throttle(0.1)
    assert coordinator.initialize_transaction(1, None)["rows"] == 1


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_a_batch_that_may_hold_nothing_is_refused(size: int) -> None:
    spout = Switched([])
    spout.max_batch_size = size
    with pytest.raises(TopologyError, match=rf"Switched.max_batch_size is {size}; it must be at least 1"):
        as_trident_spout(spout, "q")


def test_a_spout_that_does_not_say_its_fields_is_refused() -> None:
    class NoFields(QueueSpout):
        declare_output_fields = None  # type: ignore[assignment]

    class Forgets(QueueSpout):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            """Forgets to."""

    for spout in (NoFields([]), Forgets([])):
        with pytest.raises(TopologyError, match="does not say its fields: give it get_output_fields"):
            TridentTopology("t").new_stream("q", spout)


def test_fields_may_be_returned() -> None:
    class Returns(QueueSpout):
        def get_output_fields(self) -> Fields:
            return Fields("other: string")

    spout = Returns([])
    assert isinstance(spout, IRichSpout)
    assert TridentTopology("t").new_stream("q", spout).fields.names == ("other",)


def test_it_runs_on_each_engine(engine: str) -> None:
    spout, topology = Switched(list("abcde")), TridentTopology("t")
    rows = keep(topology.new_stream("q", spout).shuffle())
    run_all(topology, engine, observer=spout.points, allow_inexact=True)
    assert sorted(rows.rows) == [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert (spout.acked, spout.failed) == ([0, 1, 2, 3, 4], [])


class AlmostBatch:
    def open(self, conf: Any) -> None: ...

    def emit_batch(self, batch_id: int, collector: Any) -> None: ...

    def get_output_fields(self) -> Fields:
        return Fields("a: int")


class AlmostRich:
    def open(self, conf: Any, context: Any, collector: Any) -> None: ...

    def next_tuple(self) -> None: ...

    def ack(self, msg_id: Any) -> None: ...


class AlmostPartitioned:
    def get_output_fields(self) -> Fields:
        return Fields("a: int")

    def get_coordinator(self, conf: Any) -> None: ...

    def get_emitter(self, conf: Any) -> None: ...


@pytest.mark.parametrize(
    ("spout", "said"),
    [
        (AlmostBatch(), "For IBatchSpout it lacks ack, close"),
        (AlmostRich(), "For IRichSpout it lacks fail, close"),
        (
            AlmostPartitioned(),
            "For ITridentSpout it lacks spout_type; a partitioned spout is a subclass of IPartitionedTrid",
        ),
        (3, "It has none of the methods of ITridentSpout, IBatchSpout or IRichSpout"),
        (AlmostBatch, r"It is a class; give an object: AlmostBatch\(...\)"),
        (Transactional, r"It is a class; give an object: Transactional\(...\)"),
    ],
    ids=[
        "batch",
        "rich",
        "partitioned",
        "number",
        "class of batches",
        "class of partitions",
    ],  # with no address in them
)
def test_what_is_missing_is_named(spout: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=f"stream 's' got .*, which is not a spout. {said}"):
        TridentTopology("t").new_stream("s", spout)
