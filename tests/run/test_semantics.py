"""Every operation of the language on both engines: the same results, which are those of Trident."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import CountAll, Fold, RowsState, keep, operation, run_all, start
from trident import BatchFailedError, Stream, TridentCollector, TridentTopology, TridentTuple
from trident.engine import tasks, worker
from trident.engine.tasks import routes_of
from trident.operations import (
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Count,
    FlatMapFunction,
    Function,
    MapFunction,
    MapGet,
    Max,
    Min,
    ReducerAggregator,
    Split,
    Sum,
    TupleCollectionGet,
)
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateSpec


def lines(topology: TridentTopology, *texts: str | None, size: int = 2, name: str = "lines") -> Stream:
    return topology.new_stream(name, FixedBatchSpout("line: string", size, *([text] for text in texts)))


def numbers(topology: TridentTopology, *rows: Sequence[Any], fields: str = "a: int, b: int, c: int") -> Stream:
    return topology.new_stream("numbers", FixedBatchSpout(fields, 2, *rows))


class Always(Function):
    output_types = ("string", "bigint")

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit(("x", len(tuple)))


Swap = operation("Swap", MapFunction, None, execute=lambda row: [row["b"], row["a"]])
Both = operation("Both", FlatMapFunction, None, execute=lambda row: [(row["a"],), row["b"]])


def pairs(a: int, b: int) -> Iterator[tuple[int, str]]:
    yield (a, "first")
    yield (b, "second")


ROWS = [(1, 2, 3), (4, 1, 6), (3, 0, 8)]
STEPS: dict[str, tuple[Callable[[Stream], Stream], list[tuple[Any, ...]]]] = {
    "each with a generator of two values": (
        lambda s: s.each(["c", "b"], pairs, "x, y").project("x", "y"),
        [(3, "first"), (2, "second"), (6, "first"), (1, "second"), (8, "first"), (0, "second")],
    ),
    "each with a function that returns a tuple": (
        lambda s: s.each("a", lambda a: (a, str(a)), "x: int, y: string").project("y", "x"),
        [("1", 1), ("4", 4), ("3", 3)],
    ),
    "each with a function that returns None": (lambda s: s.each("a", lambda a: None, "x: string").project("x"),
                                               [(None,), (None,), (None,)]),
    "each without input fields": (lambda s: s.each(Always(), "x, n").project("a", "x", "n"),
                                  [(1, "x", 0), (4, "x", 0), (3, "x", 0)]),
    "each with a predicate": (lambda s: s.each("b", lambda b: b > 0), [(1, 2, 3), (4, 1, 6)]),
    "filter of everything": (lambda s: s.filter(lambda row: False), []),
    "map keeps the fields": (lambda s: s.map(lambda row: tuple(value + 1 for value in row)), [(2, 3, 4), (5, 2, 7), (4, 1, 9)]),
    "map with a MapFunction": (lambda s: s.map(Swap(), "b: int, a: int"), [(2, 1), (1, 4), (0, 3)]),
    "map that gives a row back": (lambda s: s.map(lambda row: row), list(ROWS)),
    "map to a list of one value": (lambda s: s.map(lambda row: [row["a"]], "x: int"), [(1,), (4,), (3,)]),
    "map to an array": (lambda s: s.map(lambda row: [row["a"]], "x: array<int>"), [([1],), ([4],), ([3],)]),
    "flat_map with a FlatMapFunction": (lambda s: s.flat_map(Both(), "x: int"), [(1,), (2,), (4,), (1,), (3,), (0,)]),
}  # fmt: skip
"""Beside those of docs/operations.md, which tests/test_docs_operations.py runs on both engines."""


@pytest.mark.parametrize("case", STEPS)
def test_an_operation_gives_what_trident_gives(case: str, engine: str, topology: TridentTopology) -> None:
    build, expected = STEPS[case]
    kept = keep(build(numbers(topology, *ROWS)))
    run_all(topology, engine)
    assert kept.rows == expected


class CannotPrepare(Function):
    output_types = ("string",)

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        raise ConnectionError("no answer from the lookup service")


def test_what_prepare_raises_fails_the_batch_with_its_cause(spark: Any, topology: TridentTopology) -> None:
    topology.new_stream("s", FixedBatchSpout("k", 1, ["a"])).each("k", CannotPrepare(), "v").peek(print)
    with (
        pytest.raises(
            BatchFailedError, match=r"in step 'prepare': ConnectionError: no answer from the lookup service\."
        ),
        topology.start(engine="spark", max_batch_attempts=1) as running,
    ):
        running.process_all_available()


def test_a_worker_keeps_a_bounded_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, worker.WorkerProgram] = {}
    monkeypatch.setattr(tasks, "_programs", kept)
    program, order = worker.Program("t", {}, {}, {}, {}), worker.Order(TransactionAttempt(1, 0))
    routes, pickled = routes_of(program, False, False, 1), cloudpickle.dumps(program)
    for name in [name for number in range(20) for name in ("first", str(number))]:
        assert list(tasks.run_parts_task(tasks.Job(name, pickled, order), routes, 0, iter(()))) == []
    assert len(kept) == 8
    assert "first" in kept


Longest = operation(  # a combiner without an identity and without a kernel
    "Longest", CombinerAggregator, "string",
    init=lambda row: row.get_string(0),
    combine=lambda one, other: max(one or "", other or "", key=lambda text: (len(text), text)),
    zero=lambda: None,
)  # fmt: skip


Gather = operation(  # mutates what it is given, as it must not
    "Gather", ReducerAggregator, "array<string>", init=list, reduce=lambda curr, row: curr.append(row[0]) or curr
)


def test_the_other_aggregates(engine: str, topology: TridentTopology) -> None:
    stream = numbers(
        topology, ("a", 1, 0.5), ("b", None, 1.5), ("a", -3, None), ("b", None, None), ("a", 7, 0.25),
        fields="k: string, n: smallint, x: double",
    )  # fmt: skip
    by_key = stream.group_by("k")
    states = {
        "sum": by_key.persistent_aggregate(MemoryMapState(), "n", Sum(), "sum"),
        "min": by_key.persistent_aggregate(MemoryMapState(), "n", Min(), "min"),
        "max": by_key.persistent_aggregate(MemoryMapState(), "x", Max(), "max"),
        "longest": stream.group_by("n").persistent_aggregate(MemoryMapState(), "k", Longest(), "longest"),
        "all": stream.persistent_aggregate(MemoryMapState(), "x", Sum(), "all"),
        "least": stream.persistent_aggregate(MemoryMapState(), "n", Min(), "least"),
    }
    running = run_all(topology, engine)
    read = {name: running.state(state) for name, state in states.items()}
    assert {name: read[name].multi_get(["a", "b"]) for name in ("sum", "min", "max")} == {
        "sum": [5, 0], "min": [-3, None], "max": [0.5, 1.5],
    }  # fmt: skip
    assert read["longest"].multi_get([(1,), (None,)]) == ["a", "b"]
    assert (read["all"].get(), read["least"].get()) == (2.25, -3)


@pytest.mark.parametrize("kind", [MemoryMapState.opaque, MemoryMapState.transactional])
def test_an_empty_batch_writes_the_zero_of_a_combiner_and_nothing_of_a_reducer(
    kind: Callable[[], StateSpec], engine: str, topology: TridentTopology
) -> None:
    nothing = lines(topology, "a").filter(lambda row: False)
    states = [
        nothing.persistent_aggregate(kind(), Count(), "native"),
        nothing.persistent_aggregate(kind(), CountAll(), "combined"),
        nothing.persistent_aggregate(kind(), Fold(), "reduced"),
        nothing.persistent_aggregate(kind(), "line", Longest(), "without_zero"),
        nothing.group_by("line").persistent_aggregate(kind(), Count(), "grouped"),
    ]
    zero_rows = keep(states[0].new_values_stream())
    running = run_all(topology, engine)
    assert [running.state(state).get() for state in states[:4]] == [0, 0, None, None]
    assert list(running.state(states[4]).get_tuples()) == []
    assert zero_rows.rows == [(0,)]
    assert running.txid == 1


def test_a_mutating_reducer_harms_no_replay(engine: str, topology: TridentTopology) -> None:
    state = lines(topology, "a", "b", "c", size=1).persistent_aggregate(MemoryMapState(), "line", Gather(), "all")
    running = run_all(topology, engine)
    assert running.state(state).get() == ["a", "b", "c"]


def test_one_key_a_hundred_thousand_times_and_no_key_at_all(engine: str, topology: TridentTopology) -> None:
    table = pa.table({"k": pa.array(["same"] * 100_000)})
    stream = topology.new_stream("many", FixedBatchSpout.of_tables([table, table.slice(0, 1)]))
    same = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), "count").parallelism_hint(2)
    folded = stream.group_by("k").persistent_aggregate(MemoryMapState(), Fold(), "folded")
    none = stream.filter("k", lambda k: False).group_by("k").persistent_aggregate(MemoryMapState(), Count(), "none")
    running = run_all(topology, engine)
    assert running.state(same).multi_get(["same"]) == running.state(folded).multi_get(["same"]) == [100_001]
    assert list(running.state(none).get_tuples()) == []
    assert running.state(none).multi_get([]) == []


class LocationDB:
    """The state of Storm's documentation: a data base that reads and writes in bulk."""

    in_memory = True

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.requests: list[str] = []

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> LocationDB:
        return self

    def begin_commit(self, txid: int) -> None:
        self.requests.append(f"begin {int(txid)}")

    def commit(self, txid: int) -> None:
        self.requests.append(f"commit {int(txid)}")

    def set_locations_bulk(self, users: list[int], places: list[str]) -> None:
        self.requests.append(f"set {len(users)}")
        self.places.update(zip(users, places, strict=True))

    def bulk_get_locations(self, users: list[int]) -> list[str | None]:
        self.requests.append(f"get {len(users)}")
        return [self.places.get(user) for user in users]


class LocationUpdater(BaseStateUpdater[LocationDB]):
    output_types = ("bigint",)

    def update_state(self, state: LocationDB, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.set_locations_bulk([row["user"] for row in tuples], [row["place"] for row in tuples])
        collector.emit([len(tuples)])


class QueryLocation(BaseQueryFunction[LocationDB, str | None]):
    output_types = ("string",)

    def batch_retrieve(self, state: LocationDB, args: Sequence[TridentTuple]) -> list[str | None]:
        return state.bulk_get_locations([row.get_long(0) or 0 for row in args])

    def execute(self, tuple: TridentTuple, result: str | None, collector: TridentCollector) -> None:
        if result is not None:
            collector.emit([result])


def test_a_users_own_state_is_written_and_read_in_bulk(engine: str, topology: TridentTopology) -> None:
    moves, asks = FeederBatchSpout("user: bigint, place: string"), FeederBatchSpout("user: bigint")
    database = LocationDB()
    locations = topology.new_stream("moves", moves).partition_persist(
        database, ["user", "place"], LocationUpdater(), "moved", state_name="locations"
    )
    moved = keep(locations.new_values_stream(), "moved")
    found = keep(topology.new_stream("asks", asks).state_query(locations, "user", QueryLocation(), "place"), "found")
    with start(topology, engine):
        moves.feed([(1, "Rome"), (2, "Oslo")])
        asks.feed([(1,), (2,), (3,)])
        moves.feed([(1, "Bern")])
        asks.feed([(1,)])
    assert found.rows == [(1, "Rome"), (2, "Oslo"), (1, "Bern")]
    assert moved.rows == [(2,), (1,)]
    assert database.requests == [
        "begin 1", "set 2", "commit 1", "get 3", "begin 3", "set 1", "commit 3", "get 1",
    ]  # fmt: skip


def test_an_updater_may_be_silent_and_is_not_called_without_tuples(engine: str, topology: TridentTopology) -> None:
    state = RowsState()

    class Silent(BaseStateUpdater[RowsState]):
        def update_state(self, state: RowsState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
            state.pending.extend(row.values for row in tuples)

    lines(topology, "a", "b", "c", size=1).filter("line", lambda line: line != "b").partition_persist(state, Silent())
    run_all(topology, engine)
    assert state.batches == {1: [("a",)], 3: [("c",)]}
    assert state.calls == ["begin 1", "commit 1", "begin 3", "commit 3"]


class Atlas:
    """A static state: made where it is asked for, on Spark in the workers."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Atlas:
        assert conf.read_only
        return self

    def multi_get(self, keys: Sequence[Any]) -> list[str | None]:
        return [{"the": "article", "cow": "animal"}.get(key[0]) for key in keys]


def test_a_static_state_is_asked_in_the_stage(engine: str, topology: TridentTopology) -> None:
    atlas = topology.new_static_state(Atlas(), "atlas")
    words = lines(topology, "the cow", "the moon").each("line", Split(), "word")
    kept = keep(words.state_query(atlas, "word", MapGet(), "kind: string").project("word", "kind"))
    run_all(topology, engine)
    assert kept.rows == [("the", "article"), ("cow", "animal"), ("the", "article"), ("moon", None)]


def test_a_static_state_can_be_asked_about_new_values(engine: str, topology: TridentTopology) -> None:
    atlas = topology.new_static_state(Atlas(), "atlas")
    counts = lines(topology, "cow").group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    kept = keep(counts.new_values_stream().state_query(atlas, "line", MapGet(), "kind: string"))
    run_all(topology, engine)
    assert kept.rows == [("cow", 1, "animal")]


def test_a_state_is_listed_as_after_the_batch_before(engine: str, topology: TridentTopology) -> None:
    stream = lines(topology, "a", "b", "c", size=1)
    counts = stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count").parallelism_hint(2)
    listed = stream.state_query(counts, "line", TupleCollectionGet(), "key, before")
    assert listed.get_output_fields().types == ("string", "string", "bigint")
    kept = keep(listed)
    run_all(topology, engine)
    assert sorted(kept.rows) == [("b", "a", 1), ("c", "a", 1), ("c", "b", 1)]
