"""Operations of every kind are prepared once in each process before their first tuple, and cleaned up after their last."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsState
from trident import Config, TridentTopology, TridentTuple
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


def counting(function: Callable[..., Any], amount: Callable[..., int]) -> Callable[..., Any]:
    """Make a method that counts."""

    def method(self: Lives, *given: Any) -> Any:
        self.calls.incr(amount(*given))
        return function(*given)

    return method


def prepared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that must find its operation prepared."""

    def method(self: Lives, *given: Any) -> Any:
        assert self.calls.name
        return function(*given)

    return method


def one(function: Callable[..., Any]) -> Callable[..., Any]:
    return counting(function, lambda *given: 1)


# By the interface, the methods; and the names of operations of this kind, as there are several places for some.
KINDS: list[tuple[type[Any], dict[str, Any], str]] = [
    (Function, {"execute": one(lambda row, collector: collector.emit([row[0]]))}, "AFunction Assembled BehindAState"),
    (Filter, {"is_keep": one(lambda row: True)}, "AFilter"),
    (MapFunction, {"execute": one(lambda row: row.values)}, "AMap"),
    (FlatMapFunction, {"execute": one(lambda row: [row.values])}, "AFlatMap"),
    (Consumer, {"accept": one(lambda row: None)}, "AConsumer"),
    (ArrowFunction, {"output": Fields("same: int"), "apply": counting(lambda column: column, len)}, "AnArrowFunction"),
    (ArrowFilter, {"mask": counting(lambda column: column.is_valid(), len)}, "AnArrowFilter"),
    (
        CombinerAggregator,
        {"init": one(lambda row: int(row[0])), "combine": prepared(lambda a, b: a + b), "zero": prepared(lambda: 0)},
        "ACombiner AStatesCombiner CombinesBehindAState",
    ),
    (ReducerAggregator, {"init": lambda self: 0, "reduce": one(lambda curr, row: curr + 1)}, "AReducer AStatesReducer"),
    (
        Aggregator,
        {
            "init": prepared(lambda batch_id, collector: 0),
            "aggregate": one(lambda val, row, collector: val + 1),
            "complete": lambda self, val, collector: collector.emit([val]),
        },
        "AnAggregator AggregatesBehindAState",
    ),
    (
        MultiReducer,
        {
            "init": prepared(lambda collector: 0),
            "execute": one(lambda state, stream_index, row, collector: state + 1),
            "complete": lambda self, state, collector: collector.emit([state]),
        },
        "AMultiReducer ReducesBehindAState",
    ),
    (
        GroupedMultiReducer,
        {
            "init": one(lambda collector, group: 0),
            "execute": lambda self, state, stream_index, group, row, collector: state + 1,
            "complete": lambda self, state, group, collector: collector.emit([state]),
        },
        "AGroupedMultiReducer",
    ),
    (
        BaseQueryFunction,
        {
            "batch_retrieve": prepared(lambda state, args: [0] * len(args)),
            "execute": one(lambda row, result, collector: collector.emit([result])),
        },
        "AQuery AStaticQuery",
    ),
    (
        BaseStateUpdater,
        {
            "update_state": counting(
                lambda state, rows, collector: state.pending.extend(row.values for row in rows),
                lambda state, rows, collector: len(rows),
            )
        },
        "AnUpdater",
    ),
]
OPERATIONS: dict[str, Any] = {
    name: type(name, (Lives, base), {"__module__": __name__, "output_types": ("bigint",), **methods})
    for base, methods, names in KINDS
    for name in names.split()
}
globals().update(OPERATIONS)  # workers find the classes by their names
NAMES = set(OPERATIONS)
IN_THE_DRIVER = {
    "AStatesCombiner", "AStatesReducer", "AQuery", "AnUpdater", "BehindAState", "CombinesBehindAState",
    "AggregatesBehindAState", "ReducesBehindAState",
}  # fmt: skip
IN_WORKERS = NAMES - IN_THE_DRIVER | {"AStatesCombiner", "AStatesReducer"}  # which work in both places


class Nothing:
    """A static state."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Nothing:
        return self


def declare(folder: Path) -> TridentTopology:
    """Return a topology with an operation of each kind."""
    of = {name: kind(folder) for name, kind in OPERATIONS.items()}
    topology = TridentTopology("lives")
    stream = topology.new_stream("n", FixedBatchSpout("n: int", 4, *([n] for n in range(8)))).parallelism_hint(2)
    stream = stream.filter("n", of["AFilter"]).each("n", of["AnArrowFilter"]).map(of["AMap"])
    stream = stream.flat_map(of["AFlatMap"]).peek(of["AConsumer"]).each("n", of["AnArrowFunction"])
    stream = stream.each("n", of["AFunction"], "f").apply_assembly(lambda s: s.each("n", of["Assembled"], "g"))
    stream = stream.state_query(topology.new_static_state(Nothing()), "n", of["AStaticQuery"], "static")
    sums = stream.group_by("n").persistent_aggregate(MemoryMapState(), "n", of["AStatesCombiner"], "sum")
    stream.group_by("n").persistent_aggregate(MemoryMapState(), "n", of["AStatesReducer"], "reduced")
    stream.state_query(sums, "n", of["AQuery"], "found").partition_persist(RowsState(), of["AnUpdater"])
    new, groups = sums.new_values_stream().each("sum", of["BehindAState"], "copy"), stream.project("n").group_by("n")
    for seen in (
        stream.chained_agg().aggregate("n", of["ACombiner"], "c").chain_end(),
        stream.group_by("f").aggregate("n", of["AReducer"], "r").parallelism_hint(2),
        stream.aggregate("n", of["AnAggregator"], "a"),
        topology.multi_reduce(stream, stream.project("n"), of["AMultiReducer"], "m"),
        topology.multi_reduce(stream.group_by("n"), groups, of["AGroupedMultiReducer"], "gm"),
        new.aggregate("n", of["CombinesBehindAState"], "c"),
        new.aggregate("n", of["AggregatesBehindAState"], "a"),
        topology.multi_reduce([new], of["ReducesBehindAState"], "m"),
    ):
        seen.peek(_see)
    return topology


def _see(row: TridentTuple) -> None:
    """Nothing is dropped before somebody has seen it."""


def run(folder: Path, engine: str, **conf: Any) -> RunningTopology:
    with declare(folder).start(engine=engine, **conf) as running:
        running.process_all_available()
    return running


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


def test_a_worker_ends_operations_of_topologies_that_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
