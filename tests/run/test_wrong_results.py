"""Results that are not of their type, and times that Python has none for, fail their tuple where they come up."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spouts import FixedBatchSpout, ParquetFileSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.topology_runs import OneSpout, RowsSpout, keep, operation, run_all, topology_of
from tests.run.test_dead_letters import letters_of
from trident import BatchFailedError, Fields, Stream, TridentState, TridentTopology, TridentTuple
from trident.arrow import arrow_type, python_of
from trident.operations import (
    BaseAggregator,
    BaseQueryFunction,
    CombinerAggregator,
    Count,
    Function,
    MultiReducer,
    ReducerAggregator,
    Sum,
    arrow_function,
)
from trident.run.dead_letters import DeadLetter
from trident.strict_columns import beyond_python


def read(row: TridentTuple) -> Any:
    return json.loads(row[0])


# What they give is what a line of JSON says.
Emits = operation("Emits", Function, None, execute=lambda row, collector: collector.emit([read(row)]))
Asks = operation(
    "Asks", BaseQueryFunction, None,
    batch_retrieve=lambda state, args: [None for _ in args],
    execute=lambda row, result, collector: collector.emit([read(row)]),
)  # fmt: skip
Latest = operation("Latest", CombinerAggregator, None, init=read, combine=lambda a, b: b, zero=lambda: None)
LatestOf = operation("LatestOf", ReducerAggregator, None, init=lambda: None, reduce=lambda curr, row: read(row))
EmitsEach = operation(
    "EmitsEach", BaseAggregator, None,
    init=lambda batch_id, collector: None,
    aggregate=lambda val, row, collector: collector.emit([read(row)]),
    complete=lambda val, collector: None,
)  # fmt: skip
Joins = operation(
    "Joins", MultiReducer, None,
    init=lambda collector: None,
    execute=lambda state, index, row, collector: collector.emit([read(row)]),
    complete=lambda state, collector: None,
)  # fmt: skip


@arrow_function("v: bigint")
def parsed(lines: pa.Array) -> pa.Array:
    return pa.array([json.loads(line) for line in lines.to_pylist()])


@arrow_function("v: int")
def as_int(lines: pa.Array) -> pa.Array:
    return pa.array([1 << 40 if line == '"one"' else json.loads(line) for line in lines.to_pylist()])


def generated(line: str) -> Iterator[Any]:
    yield json.loads(line)


class Nothing:
    """A state that is asked for nothing."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        return self


def asked(stream: Stream) -> Stream:
    state = topology_of(stream).new_static_state(Nothing())
    return stream.state_query(state, "line", Asks(), "v: int").project("v")


CALLS: dict[str, Callable[[Stream], Stream]] = {
    "each": lambda s: s.each("line", json.loads, "v: int").project("v"),
    "each of generators": lambda s: s.each("line", generated, "v: int").project("v"),
    "a function": lambda s: s.each("line", Emits(), "v: int").project("v"),
    "map": lambda s: s.map(lambda row: json.loads(row[0]), "v: int"),
    "flat_map": lambda s: s.flat_map(lambda row: [json.loads(row[0])], "v: int"),
    "a vectorised function": lambda s: s.each("line", parsed, "v: bigint").project("v"),
    "a vectorised function of wider numbers": lambda s: s.each("line", as_int, "v: int").project("v"),
    "a query": asked,
    "an aggregator": lambda s: s.partition_aggregate("line", EmitsEach(), "v: int"),
    "a multi-reducer": lambda s: topology_of(s).multi_reduce(s, s.filter(lambda row: False), Joins(), "v: int"),
    "another number of values": lambda s: s.each(
        "line", lambda line: (1, 2) if line == '"one"' else json.loads(line), "v: int"
    ).project("v"),
    "behind an exchange": lambda s: s.shuffle().each("line", json.loads, "v: int").project("v").parallelism_hint(2),
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    letters = {"on_poison": "dead_letter", "dead_letter_dir": str(tmp_path / "letters")}
    return {**letters, "log_dir": str(tmp_path / "log"), "max_batch_attempts": 3}


def run_over(
    rows: list[Any],
    fields: str,
    declare: Callable[[Stream], Stream],
    engine: str,
    settings: dict[str, Any],
    **more: Any,
) -> tuple[list[Any], list[DeadLetter]]:
    """Run a topology over one batch of rows; return what it keeps, and its dead letters."""
    stream = TridentTopology("t").new_stream("s", RowsSpout(fields, {1: rows}))
    kept = keep(declare(stream))
    letters = letters_of(run_all(topology_of(stream), engine, **settings, **more))
    return kept.rows, letters


def lines_of(letters: list[DeadLetter]) -> list[str]:
    return [letter.left_out.values["line"] for letter in letters]


def letter_of(stream: Stream, engine: str, settings: dict[str, Any]) -> DeadLetter:
    """Run the topology of a stream; return its one dead letter."""
    (letter,) = letters_of(run_all(topology_of(stream), engine, **settings))
    return letter


@pytest.mark.sample(12)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_of_its_type_is_a_dead_letter(call: str, engine: str, settings: dict[str, Any]) -> None:
    rows, letters = run_over([["1"], ['"one"'], ["2"]], "line: string", CALLS[call], engine, settings, parallelism=1)
    assert sorted(rows) == [(1,), (2,)]
    assert lines_of(letters) == ['"one"']


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("aggregator", [Latest(), LatestOf()], ids=["combiner", "reducer"])
def test_a_tuple_for_no_aggregate_is_a_dead_letter(aggregator: Any, grouped: bool, settings: dict[str, Any]) -> None:
    def declare(s: Stream) -> Stream:
        return (s.group_by("line") if grouped else s).aggregate("line", aggregator, "v: int").project("v")

    rows, letters = run_over([["1"], ["2"], ["2.5"]], "line: string", declare, "in_process", settings)
    assert rows == ([(1,), (2,), (None,)] if grouped else [(2,)])
    assert lines_of(letters) == ["2.5"]


BUILT_IN: dict[str, Callable[[Stream], Stream]] = {
    "Sum": lambda s: s.group_by("k").aggregate("n", Sum(), "v: tinyint").project("v"),
    "Sum of partitions": lambda s: s.group_by("k").partition_aggregate("n", Sum(), "v: tinyint").to_stream().project("v"),
    "Sum of a state": lambda s: s.group_by("k").persistent_aggregate(MemoryMapState(), "n", Sum(), "v: tinyint")
    .new_values_stream().project("v"),
    "Count": lambda s: s.flat_map(lambda row: [(row["k"],)] * row["n"], "k: string").group_by("k")
    .aggregate(Count(), "v: tinyint").project("v"),
    "a chain": lambda s: s.chained_agg().aggregate("n", Sum(), "v: tinyint").aggregate("n", Sum(), "w").chain_end(),
}  # fmt: skip


@pytest.mark.parametrize("call", BUILT_IN)
def test_a_tuple_that_a_built_in_aggregate_cannot_hold_is_a_dead_letter(call: str, settings: dict[str, Any]) -> None:
    given = [["a", 100], ["a", 27], ["a", 1]]
    rows, letters = run_over(given, "k: string, n: int", BUILT_IN[call], "in_process", settings)
    assert rows == [(127,) * len(rows[0])], "the tuple is left out of all aggregates of a chain"
    assert len(letters) == 1
    assert letters[0].failure.cause.startswith("field 'v' is declared tinyint, but got 128 ")


# type, JSON texts of values that fit, one that does not
TYPES: list[tuple[str, list[Any], Any]] = [
    ("boolean", [True, None], 1), ("tinyint", [1, None], 300), ("smallint", [1, 2.0], 40_000), ("int", [1, None], 1.5),
    ("bigint", [1, None], 2**63), ("float", [0.5, None], 1e300), ("double", [0.5, 1], 2**53 + 1),
    ("decimal(5,2)", [1, 0.5], 1000),
    ("string", ["a", None], 1), ("array<int>", [[1], [None]], [1, 0.5]), ("array<array<int>>", [[[1]], [[]]], [["b"]]),
    ("struct<a:int>", [{"a": 1}, {"a": None}], {"b": 1}), ("date", [None], 5), ("timestamp", [None], 5),
    ("timestamp_ntz", [None], 5), ("binary", [None], "a"),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "good", "bad"), TYPES, ids=[ddl for ddl, _, _ in TYPES])
def test_of_each_type_what_fits_passes_and_what_does_not_is_a_dead_letter(
    ddl: str, good: list[Any], bad: Any, settings: dict[str, Any]
) -> None:
    def declare(s: Stream) -> Stream:
        return s.each("line", json.loads, f"v: {ddl}").project("v")

    given = [[json.dumps(value)] for value in [*good, bad, *good]]
    rows, letters = run_over(given, "line: string", declare, "in_process", settings)
    assert rows == [(value,) for value in [*good, *good]]
    assert lines_of(letters) == [json.dumps(bad)]


def test_without_dead_letters_the_batch_fails_once_and_names_value_type_and_tuple(engine: str) -> None:
    lines = FixedBatchSpout("line: string", 2, ['[{"n": 1}]'], ['[{"n": 1}, {"n": 0.5}]'])
    topology = TridentTopology("t")
    keep(topology.new_stream("s", lines).each("line", json.loads, "v: array<struct<n:int>>"))
    said = (
        r"failed once in step 's/loads' on tuple \[line='\[{\"n\": 1}, {\"n\": 0.5}\]'\]: field 'v' is declared "
        r"array<struct<n:int>>, but got 0.5 at v\[1\].n \("
    )
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology, engine)


Half = operation("Half", CombinerAggregator, None, init=lambda row: 0.25, combine=float.__add__, zero=lambda: 0.25)


def test_a_key_that_gives_another_type_is_named_where_no_single_tuple_is_known() -> None:
    topology, words = TridentTopology("t"), FixedBatchSpout("word: string", 2, ["a"])
    keep(topology.new_stream("s", words).group_by("word").aggregate(Half(), "v: int"))
    with pytest.raises(BatchFailedError, match=r"\[word='a'\]: field 'v' is declared int, but got 0.5"):
        run_all(topology, "in_process")


@pytest.mark.parametrize("grouped", [True, False])
def test_a_value_of_a_state_is_of_its_declared_type_or_fails_the_batch(grouped: bool) -> None:
    topology, lines = TridentTopology("t"), FixedBatchSpout("line: string", 2, ["1"], ["2.5"])
    stream = topology.new_stream("s", lines)
    (stream.group_by("line") if grouped else stream).persistent_aggregate(
        MemoryMapState(), "line", LatestOf(), "v: int"
    )
    said = (r"on tuple \[line='2.5'\]" if grouped else "@v'") + ": field 'v' is declared int, but got 2.5 "
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology, "in_process")


Added = operation("Added", ReducerAggregator, None, init=lambda: 0.0, reduce=lambda curr, row: curr + float(row["x"]))
AllTenths = operation(
    "AllTenths", ReducerAggregator, None, init=list, reduce=lambda curr, row: [*curr, {"x": row["x"]}]
)


FLOATS: dict[str, tuple[tuple[Any, ...], Callable[[float], Any]]] = {
    "sum": (("x", Sum(), "v: float"), lambda total: total),
    "reducer": (("x", Added(), "v: float"), lambda total: total),
    "several": (({"sum: float": Sum("x"), "count": Count()}, "v"), lambda total: {"sum": total, "count": 3}),
    "structs": (
        ("x", AllTenths(), "v: array<struct<x:float>>"), lambda total: [{"x": float(np.float32(0.1))}] * 3
    ),
}  # fmt: skip


@pytest.mark.parametrize("store", ["opaque", "transactional", "delta"])
@pytest.mark.parametrize("of", ["double", "float"])
def test_a_total_that_is_a_float_is_one_in_every_store(of: str, store: str, tmp_path: Path) -> None:
    rows = TridentTopology("floats").new_stream("rows", FixedBatchSpout(f"k: string, x: {of}", 1, *[("a", 0.1)] * 3))
    states = dict[str, TridentState]()
    for name, (given, _) in FLOATS.items():
        state = DeltaState.opaque(tmp_path / name) if store == "delta" else getattr(MemoryMapState, store)()
        states[name] = rows.group_by("k").persistent_aggregate(state, *given, state_name=name)
    whole = rows.persistent_aggregate(MemoryMapState(), "x", Sum(), "total: float")
    total, tenth = 0.0, 0.1 if of == "double" else float(np.float32(0.1))
    for _ in range(3):  # batches
        total = float(np.float32(total + tenth))
    running = run_all(topology_of(rows), "in_process", log_dir=str(tmp_path / "log"))
    found = {name: running.state(state).multi_get([("a",)])[0] for name, state in states.items()}
    assert found == {name: expected(total) for name, (_, expected) in FLOATS.items()}
    assert running.state(whole).get() == total


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_total_beyond_a_float_names_its_key(kind: str) -> None:
    rows = FixedBatchSpout("k: string, x: double", 9, ("a", 1.0), ("b", 3e38), ("b", 3e38), ("c", 0.0))
    stream = TridentTopology("floats").new_stream("rows", rows).group_by("k")
    total = stream.persistent_aggregate(getattr(MemoryMapState, kind)(), "x", Sum(), "total: float")
    with pytest.raises(BatchFailedError, match=r"\[k='b'\]: field 'total' is declared float, but got 6e\+38"):
        run_all(topology_of(total.new_values_stream()), "in_process")


@pytest.mark.parametrize("values", [[1.5], [True], [1e20], ["x"], [None, 1.0, 2.5]])
def test_a_table_of_a_spout_is_cast_without_loss_or_refused(values: list[Any]) -> None:
    topology = TridentTopology("t")
    keep(topology.new_stream("s", Tables(pa.array(values))))
    with pytest.raises(BatchFailedError, match=r"in step 's': field 'n' is declared bigint, but got "):
        run_all(topology, "in_process")


class Tables(OneSpout):
    """One batch of one column."""

    fields = Fields("n: bigint")

    def __init__(self, values: pa.Array) -> None:
        self.values = values

    def emit(self, part: Any) -> Iterator[Any]:
        yield pa.table([self.values], names=["n"])


FAR = 60_000 * 31_556_952 * 10**6  # microseconds: about the year 61970
DAYS = {"date": (-719_162, 2_932_896), "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999)}
DAYS["timestamp_ntz"] = DAYS["timestamp"]


def column(ddl: str, numbers: list[int | None]) -> pa.Array:
    whole = pa.array(numbers, pa.int32() if ddl == "date" else pa.int64())
    return whole.cast(arrow_type(ddl)) if ddl == "date" else whole.view(arrow_type(ddl))


AROUND: dict[str, Callable[[pa.Array], pa.Array]] = {
    "alone": lambda times: times,
    "in an array": lambda times: pa.ListArray.from_arrays(pa.array(range(len(times) + 1), pa.int32()), times),
    "in a struct": lambda times: pa.StructArray.from_arrays([times], ["at"]),
    "in a map": lambda times: pa.MapArray.from_arrays(
        pa.array(range(len(times) + 1), pa.int32()), pa.array(["k"] * len(times)), times
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("ddl", DAYS)
def test_the_first_and_last_times_of_python_pass_and_no_others(ddl: str, around: str) -> None:
    first, last = DAYS[ddl]
    good = AROUND[around](column(ddl, [first, None, last]))
    assert beyond_python(good) is None
    assert len(python_of(good)) == 3
    for wrong in (first - 1, last + 1):
        times = AROUND[around](column(ddl, [first, wrong, None, last]))
        found = beyond_python(pa.chunked_array([times.slice(0, 2), times.slice(2)]))
        assert found is not None
        assert found.to_pylist() == [False, True, False, False]


class FarRows(OneSpout):
    """One batch with a row whose time Python has not."""

    def __init__(self, ddl: str) -> None:
        self.ddl, self.fields = ddl, Fields(f"at: {ddl}, n: bigint")

    def emit(self, part: Any) -> Iterator[Any]:
        number = 10**8 if self.ddl == "date" else FAR
        yield pa.table([column(self.ddl, [0, number, 1]), pa.array([1, 2, 3])], names=["at", "n"])


@pytest.mark.parametrize("ddl", DAYS)
def test_such_a_time_is_a_dead_letter_that_can_be_read(ddl: str, engine: str, settings: dict[str, Any]) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FarRows(ddl)).filter("at", lambda at: at.year == 1970).project("n")
    kept, letter = keep(stream), letter_of(stream, engine, settings)
    assert kept.rows == [(1,), (3,)]
    far = f"<value out of range: {10**8 if ddl == 'date' else FAR}>"
    assert letter.left_out.values == {"at": far, "n": 2}
    assert letter.failure.cause.startswith(f"field 'at' is declared {ddl}, but got '<value out of range: ")


def test_without_dead_letters_the_error_names_field_type_and_time(engine: str) -> None:
    topology = TridentTopology("t")
    keep(topology.new_stream("s", FarRows("timestamp")))
    far = f"'<value out of range: {FAR}>'"
    said = rf"in step 's' on tuple \[at={far}, n=2\]: field 'at' is declared timestamp, but got {far} \(times are from year 1 "
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology, engine)


@arrow_function("at: timestamp")
def far(numbers: pa.Array) -> pa.Array:
    return pa.array([FAR if number == 2 else 0 for number in numbers.to_pylist()], pa.timestamp("us", "UTC"))


def test_a_vectorised_function_that_makes_such_a_time_fails_its_tuple(settings: dict[str, Any]) -> None:
    rows = RowsSpout("n: bigint", {1: [(1,), (2,), (3,)]})
    stream = TridentTopology("t").new_stream("s", rows).each("n", far, "at")
    kept, letter = keep(stream), letter_of(stream, "in_process", settings)
    assert [(n, at.replace(tzinfo=None)) for n, at in kept.rows] == [(n, dt.datetime(1970, 1, 1)) for n in (1, 3)]
    said = "far gives an impossible value: times are from year 1 to 9999, as in Python and Spark"
    assert (letter.left_out.values, letter.failure.cause) == ({"n": 2}, said)


TWICE = [
    ("map<string,int>", [("x", 1), ("y", 2), ("x", 2)]),
    ("map<double,int>", [(0.0, 1), (-0.0, 2)]),
    ("map<array<int>,int>", [([1], 1), ([1], 2)]),
    ("array<map<date,int>>", [[(dt.date(2024, 1, 1), 1)], [(dt.date(2024, 1, 1), 1), (dt.date(2024, 1, 1), 1)]]),
    ("struct<m:map<int,map<string,int>>>", {"m": [(1, [("x", 1), ("x", 1)])]}),
]


def maps_of(ddl: str, value: Any) -> pa.Table:
    good = {"m": [(1, [("x", 1)]), (2, [("x", 1)])]} if ddl.startswith("struct") else value[:1]
    column = pa.array([good, value, None, good], arrow_type(ddl))
    return pa.table({"m": pa.concat_arrays([column.slice(3), column]).slice(1), "n": [1, 2, 3, 4]})


@pytest.mark.parametrize(("ddl", "value"), TWICE)
def test_a_map_of_equal_keys_is_a_dead_letter(ddl: str, value: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "in" / "a.parquet"
    file.parent.mkdir()
    pq.write_table(maps_of(ddl, value), file)
    spout = ParquetFileSpout(file.parent, f"m: {ddl}, n: bigint", with_file=True, follow=False)
    rows = TridentTopology("t").new_stream("s", spout)
    stream = rows.filter("m", lambda m: m is None or len(m) > 0).project("n")
    kept, letter = keep(stream), letter_of(stream, "in_process", settings)
    assert kept.rows == [(1,), (3,), (4,)]
    assert (letter.left_out.values["n"], letter.left_out.values["file"]) == (2, str(file))
    assert letter.failure.cause.startswith(f"field 'm' is declared {ddl}, but got ")
    assert "(a map has a key twice, so its value is not known; leave one of them out" in letter.failure.cause


@pytest.mark.parametrize(("ddl", "value"), TWICE)
def test_a_map_with_a_key_twice_is_told_by_field_from_tables_and_functions(ddl: str, value: Any) -> None:
    topology = TridentTopology("t")
    keep(topology.new_stream("s", FixedBatchSpout.of_tables([maps_of(ddl, value)])))
    with pytest.raises(
        BatchFailedError, match=r"in step 's' on tuple \[m=.*, n=2\]: field 'm' is declared .* a key twice"
    ):
        run_all(topology, "in_process")

    @arrow_function(f"m: {ddl}")
    def twice(numbers: pa.Array) -> pa.Array:
        return maps_of(ddl, value)["m"].take(pc.subtract(numbers, 1))

    topology = TridentTopology("t")
    keep(topology.new_stream("s", RowsSpout("n: bigint", {1: [(1,), (2,), (3,)]})).each("n", twice, "m"))
    with pytest.raises(BatchFailedError, match=r"twice gives an impossible value: a map has a key twice"):
        run_all(topology, "in_process")
