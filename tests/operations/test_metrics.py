"""Counters of operations come back with each batch, wherever they ran, from the attempt that is committed."""

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import keep, run_all, touch
from trident import Stream, TridentCollector, TridentTopology, TridentTuple
from trident.counts import add_counts, count_again, counting
from trident.fields import Fields
from trident.operations import ArrowFunction, Counter, Function, Sum, TridentOperationContext


class Counted:
    """Registers a counter of calls; mixed into an operation of each kind."""

    calls: Counter

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        self.calls = context.register_counter("calls")


class Keep(Counted, Function):
    output_types = ("int",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        self.calls.incr()
        collector.emit([tuple[0]])


class Whole(Counted, ArrowFunction):
    output = Fields("same: int")

    def apply(self, *columns: pa.Array) -> pa.Array:
        self.calls.incr(len(columns[0]))
        return columns[0]


def numbers(topology: TridentTopology, batch: int = 3) -> Stream:
    return topology.new_stream("n", FixedBatchSpout("n: int", batch, *([n] for n in range(5))))


class FailsOnce(Keep):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        super().execute(tuple, collector)
        if tuple[0] == 2 and touch(self.folder) == 0:
            raise OSError("once")


def test_what_a_failed_attempt_counted_is_dropped(engine: str, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    keep(numbers(topology, 5).each("n", FailsOnce(tmp_path), "kept"))
    running = run_all(topology, engine)
    assert running.status["failures"] == 1
    assert running.status["metrics"] == {"FailsOnce/calls": 5}


class Picky(Whole):
    def apply(self, *columns: pa.Array) -> pa.Array:
        same = super().apply(*columns)
        if 3 in columns[0].to_pylist():
            raise ValueError("three")
        return same


def test_a_vectorised_function_that_is_called_on_halves_counts_every_tuple_once(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    keep(numbers(topology, 5).each("n", Picky()))
    running = run_all(
        topology, "in_process", max_batch_attempts=1, on_poison="dead_letter", dead_letter_dir=str(tmp_path)
    )
    assert running.status["metrics"] == {"Picky/calls": 4}


class Reducing(Counted):
    output_types = ("bigint",)

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        self.calls.incr()
        return curr + int(tuple[0])


def test_partitions_that_are_committed_side_by_side_count_together() -> None:
    topology = TridentTopology("t")
    stream = numbers(topology, 5)
    stream.group_by("n").persistent_aggregate(MemoryMapState(), "n", Sum(), "sum").parallelism_hint(3)
    stream.project("n").name("again").group_by("n").persistent_aggregate(
        MemoryMapState(), "n", Reducing(), "reduced"
    ).parallelism_hint(3)
    running = run_all(topology, "in_process")
    assert running.status["metrics"]["Reducing/calls"] == 5


@pytest.mark.parametrize("name", ["", "a/b", None, 1])
def test_a_counter_needs_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot name a counter of Keep; use a text without '/'"):
        TridentOperationContext(operation="Keep").register_counter(name)


def test_a_counter_outside_of_a_batch_counts_nothing() -> None:
    counter = TridentOperationContext(operation="Keep").register_counter("calls")
    counter.incr()
    with counting() as counts:
        counter.incr(2)
    counter.incr()
    assert (counter.name, counts) == ("Keep/calls", {"Keep/calls": 2})


def test_threads_do_not_mix() -> None:
    counter = Counter("one/calls")
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with counting() as own:
            counter.incr(5)
            inside.set()
            assert done.wait(30)
        found.append(own)

    found: list[dict[str, int]] = []
    thread = threading.Thread(target=other)
    with counting() as counts:
        thread.start()
        assert inside.wait(30)
        counter.incr()
        done.set()
        thread.join(30)
    assert (counts, found) == ({"one/calls": 1}, [{"one/calls": 5}])


def test_inner_counts_are_apart_until_they_are_counted_again() -> None:
    with counting() as outer:
        with counting() as inner:
            Counter("a").incr()
        assert outer == {}
        count_again(inner)
        Counter("a").incr()
    assert outer == {"a": 2}
    add_counts(outer, {"a": 1, "b": 1})
    assert outer == {"a": 3, "b": 1}


def test_an_operation_that_has_a_counter_can_be_sent_to_workers() -> None:
    keep_ = Keep()
    keep_.prepare({}, TridentOperationContext(operation="Keep"))
    assert pickle.loads(pickle.dumps(keep_)).calls == Counter("Keep/calls")


def test_a_topology_starts_again_with_its_prepared_operations() -> None:
    topology = TridentTopology("t")
    keep(numbers(topology).each("n", Keep(), "kept"))
    assert run_all(topology, "in_process").status["metrics"] == {"Keep/calls": 5}
    assert run_all(topology, "in_process").status["metrics"] == {}
