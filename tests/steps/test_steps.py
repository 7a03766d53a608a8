"""What the Arrow kernels of the built-ins and plain functions give is what their Python code gives, row by row."""

import datetime as dt
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from tests.harness.topology_runs import keep, run_all
from trident import Fields, TopologyError, TridentCollector, TridentTopology, TridentTuple
from trident.arrow import arrow_type
from trident.graph import Aggregation, EachNode, FilterNode
from trident.operations import CombinerAggregator, Count, FilterNull, Max, Min, Split, Sum
from trident.operations.adapters import PlainFunction
from trident.plan import Step
from trident.steps.aggregates import merge_partials, partial
from trident.steps.applying import apply_step
from trident.steps.failures import Bounds, StepFailed, TupleErrors
from trident.steps.key_columns import partition_of, partitions_of
from trident.steps.rows import as_values

TEXTS = st.one_of(st.none(), st.text(alphabet=st.sampled_from(" ab,;é日🐍\n"), max_size=12), st.text(max_size=6))
WIDTHS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def no_state(name: str) -> Any:
    raise AssertionError(name)


@st.composite
def chunked(draw: st.DrawFn, values: st.SearchStrategy[Any], type_: Any) -> Any:
    """Draw a column: any number of chunks, each maybe a slice out of the middle of a longer array."""
    chunks = []
    for rows in draw(st.lists(st.lists(values, max_size=6), max_size=4)):
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        padding = rows[:1] or [None]
        whole = pa.array([*padding * before, *rows, *padding * after], type_)
        chunks.append(whole.slice(before, len(rows)))
    return pa.chunked_array(chunks, type_)


def row_by_row(operation: Any) -> Any:
    """Return the operation as a subclass of its own class: kernels are for the very class."""
    kind = type(operation)
    copy = type(f"Own{kind.__name__}", (kind,), {})()
    copy.__dict__.update(operation.__dict__)
    return copy


def each(table: pa.Table, function: Any, keep: tuple[str, ...] = ("line", "n", "word")) -> pa.Table:
    node = EachNode("e", ("s",), Fields("line: string, n: bigint, word: string"), Fields("line: string"), function,
                    Fields("word: string"))  # fmt: skip
    return apply_step(Step("e", ("s",), node, keep), table, TupleErrors(), no_state)


@given(chunked(TEXTS, pa.string()), st.sampled_from([" ", ",", "ab", "é", "\n", "🐍"]))
@example(pa.chunked_array([], pa.string()), " ")
@example(pa.chunked_array([[None, "", " ", "  a  ", "a"]]), " ")
def test_split_is_split(lines: Any, separator: str) -> None:
    table = pa.table({"line": lines, "n": pa.array(range(len(lines)), pa.int64())})
    native, python = each(table, Split(separator)), each(table, row_by_row(Split(separator)))
    assert native.to_pylist() == python.to_pylist()
    assert native.schema == python.schema


@given(chunked(TEXTS, pa.string()))
def test_split_drops_the_columns_that_nobody_reads(lines: Any) -> None:
    table = pa.table({"line": lines, "n": pa.array(range(len(lines)), pa.int64())})
    whole = each(table, Split())
    assert each(table, Split(), ("word",)) == whole.select(["word"])
    assert each(table, Split(), ("n",)) == whole.select(["n"])
    assert each(table, Split(), ()).num_rows == each(table, row_by_row(Split()), ()).num_rows == whole.num_rows


class Shout(Split):
    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit([tuple[0].upper()])


class Positive(FilterNull):
    def is_keep(self, tuple: TridentTuple) -> bool:
        return super().is_keep(tuple) and tuple[0] > 0


def test_what_a_subclass_of_a_builtin_says_counts() -> None:
    table = pa.table({"line": ["a b"], "n": [-1]})
    assert each(table, Shout())["word"].to_pylist() == ["A B"]
    node = FilterNode("f", ("s",), Fields("n: bigint"), Fields("n: bigint"), Positive())
    assert apply_step(Step("f", ("s",), node, ("n",)), table, TupleErrors(), no_state).num_rows == 0


def test_split_needs_a_separator() -> None:
    with pytest.raises(ValueError, match="Split needs a separator of at least one character"):
        Split("")


@given(st.data(), st.sampled_from([("a",), ("a", "b"), ()]))
def test_filter_null_is_filter_null(data: st.DataObject, names: tuple[str, ...]) -> None:
    first = data.draw(chunked(TEXTS, pa.string()))
    second = pa.array(data.draw(st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=len(first),
                                         max_size=len(first))), pa.int32())  # fmt: skip
    table = pa.table({"a": first, "b": second})
    fields = Fields("a: string, b: int")

    def kept(filter_: Any) -> list[dict[str, Any]]:
        node = FilterNode("f", ("s",), fields, fields.select(names), filter_)
        rows: list[dict[str, Any]] = apply_step(
            Step("f", ("s",), node, ("a", "b")), table, TupleErrors(), no_state
        ).to_pylist()
        return rows

    assert kept(FilterNull()) == kept(row_by_row(FilterNull()))


def whole_numbers(bits: int) -> st.SearchStrategy[int]:
    bound = 1 << (bits - 1)
    return st.one_of(st.integers(-3, 3), st.integers(-bound, bound - 1), st.sampled_from([-bound, bound - 1]))


# Sums of these are exact in any order, so both ways must agree to the last bit.
EXACT_FLOATS = st.integers(-(1 << 20), 1 << 20).map(lambda n: n / 16)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{ddl: whole_numbers(bits) for ddl, bits in WIDTHS.items()},
    "float": st.integers(-(1 << 10), 1 << 10).map(lambda n: n / 16),
    "double": EXACT_FLOATS,
    "decimal(9,2)": st.decimals(-9999999, 9999999, places=2),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10),
    "decimal(30,25)": st.decimals(-9999, 9999, places=25),
}
ORDERED: dict[str, st.SearchStrategy[Any]] = {
    **VALUES,
    "double": st.floats(),
    "string": st.text(max_size=5),
    "binary": st.binary(max_size=5),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
}  # fmt: skip
KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "é", "日本"]))


def sum_type(ddl: str) -> str:
    if ddl in WIDTHS:
        return "bigint"
    return "double" if ddl in ("float", "double") else "decimal(38," + ddl.rstrip(")").split(",")[1] + ")"


@st.composite
def keyed(draw: st.DrawFn, values: st.SearchStrategy[Any], type_: Any) -> pa.Table:
    column = draw(chunked(st.one_of(st.none(), values), type_))
    keys = pa.array(draw(st.lists(KEYS, min_size=len(column), max_size=len(column))), pa.string())
    return pa.table({"k": keys, "v": column})


def aggregated(aggregator: Any, out: str, parts: list[pa.Table], grouped: bool) -> Any:
    """Aggregate as a batch of several parts is: each in part, then all of them. Overflow is an answer as well."""
    group = Fields("k: string") if grouped else Fields()
    aggregation = Aggregation(Fields("v: string"), aggregator, Fields(f"out: {out}"), True, group)
    try:
        partials = [partial("a", aggregation, part, TupleErrors()) for part in parts]
        keys, values = merge_partials(aggregation, partials)
    except StepFailed as error:
        return error.failure.step
    assert len(set(keys)) == len(keys)
    return {key: "nan" if isinstance(value, float) and math.isnan(value) else value
            for key, value in zip(keys, values, strict=True)}  # fmt: skip


def agree(aggregator: Any, out: str, table: pa.Table, cut: int, grouped: bool) -> None:
    at = min(cut, table.num_rows)
    parts = [table.slice(0, at), table.slice(at)]
    native = aggregated(aggregator, out, parts, grouped)
    assert native == aggregated(row_by_row(aggregator), out, parts, grouped)


CUTS = st.integers(0, 12)


@given(keyed(st.integers(0, 1), pa.int64()), CUTS, st.booleans())
def test_count_is_count(table: pa.Table, cut: int, grouped: bool) -> None:
    agree(Count(), "bigint", table, cut, grouped)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("ddl", VALUES)
@settings(max_examples=30)
@given(data=st.data(), cut=CUTS, grouped=st.booleans())
def test_sum_is_sum(ddl: str, data: st.DataObject, cut: int, grouped: bool) -> None:
    agree(Sum(), sum_type(ddl), data.draw(keyed(VALUES[ddl], arrow_type(ddl))), cut, grouped)


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize("aggregator", [Min(), Max()], ids=["min", "max"])
@pytest.mark.parametrize("ddl", ORDERED)
@settings(max_examples=30)
@given(data=st.data(), cut=CUTS, grouped=st.booleans())
def test_min_and_max_are_min_and_max(
    ddl: str, aggregator: CombinerAggregator[Any], data: st.DataObject, cut: int, grouped: bool
) -> None:
    agree(aggregator, ddl, data.draw(keyed(ORDERED[ddl], arrow_type(ddl))), cut, grouped)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(("ddl", "value"), [("bigint", 2**62), ("decimal(38,2)", Decimal("9" * 36 + ".99"))])
def test_a_sum_that_is_too_large_fails_the_batch_instead_of_wrapping_around(
    ddl: str, value: Any, grouped: bool
) -> None:
    type_ = arrow_type(ddl)
    table = pa.table({"k": ["a"] * 3, "v": pa.array([value] * 3, type_)})
    group = Fields("k: string") if grouped else Fields()
    aggregation = Aggregation(Fields(f"v: {ddl}"), Sum(), Fields(f"out: {ddl}"), True, group)
    with pytest.raises(StepFailed) as caught:
        partial("a", aggregation, table, TupleErrors())
    assert caught.value.failure.cause.startswith(f"field 'out' is declared {ddl}, but got ")
    assert not caught.value.failure.retry
    parts = [partial("a", aggregation, table.slice(at, 1), TupleErrors()) for at in range(3)]
    assert merge_partials(aggregation, parts)[1] == [Sum().combine(value, Sum().combine(value, value))]


@pytest.mark.parametrize("grouped", [True, False])
def test_a_sum_of_nothing_but_nulls_is_zero_at_any_scale(grouped: bool) -> None:
    for ddl in ("bigint", "double", "decimal(38,2)", "decimal(38,30)"):
        table = pa.table({"k": ["a"], "v": pa.array([None], arrow_type(ddl))})
        assert list(aggregated(Sum(), ddl, [table], grouped).values()) == [0]


def test_a_sum_of_decimals_and_floats_is_a_float() -> None:
    assert Sum().combine(Decimal("0.5"), 0.25) == Sum().combine(0.25, Decimal("0.5")) == 0.75


def test_the_partition_of_a_key_is_the_same_in_every_release() -> None:
    keys = [("the",), ("the", 1), (b"\0",), (None,), (2.5,), (dt.date(2024, 1, 1),), (dt.datetime(2024, 1, 1),), ()]
    assert [partition_of(key, 1000) for key in keys] == [131, 401, 28, 800, 123, 578, 967, 310]
    assert {partition_of(key, 1) for key in keys} == {0}


def test_positions_by_partition_cover_every_key_once() -> None:
    keys = [(f"k{n}",) for n in range(100)]
    places = partitions_of(keys, 3)
    assert list(places) == [0, 1, 2]
    assert sorted(at for ats in places.values() for at in ats) == list(range(100))
    assert (partitions_of([], 3), partitions_of([], 1), partitions_of(keys[:2], 1)) == ({}, {}, {0: [0, 1]})


INPUTS = Fields("n: int")
WORD, PAIR = Fields("word: string"), Fields("word: string, times: int")
BAD = ValueError("bad")  # in a script: raise it

EMITTED = st.sampled_from(["a", "", None, 7, ("a",), ("a", 1), ("b", None), ("b", "x"), (), ["a"], BAD])
SCRIPTS = st.lists(st.lists(EMITTED | st.just("a") | st.just(("a", 1)), max_size=3), max_size=5)


class OneByOne:
    """The same function, whose emissions a collector takes one by one."""

    def __init__(self, function: PlainFunction) -> None:
        self.function = function

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        emitted = self.function(tuple)
        for values in emitted if self.function.yields else (emitted,):
            collector.emit(as_values(values))


def outcome_of(function: Any, rows: int, outputs: Fields, keep: tuple[str, ...], capture: bool) -> Any:
    """What comes of it: the rows, or the failure; and what was put left_out."""
    node = EachNode("e", ("s",), INPUTS.concat(outputs), INPUTS, function, outputs)
    on_error = TupleErrors(capture)
    try:
        table = apply_step(
            Step("e", ("s",), node, keep), pa.table({"n": pa.array(range(rows), pa.int32())}), on_error, repr
        )
    except StepFailed as error:
        failure = error.failure
        return (failure.step, failure.row, failure.cause, failure.retry), None
    left_out = [(one.row, one.cause) for one in on_error.captured]
    return (table.num_rows, table.schema, table.to_pylist()), left_out


def acting(script: list[list[Any]], yields: bool) -> Any:
    def generator(n: int) -> Iterator[Any]:
        for one in script[n]:
            if one is BAD:
                raise BAD
            yield one

    def function(n: int) -> Any:
        if BAD in script[n]:
            raise BAD
        return script[n][0] if script[n] else None

    return generator if yields else function


@given(SCRIPTS, st.booleans(), st.booleans(), st.sampled_from([WORD, PAIR]), st.booleans(), st.integers(0, 3))
def test_a_plain_function_gives_what_it_gives_one_by_one(
    script: list[list[Any]], yields: bool, spread: bool, outputs: Fields, capture: bool, kept: int
) -> None:
    act = acting(script, yields)
    keep = tuple(("n", *outputs.names)[:kept])
    if spread:
        plain = PlainFunction(act, spread=True)
    elif yields:

        def whole_rows(row: TridentTuple) -> Iterator[Any]:
            yield from act(row["n"])

        plain = PlainFunction(whole_rows, spread=False)
    else:
        plain = PlainFunction(lambda row: act(row["n"]), spread=False)
    quick = outcome_of(plain, len(script), outputs, keep, capture)
    assert quick == outcome_of(OneByOne(plain), len(script), outputs, keep, capture)


def test_what_was_emitted_before_an_exception_is_to_blame_first() -> None:
    plain = PlainFunction(acting([["a"], [("a", 1)], [BAD]], yields=True), spread=True)
    (step, row, cause, retry), _ = outcome_of(plain, 3, WORD, ("word",), capture=False)
    assert (step, row, retry) == ("e", "[n=1]", False)
    assert "emitted 2 values ('a', 1) for the 1 output field" in cause


def test_a_tuple_that_raises_leaves_nothing_of_itself_behind() -> None:
    plain = PlainFunction(acting([["a"], ["b", "c", BAD], ["d"]], yields=True), spread=True)
    (count, _, rows), left_out = outcome_of(plain, 3, WORD, ("n", "word"), capture=True)
    assert (count, rows) == (2, [{"n": 0, "word": "a"}, {"n": 2, "word": "d"}])
    assert [row for row, _ in left_out] == ["[n=1]"]


@pytest.mark.parametrize("yields", [True, False])
def test_a_function_without_inputs_is_called_once_a_row(yields: bool) -> None:
    def words() -> Iterator[str]:
        yield "a"
        yield "b"

    node = EachNode("e", ("s",), WORD, Fields(), PlainFunction(words if yields else lambda: "a", spread=True), WORD)
    table = apply_step(Step("e", ("s",), node, ("word",)), pa.table({"n": [1, 2]}), TupleErrors(), repr)
    assert table.column("word").to_pylist() == (["a", "b"] * 2 if yields else ["a"] * 2)


def test_no_more_is_taken_of_a_generator_than_the_step_may_give() -> None:
    taken = []

    def endless(n: int) -> Iterator[str]:
        while True:
            taken.append(n)
            yield "a"

    node = EachNode("e", ("s",), INPUTS.concat(WORD), INPUTS, PlainFunction(endless, spread=True), WORD)
    on_error = TupleErrors(bounds=Bounds(per_tuple=1_000_000, per_step=100))
    with pytest.raises(StepFailed, match="the step makes 101 rows or more of the 1 of one partition"):
        apply_step(Step("e", ("s",), node, ("word",)), pa.table({"n": pa.array([0], pa.int32())}), on_error, repr)
    assert len(taken) == 101


@pytest.mark.parametrize("hint", [Iterator, Iterable, list], ids=str)
def test_a_hint_may_leave_open_what_is_in_the_collection(hint: Any) -> None:
    def words(line: str) -> Any:
        yield from line.split()

    words.__annotations__["return"] = hint
    topology = TridentTopology("hints")
    stream = topology.new_stream("s", FixedBatchSpout("line: string", 1, ("the cow",)))
    rows = keep(stream.each("line", words, "word: string").project("word"))
    run_all(topology, "in_process")
    assert rows.rows == [("the",), ("cow",)]
    with pytest.raises(TopologyError, match="word"):
        stream.each("line", words, "word")
