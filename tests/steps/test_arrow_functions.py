"""Functions over Arrow arrays: what they may return, what is refused, and how one bad tuple is found among many."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, run_all, start, touch
from trident import BatchFailedError, FailedException, Fields, Stream, TopologyError, TridentTopology, TridentTuple
from trident.graph import EachNode, FilterNode, MapNode
from trident.operations import (
    ArrowFilter,
    ArrowFunction,
    Function,
    TridentOperationContext,
    arrow_filter,
    arrow_function,
)
from trident.plan import Step
from trident.steps.applying import apply_step
from trident.steps.failures import StepFailed, TupleErrors

ROWS: list[tuple[str | None, int]] = [("a bb", 1), ("", 2), (None, 3), ("ccc", 4)]


@arrow_function("length: int")
def length(line: pa.Array) -> pa.Array:
    return pc.utf8_length(line)


@arrow_function("word: string", flat=True)
def words(line: pa.Array) -> pa.Array:
    return pc.split_pattern(line, " ")


@arrow_function("n: bigint, again: bigint", flat=True)
def twice(n: pa.Array) -> tuple[pa.Array, tuple[pa.Array, pa.Array]]:
    parents = np.repeat(np.arange(len(n)), 2)
    both = pc.cast(n, pa.int64()).take(pa.array(parents))
    return pa.array(parents), (both, pc.multiply(both, 10))


@arrow_function("n: bigint, line: string")
def turned(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"line": batch.column("line"), "n": pc.cast(batch.column("n"), pa.int64())})


@arrow_function("big: bigint", flat=True)
def big(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("n").filter(pc.greater(batch.column("n"), 2))


@arrow_filter
def odd(n: pa.Array) -> pa.BooleanArray:
    return pc.equal(pc.bit_wise_and(n, 1), 1)


@arrow_filter
def filled(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.not_equal(batch.column("line"), "")


def stream_of(topology: TridentTopology, *rows: Any) -> Stream:
    return topology.new_stream("in", FixedBatchSpout("line: string, n: int", 10, *(rows or ROWS)))


def test_vectorised_operations_run_on_both_engines(engine: str) -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology)
    calls: dict[str, Callable[[Stream], Stream]] = {
        "each": lambda s: s.each("line", length, "length"),
        "own": lambda s: s.each("line", length),
        "flat": lambda s: s.each("line", words, "word").project("n", "word"),
        "parents": lambda s: s.project("n").each("n", twice, "same, tenfold"),
        "map": lambda s: s.map(turned),
        "renamed": lambda s: s.map(turned, "x, y").project("y"),
        "flat_map": lambda s: s.flat_map(big),
        "odd": lambda s: s.each("n", odd),
        "filter": lambda s: s.filter("n", odd),
        "whole": lambda s: s.filter(filled),
    }
    kept = {name: keep(call(stream), name) for name, call in calls.items()}
    run_all(topology, engine)
    assert {name: state.rows for name, state in kept.items()} == {
        "each": [("a bb", 1, 4), ("", 2, 0), (None, 3, None), ("ccc", 4, 3)],
        "own": [("a bb", 1, 4), ("", 2, 0), (None, 3, None), ("ccc", 4, 3)],
        "flat": [(1, "a"), (1, "bb"), (2, ""), (4, "ccc")],
        "parents": [(n, n, n * 10) for n in (1, 1, 2, 2, 3, 3, 4, 4) for n in (n,)],
        "map": [(1, "a bb"), (2, ""), (3, None), (4, "ccc")],
        "renamed": [("a bb",), ("",), (None,), ("ccc",)],
        "flat_map": [(3,), (4,)],
        "odd": [("a bb", 1), (None, 3)],
        "filter": [("a bb", 1), (None, 3)],
        "whole": [("a bb", 1), ("ccc", 4)],
    }


def test_a_decorated_function_can_still_be_called() -> None:
    assert length(pa.array(["ab"])).to_pylist() == [2]  # type: ignore[operator]
    assert odd(pa.array([1, 2])).to_pylist() == [True, False]  # type: ignore[operator]


TABLE = pa.table({"line": pa.array([line for line, _ in ROWS]), "n": pa.array([n for _, n in ROWS], pa.int32())})
IN = Fields("line: string, n: int")


def no_state(name: str) -> Any:
    raise AssertionError(name)


def each(function: Any, outputs: str, on_error: TupleErrors | None = None, table: pa.Table = TABLE) -> pa.Table:
    node = EachNode("e", ("in",), IN.concat(Fields(outputs)), Fields("n: int"), function, Fields(outputs))
    return apply_step(Step("e", ("in",), node, node.fields.names), table, on_error or TupleErrors(), no_state)


def mapped(function: Any, fields: str, flat: bool = False, table: pa.Table = TABLE) -> pa.Table:
    node = MapNode("m", ("in",), Fields(fields), IN, function, flat)
    return apply_step(Step("m", ("in",), node, node.fields.names), table, TupleErrors(), no_state)


def kept(filter_: Any, table: pa.Table = TABLE, whole: bool = False) -> list[Any]:
    node = FilterNode("f", ("in",), IN, Fields("n: int"), filter_, whole)
    column: list[Any] = apply_step(Step("f", ("in",), node, ("n",)), table, TupleErrors(), no_state)["n"].to_pylist()
    return column


TEXTS, NUMBERS = pa.array(["p", "q", None, "s"]), pa.array([1, 2, 3, None])
STRUCTS = pa.StructArray.from_arrays([TEXTS, NUMBERS], ["x", "y"])


@pytest.mark.parametrize(
    "returned",
    [
        (TEXTS, NUMBERS),
        [TEXTS, NUMBERS],
        STRUCTS,
        pa.chunked_array([STRUCTS]),
        pa.RecordBatch.from_pydict({"x": TEXTS, "y": NUMBERS}),
        pa.RecordBatch.from_pydict({"y": NUMBERS, "x": TEXTS}),
        pa.table({"other": TEXTS, "names": NUMBERS}),
        (TEXTS.dictionary_encode(), NUMBERS.cast(pa.int8())),
        (TEXTS.cast(pa.large_string()), pa.chunked_array([NUMBERS])),
    ],
)
def test_several_fields_come_in_many_forms(returned: Any) -> None:
    result = each(arrow_function("x: string, y: int")(lambda n: returned), "x: string, y: int")
    assert result.select(["x", "y"]).to_pylist() == STRUCTS.to_pylist()
    assert result.schema.field("y").type == pa.int32()


@pytest.mark.parametrize(
    ("type_", "returned"),
    [
        ("string", pa.nulls(4)),
        ("float", pa.array([1.0, 2.0, 3.0, None])),
        ("array<bigint>", pa.array([[1], None, [], [2]], pa.list_(pa.int32()))),
        ("struct<x:string,y:bigint>", STRUCTS),
        ("timestamp", pa.array([0, 1, 2, 3], pa.timestamp("ms", "UTC"))),
        ("decimal(10,2)", pa.array([1, 2, 3, 4]).cast(pa.decimal128(24, 4))),
    ],
)
def test_a_value_is_made_the_declared_type(type_: str, returned: Any) -> None:
    result = each(arrow_function(f"x: {type_}")(lambda n: returned), f"x: {type_}")
    assert result["x"].to_pylist() == returned.to_pylist()


LISTS = pa.array([[1, 2], [], None, [3]])
HIDDEN = pa.ListArray.from_arrays(
    pa.array([0, 1, 2, 3, 4]), pa.array([1, 2, 3, 4]), mask=pa.array([False, True, False, False])
)


@pytest.mark.parametrize(
    ("returned", "rows"),
    [
        (LISTS, [(1, 1), (1, 2), (4, 3)]),
        (pa.chunked_array([LISTS]), [(1, 1), (1, 2), (4, 3)]),
        (LISTS.cast(pa.large_list(pa.int64())), [(1, 1), (1, 2), (4, 3)]),
        (HIDDEN, [(1, 1), (3, 3), (4, 4)]),
        (pa.nulls(4, pa.list_(pa.int64())), []),
        ((pa.array([3, 0]), pa.array([7, 8])), [(4, 7), (1, 8)]),
        ((np.array([1, 1]), pa.array([7, 8])), [(2, 7), (2, 8)]),
        ((pa.chunked_array([pa.array([2])]), (pa.array([7]),)), [(3, 7)]),
        ((pa.array([], pa.int64()), pa.array([], pa.int64())), []),
    ],
)
def test_a_flat_function_gives_any_number_of_rows(returned: Any, rows: list[Any]) -> None:
    result = each(arrow_function("x: bigint", flat=True)(lambda n: returned), "x: bigint")
    assert list(zip(result["n"].to_pylist(), result["x"].to_pylist(), strict=True)) == rows


def test_lists_of_structs_give_several_fields() -> None:
    lists = pa.array([[{"x": "a", "y": 1}], None, [], [{"x": "b", "y": 2}, {"x": None, "y": None}]])
    result = each(arrow_function("x: string, y: bigint", flat=True)(lambda n: lists), "x: string, y: bigint")
    assert [tuple(row.values()) for row in result.select(["n", "x", "y"]).to_pylist()] == [
        (1, "a", 1), (4, "b", 2), (4, None, None),
    ]  # fmt: skip


class ByRow(Function):
    def __init__(self, lists: list[list[int] | None]) -> None:
        self.lists = iter(lists)

    def execute(self, tuple: TridentTuple, collector: Any) -> None:
        for value in next(self.lists) or []:
            collector.emit([value])


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3)), max_size=8))
def test_a_flat_function_is_the_row_by_row_function(lists: list[list[int] | None]) -> None:
    table = pa.table({"line": pa.nulls(len(lists), pa.string()), "n": pa.array(range(len(lists)), pa.int32())})
    array = pa.array(lists, pa.list_(pa.int64()))
    vectorised = each(arrow_function("x: bigint", flat=True)(lambda n: array.take(n)), "x: bigint", table=table)
    assert vectorised.to_pylist() == each(ByRow(lists), "x: bigint", table=table).to_pylist()


def test_nothing_is_called_for_no_tuples() -> None:
    empty = TABLE.slice(0, 0)
    never = arrow_function("x: int")(no_state)
    assert each(never, "x: int", table=empty).num_rows == 0
    assert mapped(never, "x: int", table=empty).schema == pa.schema({"x": pa.int32()})
    assert kept(arrow_filter(no_state), empty) == []


@pytest.mark.parametrize(
    ("mask", "left"), [([True, False, None, True], [1, 4]), ([None] * 4, []), ([True] * 4, [1, 2, 3, 4])]
)
def test_null_in_a_mask_drops_the_tuple(mask: list[bool | None], left: list[int]) -> None:
    array = pa.array(mask, pa.bool_())
    assert kept(arrow_filter(lambda n: array)) == left
    assert kept(arrow_filter(lambda batch: pa.chunked_array([array])), whole=True) == left


def given_back(result: Any, output: str = "x: bigint", flat: bool = False) -> ArrowFunction:
    return arrow_function(output, flat)(lambda *columns: result)


THREE = "x: bigint, y: bigint, z: bigint"
NOT_THIS: list[tuple[Callable[[], Any], str]] = [
    (lambda: each(given_back(pa.array([1, 2])), "x: bigint"),
     "<lambda> returned 2 values for 4 tuples; it must return one per tuple, in order, or be declared with flat=True"),
    (lambda: each(given_back(pa.array(["a"] * 4)), "x: bigint"),
     "<lambda> returned string for field 'x', which is declared bigint (int64)"),
    (lambda: each(given_back(pa.array([1 << 40] * 4)), "x: int"),
     "<lambda> returned int64 for field 'x', which is declared int (int32): 1099511627776 (no int is exactly this number; "),
    (lambda: each(given_back([1, 2, 3, 4]), "x: bigint"),
     "<lambda> returned list for field 'x', which is declared bigint (int64); it must return a pyarrow.Array"),
    (lambda: each(given_back(None), "x: bigint"), "<lambda> returned NoneType for field 'x'"),
    (lambda: each(given_back((NUMBERS,), "x: bigint, y: bigint"), "x: bigint, y: bigint"),
     "<lambda> returned 1 column for the 2 output fields ['x', 'y']"),
    (lambda: each(given_back((NUMBERS, NUMBERS)), "x: bigint"), "returned 2 columns for the 1 output field ['x']"),
    (lambda: each(given_back(NUMBERS, flat=True), "x: bigint"),
     "<lambda> returned an array of int64; with flat=True it must return a list array with a list per tuple, or (parents, "
     "columns)"),
    (lambda: each(given_back(LISTS.slice(1), flat=True), "x: bigint"),
     "<lambda> returned 3 lists for 4 tuples; it must return one per tuple, in order"),
    (lambda: each(given_back((pa.array([4]), pa.array([1])), flat=True), "x: bigint"),
     "<lambda> returned parents from 4 to 4 for 4 tuples; they count from 0 to 3"),
    (lambda: each(given_back((pa.array([-1]), pa.array([1])), flat=True), "x: bigint"), "parents from -1 to -1"),
    (lambda: each(given_back((pa.array([1, 2]), pa.array([1])), flat=True), "x: bigint"),
     "<lambda> returned 2 parents for 1 rows; it must return one per row"),
    (lambda: each(given_back((pa.array([1.0]), pa.array([1])), flat=True), "x: bigint"),
     "<lambda> returned an array of double as parents; they must be whole numbers without nulls"),
    (lambda: each(given_back(([1], pa.array([1])), flat=True), "x: bigint"),
     "<lambda> returned list as parents; they must be an array of whole numbers"),
    (lambda: mapped(given_back((NUMBERS, pa.array([1]), NUMBERS), THREE), THREE), "returned 1 values for 4 tuples"),
    (lambda: mapped(given_back((NUMBERS, pa.array([1]), NUMBERS), THREE, flat=True), THREE, flat=True),
     "<lambda> returned columns of different lengths: [4, 1, 4]"),
    (lambda: kept(arrow_filter(lambda n: pa.array([True]))),
     "<lambda> returned 1 values for 4 tuples; a filter must return one per tuple"),
    (lambda: kept(arrow_filter(lambda n: n)),
     "<lambda> returned an array of int32; a filter must return a boolean array with a value per tuple"),
    (lambda: kept(arrow_filter(lambda n: True)), "<lambda> returned bool; a filter must return a boolean array"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "error"), NOT_THIS, ids=[error[:60] for _, error in NOT_THIS])
def test_a_wrong_result_is_named_and_not_tried_again(run: Callable[[], Any], error: str) -> None:
    with pytest.raises(StepFailed) as raised:
        run()
    assert error in raised.value.failure.cause
    assert raised.value.failure.step in ("e", "m", "f")
    assert raised.value.failure.retry is False


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.each("line", length, "a, b"), "length emits 1 values (int), but 2 output fields are named"),
        (lambda s: s.each("line", length, "n"), "cannot add field 'n'"),
        (lambda s: s.each(length, "x"), "length works on Arrow arrays and needs input fields"),
        (lambda s: s.map(words), "map takes a vectorised function with flat=False, but words has flat=True"),
        (
            lambda s: s.flat_map(length),
            "flat_map takes a vectorised function with flat=True, but length has flat=False",
        ),
        (lambda s: s.each("n", odd, "x: int"), "got the vectorised filter odd, which does not belong here"),
        (lambda s: s.filter("line", length), "got the vectorised function length, which does not belong here"),
        (lambda s: s.filter([], odd), "odd works on Arrow arrays and needs input fields"),
        (lambda s: s.peek(length), "got the vectorised function length"),
        (
            lambda s: arrow_function("x")(no_state),
            "each with its type, got 'x'; write @arrow_function(\"length: int\")",
        ),
        (
            lambda s: arrow_function(no_state),  # type: ignore[arg-type]
            "arrow_function takes the fields that the function gives",
        ),
        (lambda s: arrow_function("x: int")(int), "arrow_function decorates a function, got <class 'int'>"),
        (lambda s: arrow_filter(1), "arrow_filter decorates a function, got 1"),  # type: ignore[arg-type]
        (
            lambda s: s.each("n", ArrowFunction(), "x: int"),
            "ArrowFunction does not say what it gives: set its attribute",
        ),
    ],
)
def test_a_wrong_use_is_refused_at_the_call(call: Callable[[Stream], Any], error: str) -> None:
    with pytest.raises(TopologyError) as raised:
        call(stream_of(TridentTopology("t")))
    assert error in str(raised.value)


class Picky(ArrowFunction):
    """Raises for a batch that has any of the bad values; remembers how many rows it was given each time."""

    output = Fields("tenfold: bigint")

    def __init__(self, bad: set[int], error: type[Exception] = ValueError) -> None:
        self.bad, self.error = bad, error
        self.sizes: list[int] = []

    def apply(self, *columns: pa.Array) -> pa.Array:
        self.sizes.append(len(columns[0]))
        if self.bad & set(columns[0].to_pylist()):
            raise self.error("not this one")
        return pc.multiply(columns[0].cast(pa.int64()), 10)


class PickyFlat(Picky):
    flat = True

    def apply(self, *columns: pa.Array) -> Any:
        return pa.array(range(len(columns[0]))), super().apply(*columns)


MANY = pa.table({"line": pa.nulls(100, pa.string()), "n": pa.array(range(100), pa.int32())})


def test_the_tuple_to_blame_is_found() -> None:
    picky = Picky({37, 90})
    with pytest.raises(StepFailed) as raised:
        each(picky, "tenfold: bigint", table=MANY)
    assert (raised.value.failure.row, raised.value.failure.retry) == ("[n=37]", True)
    assert "ValueError: not this one" in raised.value.failure.cause
    assert len(picky.sizes) < 20


@given(st.sets(st.integers(0, 99), max_size=6))
def test_bad_tuples_are_put_aside_and_the_others_stay_in_order(bad: set[int]) -> None:
    on_error = TupleErrors(capture=True)
    result = each(Picky(bad), "tenfold: bigint", on_error, MANY)
    good = [n for n in range(100) if n not in bad]
    assert result["n"].to_pylist() == good
    assert result["tenfold"].to_pylist() == [n * 10 for n in good]
    assert [failure.row for failure in on_error.captured] == [f"[n={n}]" for n in sorted(bad)]


def test_a_flat_function_and_a_filter_put_aside_as_well() -> None:
    on_error = TupleErrors(capture=True)
    assert each(PickyFlat({3, 4}), "tenfold: bigint", on_error, MANY)["n"].to_pylist() == [
        n for n in range(100) if n not in (3, 4)
    ]

    class Sieve(ArrowFilter):
        def mask(self, *columns: Any) -> Any:
            return pc.greater(Picky({98}).apply(*columns), 960)

    node = FilterNode("f", ("in",), IN, Fields("n: int"), Sieve())
    left = apply_step(Step("f", ("in",), node, ("n",)), MANY, on_error, no_state)
    assert left["n"].to_pylist() == [97, 99]
    assert [failure.row for failure in on_error.captured] == ["[n=3]", "[n=4]", "[n=98]"]


def test_a_function_that_asks_for_a_replay_gets_it_at_once() -> None:
    picky = Picky({37}, FailedException)
    with pytest.raises(StepFailed) as raised:
        each(picky, "tenfold: bigint", TupleErrors(capture=True), MANY)
    assert (picky.sizes, raised.value.failure.row) == ([100], None)


def test_a_bad_tuple_in_a_topology(engine: str, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    kept_rows = keep(stream_of(topology, *((str(n), n) for n in range(8))).each("n", Picky({5})).project("tenfold"))
    with pytest.raises(BatchFailedError, match=r"step 'in/Picky' on tuple \[n=5\]: ValueError: not this one"):
        run_all(topology, engine, max_batch_attempts=1)
    run_all(topology, engine, max_batch_attempts=1, on_poison="dead_letter", dead_letter_dir=str(tmp_path))
    assert kept_rows.rows == [(n * 10,) for n in (0, 1, 2, 3, 4, 6, 7)]
    (letter,) = [json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text().splitlines()]
    assert (letter["step"], letter["tuple"]) == ("in/Picky", "[n=5]")


class Prepared(ArrowFunction):
    output = Fields("engine: string")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, conf: Mapping[str, Any], context: TridentOperationContext) -> None:
        self.engine = conf["engine"]
        touch(self.folder / "prepared")

    def cleanup(self) -> None:
        touch(self.folder / "cleaned")

    def apply(self, *columns: pa.Array) -> pa.Array:
        return pa.array([self.engine] * len(columns[0]))


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    for name in ("prepared", "cleaned"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_vectorised_function_is_prepared_once_and_ended(counters: Path) -> None:
    topology = TridentTopology("t")
    rows = keep(stream_of(topology).each("n", Prepared(counters)).project("engine"))
    with start(topology, "in_process") as running:
        running.process_all_available()
        assert touch(counters / "cleaned") == 0
    assert rows.rows == [("in_process",)] * 4
    assert (touch(counters / "prepared"), touch(counters / "cleaned")) == (1, 2)
