"""Operations of every kind are prepared once in each process before their first tuple, and cleaned up after their last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsState
from trident import Config, Stream, TridentCollector, TridentTopology, TridentTuple
from trident.engine import tasks
from trident.engine.resident_runner import ResidentRunner
from trident.engine.worker import Order, Program
from trident.fields import Fields
from trident.operations import (
    Aggregator,
    ArrowFilter,
    ArrowFunction,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Consumer,
    Counter,
    Filter,
    FlatMapFunction,
    Function,
    GroupedMultiReducer,
    MapFunction,
    MultiReducer,
    ReducerAggregator,
    TridentOperationContext,
)
from trident.plan import make_plan
from trident.run.running import RunningTopology
from trident.spout.interfaces import TransactionAttempt


class Lives:
    """Notes when it is prepared and ended; every call must find it prepared, and counts."""

    calls: Counter
    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        self.calls = context.register_counter("calls")
        self._note(f"prepare {context.operation} {conf['max_batch_attempts']}")

    def cleanup(self) -> None:
        self._note(f"cleanup {type(self).__name__}")

    def _note(self, line: str) -> None:
        with (self.folder / str(os.getpid())).open("a", encoding="utf-8") as notes:
            notes.write(line + "\n")


class AFunction(Lives, Function):
    output_types = ("bigint",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        self.calls.incr()
        collector.emit([tuple[0]])


class Assembled(AFunction):
    """The function of an assembly."""


class AFilter(Lives, Filter):
    def is_keep(self, tuple: TridentTuple) -> bool:
        self.calls.incr()
        return True


class AMap(Lives, MapFunction):
    def execute(self, tuple: TridentTuple) -> Any:
        self.calls.incr()
        return tuple.values


class AFlatMap(Lives, FlatMapFunction):
    def execute(self, tuple: TridentTuple) -> Any:
        self.calls.incr()
        return [tuple.values]


class AConsumer(Lives, Consumer):
    def accept(self, tuple: TridentTuple) -> None:
        self.calls.incr()


class AnArrowFunction(Lives, ArrowFunction):
    output = Fields("same: int")

    def apply(self, *columns: pa.Array) -> pa.Array:
        self.calls.incr(len(columns[0]))
        return columns[0]


class AnArrowFilter(Lives, ArrowFilter):
    def mask(self, *columns: pa.Array) -> pa.Array:
        self.calls.incr(len(columns[0]))
        return columns[0].is_valid()


class ACombiner(Lives, CombinerAggregator[int]):
    output_types = ("bigint",)

    def init(self, tuple: TridentTuple) -> int:
        self.calls.incr()
        return int(tuple[0])

    def combine(self, val1: int, val2: int) -> int:
        assert self.calls.name
        return val1 + val2

    def zero(self) -> int:
        assert self.calls.name
        return 0


class AStatesCombiner(ACombiner):
    """A combiner of a state."""


class AReducer(Lives, ReducerAggregator[int]):
    output_types = ("bigint",)

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        self.calls.incr()
        return curr + 1


class AStatesReducer(AReducer):
    """A reducer of a state."""


class AnAggregator(Lives, Aggregator[int]):
    output_types = ("bigint",)

    def init(self, batch_id: Any, collector: TridentCollector) -> int:
        assert self.calls.name
        return 0

    def aggregate(self, val: int, tuple: TridentTuple, collector: TridentCollector) -> int:
        self.calls.incr()
        return val + 1

    def complete(self, val: int, collector: TridentCollector) -> None:
        collector.emit([val])


class AMultiReducer(Lives, MultiReducer[int]):
    output_types = ("bigint",)

    def init(self, collector: TridentCollector) -> int:
        assert self.calls.name
        return 0

    def execute(self, state: int, stream_index: int, input: TridentTuple, collector: TridentCollector) -> int:
        self.calls.incr()
        return state + 1

    def complete(self, state: int, collector: TridentCollector) -> None:
        collector.emit([state])


class AGroupedMultiReducer(Lives, GroupedMultiReducer[int]):
    output_types = ("bigint",)

    def init(self, collector: TridentCollector, group: TridentTuple) -> int:
        self.calls.incr()
        return 0

    def execute(
        self, state: int, stream_index: int, group: TridentTuple, input: TridentTuple, collector: TridentCollector
    ) -> int:
        return state + 1

    def complete(self, state: int, group: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([state])


class AQuery(Lives, BaseQueryFunction[Any, Any]):
    output_types = ("bigint",)

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        assert self.calls.name
        return [0] * len(args)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        self.calls.incr()
        collector.emit([result])


class AStaticQuery(AQuery):
    """A query of a static state, which runs where the tuples are."""


class AnUpdater(Lives, BaseStateUpdater[RowsState]):
    def update_state(self, state: RowsState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        self.calls.incr(len(tuples))
        state.pending.extend(row.values for row in tuples)


class BehindAState(AFunction):
    """A function of new values."""


class CombinesBehindAState(ACombiner):
    """A combiner of new values."""


class AggregatesBehindAState(AnAggregator):
    """An aggregator of new values."""


class ReducesBehindAState(AMultiReducer):
    """A multi-reducer of new values."""


KINDS = [
    AFunction, Assembled, AFilter, AMap, AFlatMap, AConsumer, AnArrowFunction, AnArrowFilter, ACombiner, AStatesCombiner,
    AReducer, AStatesReducer, AnAggregator, AMultiReducer, AGroupedMultiReducer, AQuery, AStaticQuery, AnUpdater, BehindAState,
    CombinesBehindAState, AggregatesBehindAState, ReducesBehindAState,
]  # fmt: skip
IN_THE_DRIVER = {
    "AStatesCombiner", "AStatesReducer", "AQuery", "AnUpdater", "BehindAState", "CombinesBehindAState",
    "AggregatesBehindAState", "ReducesBehindAState",
}  # fmt: skip


class Nothing:
    """A static state."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Nothing:
        return self


def declare(folder: Path) -> TridentTopology:
    """Return a topology with an operation of each kind."""
    topology = TridentTopology("lives")
    stream = topology.new_stream("n", FixedBatchSpout("n: int", 4, *([n] for n in range(8)))).parallelism_hint(2)
    stream = stream.filter("n", AFilter(folder)).each("n", AnArrowFilter(folder)).map(AMap(folder))
    stream = stream.flat_map(AFlatMap(folder)).peek(AConsumer(folder)).each("n", AnArrowFunction(folder))
    stream = stream.each("n", AFunction(folder), "f").apply_assembly(lambda s: s.each("n", Assembled(folder), "g"))
    stream = stream.state_query(topology.new_static_state(Nothing()), "n", AStaticQuery(folder), "static")
    stream.chained_agg().aggregate("n", ACombiner(folder), "c").chain_end().peek(_see)
    stream.group_by("f").aggregate("n", AReducer(folder), "r").parallelism_hint(2).peek(_see)
    stream.aggregate("n", AnAggregator(folder), "a").peek(_see)
    topology.multi_reduce(stream, stream.project("n"), AMultiReducer(folder), "m").peek(_see)
    topology.multi_reduce(
        stream.group_by("n"), stream.project("n").group_by("n"), AGroupedMultiReducer(folder), "gm"
    ).peek(_see)
    _keep(topology, stream, folder)
    return topology


def _keep(topology: TridentTopology, stream: Stream, folder: Path) -> None:
    sums = stream.group_by("n").persistent_aggregate(MemoryMapState(), "n", AStatesCombiner(folder), "sum")
    stream.group_by("n").persistent_aggregate(MemoryMapState(), "n", AStatesReducer(folder), "reduced")
    stream.state_query(sums, "n", AQuery(folder), "found").partition_persist(RowsState(), AnUpdater(folder))
    new = sums.new_values_stream().each("sum", BehindAState(folder), "copy")
    new.aggregate("n", CombinesBehindAState(folder), "c").peek(_see)
    new.aggregate("n", AggregatesBehindAState(folder), "a").peek(_see)
    topology.multi_reduce([new], ReducesBehindAState(folder), "m").peek(_see)


def _see(row: TridentTuple) -> None:
    """Nothing is dropped before somebody has seen it."""


def run(folder: Path, engine: str, **conf: Any) -> RunningTopology:
    with declare(folder).start(engine=engine, **conf) as running:
        running.process_all_available()
    return running


NAMES = {kind.__name__ for kind in KINDS}
IN_WORKERS = NAMES - IN_THE_DRIVER | {"AStatesCombiner", "AStatesReducer"}  # which work in both places


def notes_of(folder: Path) -> dict[int, list[str]]:
    return {int(path.name): sorted(path.read_text(encoding="utf-8").splitlines()) for path in folder.iterdir()}


ORDER = Order(TransactionAttempt(1, 0))


def whole(names: set[str]) -> list[str]:
    return sorted([f"prepare {name} 3" for name in names] + [f"cleanup {name}" for name in names])


def test_every_kind_is_prepared_and_counts_on_both_engines(engine: str, tmp_path: Path) -> None:
    running = run(tmp_path, engine)
    batches = {one["batchId"]: one["metrics"] for one in running.recent_progress}
    counts = {f"{name}/calls": 8 if name == "AMultiReducer" else 4 for name in NAMES}  # of one stream and of two
    assert batches == {1: counts, 2: counts}
    assert running.status["metrics"] == {name: 2 * count for name, count in counts.items()}
    notes = notes_of(tmp_path)
    here = notes.pop(os.getpid())
    assert here == whole(NAMES if engine == "in_process" else IN_THE_DRIVER)
    assert bool(notes) is (engine == "spark")
    ends = isinstance(running.opened.runner, ResidentRunner)  # others live on, for the next topology of the session
    for lines in notes.values():
        assert lines == [line for line in whole(IN_WORKERS) if ends or line.startswith("prepare")]


def test_a_worker_ends_the_operations_of_a_topology_that_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_programs", {})
    plan = make_plan(declare(tmp_path).graph())
    settings = Config().as_mapping()
    commits = {node.id for node in plan.commits}
    fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commits}
    pickled = cloudpickle.dumps(Program("lives", fragments, {}, {}, settings, plan.exchanges, plan.levels))
    tasks.Job("first", pickled, ORDER).worker()
    (lines,) = notes_of(tmp_path).values()
    assert lines == [line for line in whole(IN_WORKERS) if line.startswith("prepare")]
    for number in range(tasks._PROGRAMS_KEPT):
        tasks.Job(str(number), cloudpickle.dumps(Program("other", {}, {}, {}, {})), ORDER).worker()
    (lines,) = notes_of(tmp_path).values()
    assert lines == whole(IN_WORKERS)
