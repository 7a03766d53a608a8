"""Several aggregates in one value: kernels, Python code and a plain fold agree; replays change nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.functions import expr

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.memory.state import _kept
from tests.harness.topology_runs import RowsSpout, keep, run_all, start
from trident import BatchFailedError, FailedException, Fields, TopologyError, TridentTopology, TridentTuple
from trident.arrow import arrow_type
from trident.graph import Aggregation
from trident.operations import (
    ArgMax,
    ArgMin,
    Avg,
    Collect,
    CombinerAggregator,
    Count,
    CountDistinct,
    Last,
    MapGet,
    Max,
    Min,
    StdDev,
    Sum,
    TopN,
    TumblingCountWindow,
)
from trident.operations.adapters import aggregate_type
from trident.operations.several import several, value_of
from trident.steps.aggregates import is_native, merge_partials, partial
from trident.steps.failures import TupleErrors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = Fields("k: string, n: bigint, d: double, w: string")
PLAIN = {
    "rows": Count(),
    "sum": Sum("n"),
    "sums": Sum("d"),
    "least": Min("n"),
    "most": Max("d"),
    "mean": Avg("n"),
    "means": Avg("d"),
}
ALL = {
    **PLAIN,
    "sd": StdDev("d"),
    "best": ArgMax("w", by="n"),
    "worst": ArgMin("w", by="n"),
    "words": CountDistinct("w"),
    "top": TopN(2, "n"),
    "tops": TopN(2, "w", by="n"),
    "all": Collect("w", most=3),
    "last": ("w, n", Last(by="n")),
}
ROWS = st.tuples(
    st.sampled_from("ab"),
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from([-1.5, 0.0, -0.0, 0.25, 2.0, math.nan]),
    st.none() | st.sampled_from(["", "x", "y", "ß"]),
)


class Plain(Sum):
    """Has no kernel."""


def aggregated(given_: dict[str, Any], tables: Sequence[pa.Table], grouped: bool) -> dict[Any, dict[str, Any]]:
    """Aggregate the tables of a batch as tasks do, and merge them as the driver does."""
    made = several(given_, FIELDS, "s", aggregate_type)
    group = FIELDS.select(["k"]) if grouped else Fields()
    aggregation = Aggregation(FIELDS, made, value_of(made, "out"), True, group)
    keys, values = merge_partials(aggregation, [partial("a", aggregation, one, TupleErrors()) for one in tables])
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values, strict=True))


def table(rows: Sequence[Any]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[], [], [], []]
    types = [pa.string(), pa.int64(), pa.float64(), pa.string()]
    return pa.table(
        [pa.array(list(column), type_) for column, type_ in zip(columns, types, strict=True)], list(FIELDS.names)
    )


def alike(one: Any, other: Any) -> bool:
    """Compare values; a NaN equals itself, and sums of floats in another order may differ in the last bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other) and type(one) is type(other)


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=12), cut=st.integers(0, 12), grouped=st.booleans())
def test_kernels_give_what_the_python_code_gives(rows: list[Any], cut: int, grouped: bool) -> None:
    parts = [table(rows[:cut]), table(rows[cut:])]
    slow = {**PLAIN, "unused": Plain("n")}
    assert is_native(several(PLAIN, FIELDS, "s", aggregate_type))
    assert not is_native(several(slow, FIELDS, "s", aggregate_type))
    native, python = aggregated(PLAIN, parts, grouped), aggregated(slow, parts, grouped)
    for value in python.values():
        value.pop("unused")
    assert native.keys() == python.keys()
    for key, value in native.items():
        assert alike(value, python[key]), (key, value, python[key])


@given(rows=st.lists(ROWS, min_size=1, max_size=12), cut=st.integers(0, 12))
def test_each_result_is_that_of_a_fold(rows: list[Any], cut: int) -> None:
    found = aggregated(ALL, [table(rows[:cut]), table(rows[cut:])], grouped=False)[()]
    numbers = [n for _, n, _, _ in rows if n is not None]
    words = [w for *_, w in rows if w is not None]
    reals = [d for _, _, d, _ in rows if d is not None]
    ranked = [(n, w) for _, n, _, w in rows if n is not None]
    assert found["rows"] == len(rows)
    assert found["sum"] == sum(numbers)
    assert found["mean"] == (sum(numbers) / len(numbers) if numbers else None)
    assert found["words"] == len(set(words))
    assert found["all"] == words[:3]
    assert found["top"] == sorted(numbers, reverse=True)[:2]
    assert found["tops"] == [w for _, w in sorted(ranked, key=lambda row: -row[0])[:2]]
    assert found["best"] == next((w for n, w in reversed(ranked) if n == max(numbers)), None)
    assert found["worst"] == next((w for n, w in ranked if n == min(numbers)), None)
    if len(reals) > 1:
        assert alike(found["sd"], statistics.stdev(reals) if not any(map(math.isnan, reals)) else math.nan)
    else:
        assert found["sd"] is None


ORDERS = [
    ("oslo", 3, 1.0, "a"),
    ("rome", 5, 2.0, "b"),
    ("oslo", 4, 4.0, "c"),
    ("oslo", None, None, "a"),
    ("rome", 5, 0.5, None),
]


@pytest.mark.parametrize("size", [1, 3])
def test_a_state_keeps_them_over_all_batches_and_gives_each_result_as_a_field(engine: str, size: int) -> None:
    topology = TridentTopology("t")
    orders = topology.new_stream("orders", FixedBatchSpout("k: string, n: bigint, d: double, w: string", size, *ORDERS))
    sales = orders.group_by("k").persistent_aggregate(MemoryMapState(), ALL, state_name="sales")
    new = sales.new_values_stream()
    assert new.fields.names == ("k", *ALL)
    assert new.fields.types[1:] == (
        "bigint", "bigint", "double", "bigint", "double", "double", "double", "double", "string", "string", "bigint",
        "array<bigint>", "array<string>", "array<string>", "struct<w:string,n:bigint>",
    )  # fmt: skip
    seen = keep(new)
    asked = keep(
        new.select("k", "rows")
        .state_query(sales, "k", MapGet(), "mean, best", sees="this_batch")
        .project("mean", "best"),
        "asked",
    )
    found = run_all(topology, engine).state(sales).multi_get(["oslo", "rome"])
    oslo = found[0]
    assert (oslo["rows"], oslo["sum"], oslo["mean"], oslo["mean_sum"], oslo["mean_count"]) == (3, 7, 3.5, 7, 2)
    assert (oslo["words"], oslo["words_values"], oslo["all"], oslo["top"], oslo["best"]) == (
        2,
        ["a", "c"],
        ["a", "c", "a"],
        [4, 3],
        "c",
    )
    assert found[1]["last"] == {"w": None, "n": 5}
    last = {row[0]: row for row in seen.rows}
    assert last["oslo"][1:3] == (3, 7)
    assert asked.rows[-1] in [(3.5, "c"), (5.0, None)]


def test_numbers_of_many_keys_in_memory_are_arrays_and_the_same_after_a_replay() -> None:
    topology = TridentTopology("t")
    rows = {
        txid: [(f"k{at % 40}", None if at == 7 else at * txid, at / 4, "x") for at in range(100)] for txid in (1, 2, 3)
    }
    memory = MemoryMapState()
    sales = (
        topology.new_stream("orders", RowsSpout("k: string, n: bigint, d: double, w: string", rows))
        .group_by("k")
        .persistent_aggregate(memory, PLAIN, state_name="sales")
    )
    seen, failed = keep(sales.new_values_stream()), list[int]()

    def fail(point: str, attempt: Any) -> None:
        if point == "committed" and attempt.txid not in failed:
            failed.append(attempt.txid)
            raise FailedException("once, after the states")

    with start(topology, "in_process", fail) as running:
        running.process_all_available()
        keys = [f"k{at}" for at in range(40)]
        found = dict(zip(keys, running.state("sales").multi_get(keys), strict=True))
    (data,) = (data for (owner, _), kept in _kept.items() if owner == memory.id for data in kept.values())
    assert (data.values.columns is not None, len(data), failed) == (True, 40, [1, 2, 3])
    everything = [table(rows[txid]) for txid in (1, 2, 3)]
    expected = aggregated({**PLAIN, "unused": Plain("n")}, everything, grouped=True)
    for key, value in found.items():
        del expected[key,]["unused"]
        assert alike(value, expected[key,]), key
    last = {row[0]: row[1:] for row in seen.rows}
    assert last["k3"] == tuple(found["k3"][name] for name in PLAIN)


def test_an_aggregate_of_several_fields_stands_alone_under_its_name() -> None:
    topology = TridentTopology("t")
    orders = topology.new_stream("orders", FixedBatchSpout("k: string, n: bigint", 2, ("a", 1), ("a", 2)))
    means = orders.group_by("k").persistent_aggregate(MemoryMapState(), "n", Avg("n"), "mean")
    seen = keep(means.new_values_stream())
    found = run_all(topology, "in_process").state(means).multi_get(["a"])[0]
    assert (means.state_name, found) == ("mean", {"mean": 1.5, "mean_sum": 3, "mean_count": 2})
    assert seen.rows == [("a", 1.5)]


def test_means_of_decimals_are_exact_however_a_stream_is_cut() -> None:
    fields = Fields("n: decimal(10,2)")
    made = several({"mean": Avg("n")}, fields, "s", aggregate_type)
    assert made.parts[0].outputs.types == ("decimal(38,6)", "decimal(38,2)", "bigint")
    rows = [Decimal("0.01"), Decimal("0.02"), Decimal("0.02")]
    values = [made.init(TridentTuple(fields, (one,))) for one in rows]
    left = made.combine(made.combine(values[0], values[1]), values[2])
    assert left == made.combine(values[0], made.combine(values[1], values[2]))
    assert left["mean"] == Decimal("0.016667")


@pytest.mark.parametrize("odd", [[math.inf], [-math.inf, 1.0], [math.nan], [1e308, -1.7e308]])
def test_a_deviation_of_what_has_none_is_nan_however_a_stream_is_cut(odd: list[float]) -> None:
    deviation = StdDev("d")
    values = [0.0, 5.5, *odd, 2.0, 1.0]
    parts = [deviation.init(TridentTuple(Fields("d"), (value,))) for value in values]
    for cut in range(1, len(parts)):
        left, right = (reduce(deviation.combine, some) for some in (parts[:cut], parts[cut:]))
        found = deviation.combine(left, right)
        assert math.isnan(found[0])
        assert found[1] == len(values)
        assert math.isnan(deviation.combine(found, parts[0])[0])


def test_a_sketch_counts_many_values_in_bounded_bytes() -> None:
    made = several({"n": CountDistinct("k", approximate=True)}, FIELDS, "s", aggregate_type)
    value, merged = made.zero(), made.zero()
    for number in range(3_000):
        one = made.init(TridentTuple(FIELDS.select(["k"]), (f"user {number % 1_500}",)))
        value = made.combine(value, one)
        if number % 100 == 99:  # in parts, as batches are
            merged, value = made.combine(merged, value), made.zero()
    assert abs(merged["n"] - 1_500) < 1_500 * 0.05
    assert len(merged["n_sketch"]) < 2_200
    few = made.combine(
        made.init(TridentTuple(FIELDS.select(["k"]), ("a",))), made.init(TridentTuple(FIELDS.select(["k"]), ("b",)))
    )
    assert few["n"] == 2


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([Decimal("1" * 38), Decimal("1" * 37 + "2")], 2),  # Python rounds to 28 digits where it is not told otherwise
        ([Decimal("1.50"), Decimal("1.5")], 1),
        (["", "a"], 2),
        (["", ""], 1),
        (["", "nan"], 2),
        ([b"", b"a"], 2),
        (["a", "a\0"], 2),
        ([0, 1], 2),
        ([datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))], 1),
        ([datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))], 1),
    ],
)
def test_a_sketch_takes_equal_values_for_one_and_others_for_two(values: list[Any], count: int) -> None:
    sketch = CountDistinct("v", approximate=True)
    one, other = (sketch.init(TridentTuple(Fields("v"), (value,))) for value in values)
    assert sketch.combine(one, other)[0] == count


def test_more_distinct_values_than_are_remembered_fail_the_batch() -> None:
    topology = TridentTopology("t")
    orders = topology.new_stream("orders", FixedBatchSpout("n: bigint", 3, (1,), (2,), (3,)))
    orders.persistent_aggregate(MemoryMapState(), {"n": CountDistinct("n", most=2)})
    with pytest.raises(
        Exception, match="has met 3 values of one key and remembers 2; count them with approximate=True"
    ):
        run_all(topology, "in_process", max_batch_attempts=1)


class Longest(CombinerAggregator[str]):
    """A combiner of a user's."""

    output_types = ("string",)

    def init(self, tuple: Any) -> str:
        return str(tuple[0])

    def combine(self, val1: str, val2: str) -> str:
        return max(val1, val2, key=len)

    def zero(self) -> None:
        """There is none."""


def test_combiners_of_users_are_among_them() -> None:
    topology = TridentTopology("t")
    orders = topology.new_stream("orders", FixedBatchSpout("w: string", 2, ("a",), ("abc",), ("ab",)))
    state = orders.persistent_aggregate(MemoryMapState(), {"longest": ("w", Longest()), "n": Count()}, "words")
    assert run_all(topology, "in_process").state(state).get() == {"longest": "abc", "n": 3}


@pytest.mark.parametrize("key", ["n_sum", "n_max", "count_all", "out", "aggregates", "k0", "v0"])
@pytest.mark.parametrize("group", [lambda s, *args: s.aggregate(*args), lambda s, *args: s.tumbling_window(2, *args)])
def test_a_key_may_be_called_as_arrow_and_kernels_call_columns(key: str, group: Any) -> None:
    given_: Any
    for given_, value in (({"x": Sum("n"), "y": Count(), "z": Avg("n")}, (3, 2, 1.5)), (("n", Sum(), "s"), (3,)),
                          ((Count(), "s"), (2,)), (("n", Last(), "s"), (2,)), (("n", Max(), "s"), (2,))):  # fmt: skip
        topology = TridentTopology("t")
        rows = topology.new_stream("s", RowsSpout(f"{key}: string, n: bigint", {1: [("a", 1), ("a", 2)]}))
        kept = keep(group(rows.group_by(key), *(given_ if isinstance(given_, tuple) else [given_])))
        run_all(topology, "in_process")
        assert kept.rows == [("a", *value)]


@pytest.mark.parametrize("declare", ["aggregate", "persistent_aggregate", "window"])
def test_an_aggregate_may_be_ordered_by_its_own_field(engine: str, declare: str) -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("s", RowsSpout("k: string, v: double", {1: [("a", 1.5), ("a", 2.5), ("a", None)]}))
    given_ = {"most": ArgMax("v", by="v"), "least": ArgMin("v", by="v"), "top": TopN(2, "v", by="v")}
    grouped: Any = rows.group_by("k")
    state = {"aggregate": (), "persistent_aggregate": (MemoryMapState(),), "window": (TumblingCountWindow.of(3),)}[
        declare
    ]
    made = getattr(grouped, declare)(*state, given_)
    kept = keep(made.new_values_stream() if declare == "persistent_aggregate" else made)
    run_all(topology, engine)
    assert kept.rows == [("a", 2.5, 1.5, [2.5, 1.5])]


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({}, "no aggregate is named; give them by name"),
        ({"n": Sum("m")}, "no field 'm' of stream 's'"),
        ({"n": Avg("k")}, "aggregate 'n': Avg needs a number, but field 'k' is string"),
        ({"n": Sum("k")}, "Sum needs a number, but field 'k' is string"),
        ({"n": Sum}, "several aggregates in one value are combiners"),
        ({"n": len}, "several aggregates in one value are combiners"),
        ({"n": Avg("n"), "n_sum": Count()}, "two of the aggregates have a field 'n_sum'"),
        ({"k": Count()}, None),
    ],
)
def test_bad_aggregates_are_named(given_: dict[str, Any], told: str | None) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout("k: string, n: bigint", 1))
    declare = stream.group_by("k").persistent_aggregate
    if told is None:  # its field is within the value
        assert declare(MemoryMapState(), given_, "v").state_name == "v"
        return
    with pytest.raises(TopologyError, match=told):
        declare(MemoryMapState(), given_)


@pytest.mark.parametrize("values", [0, -1, 1.5, True, "3", None])
@pytest.mark.parametrize(
    "make", [lambda n: TopN(n, "n"), lambda n: Collect("n", most=n), lambda n: CountDistinct("n", most=n)]
)
def test_how_many_values_are_kept_is_a_whole_number_of_one_or_more(make: Any, values: Any) -> None:
    with pytest.raises(ValueError, match="give a whole number of at least 1$"):
        make(values)


ORDERED = {
    "least": Min("d"),
    "most": Max("d"),
    "at_least": ArgMin("w", by="d"),
    "at_most": ArgMax("w", by="d"),
    "top": TopN(2, "d"),
}


@given(rows=st.lists(ROWS, min_size=1, max_size=12), cut=st.integers(0, 12), grouped=st.booleans())
def test_a_nan_is_greater_than_any_number_in_kernels_and_python(rows: list[Any], cut: int, grouped: bool) -> None:
    parts = [table(rows[:cut]), table(rows[cut:])]
    values: dict[Any, list[float]] = {}
    order = lambda value: (value != value, 0.0 if value != value else value)  # noqa: E731
    for row in rows:
        if row[2] is not None:
            values.setdefault((row[0],) if grouped else (), []).append(row[2])
    for made in (
        aggregated(ORDERED, parts, grouped),
        aggregated({"least": Min("d"), "most": Max("d")}, parts, grouped),
    ):
        for key, value in made.items():
            ordered = sorted(values.get(key, []), key=order)
            wanted = {"least": ordered[0], "most": ordered[-1]} if ordered else {"least": None, "most": None}
            assert alike({name: value[name] for name in wanted}, wanted), (key, value)
            if "top" in value:
                assert all(map(alike, value["top"], ordered[::-1][:2]))


@pytest.mark.parametrize("keys", [1, 40], ids=["a dict", "arrays"])
def test_a_stored_nan_stays_the_greatest(keys: int) -> None:
    batches = {1: [1.0], 2: [math.nan], 3: [2.0], 4: [-1.0]}
    topology = TridentTopology("t")
    spout = RowsSpout(
        "k: bigint, d: double", {txid: [(k, d) for k in range(keys) for d in ds] for txid, ds in batches.items()}
    )
    rows = topology.new_stream("s", spout).group_by("k")
    most = rows.persistent_aggregate(MemoryMapState.opaque(), "d", Max(), "most")
    least = rows.persistent_aggregate(MemoryMapState.opaque(), "d", Min(), "least")
    both = rows.persistent_aggregate(MemoryMapState.opaque(), {"most": Max("d"), "least": Min("d")}, "both")
    done = run_all(topology, "in_process")
    for value in done.state(both).multi_get(range(keys)):
        assert math.isnan(value["most"])
        assert value["least"] == -1.0
    assert all(map(math.isnan, done.state(most).multi_get(range(keys))))
    assert done.state(least).multi_get(range(keys)) == [-1.0] * keys


@given(
    values=st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63), 0]), min_size=1, max_size=40
    ),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_a_mean_of_whole_numbers_is_exact_beyond_64_bits(values: list[int], cuts: list[int]) -> None:
    bounds = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    tables = [table([("a", value, 0.0, "") for value in values[one:other]]) for one, other in pairwise(bounds)]
    found = aggregated({"mean": Avg("n"), "rows": Count()}, tables, grouped=True)[("a",)]
    assert found["mean"] == pytest.approx(sum(values) / len(values), rel=1e-15)
    assert (found["mean_sum"] - sum(values)) % 2**64 == 0
    assert -(2**63) <= found["mean_sum"] < 2**63


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 40], ids=["a dict", "arrays"])
def test_a_mean_of_large_numbers_goes_on_through_batches(keys: int, tmp_path: Path) -> None:
    large = 1_700_000_000_000_000_000
    batches = {txid: [(k, large + txid) for k in range(keys)] for txid in range(1, 9)}
    batches[5] = [(k, large + 5) for k in range(keys)] * 6  # beyond 64 bits within the batch
    for store in (MemoryMapState.opaque(), DeltaState.opaque(str(tmp_path / "state"))):
        topology = TridentTopology("t")
        rows = topology.new_stream("s", RowsSpout("k: bigint, n: bigint", batches)).group_by("k")
        state = rows.persistent_aggregate(store, {"mean": Avg("n"), "rows": Count()}, "means")
        done = run_all(topology, "in_process", log_dir=str(tmp_path / type(store.factory).__name__))
        seen = [n for some in batches.values() for k, n in some if k == 0]
        assert {(one["mean"], one["rows"]) for one in done.state(state).multi_get(range(keys))} == {
            (sum(seen) / 13, 13)
        }


@pytest.mark.parametrize("value", [Decimal("9999999999999999.75"), -(2**63), 2**63 - 1, Decimal(-1), 7])
def test_a_mean_of_any_number_of_values_is_exact(value: Any) -> None:
    mean, one = Avg("v"), TridentTuple(Fields("v"), (value,))
    _, total_type, _ = mean.fields_of(
        "m", Fields(f"v: {'bigint' if isinstance(value, int) else 'decimal(38,18)'}")
    ).types
    found, count, wanted = mean.init(one), 1, value if isinstance(value, Decimal) else value / 1
    for _ in range(40):
        found, count = mean.combine(found, found), 2 * count
        assert (found[0], found[2]) == (wanted, count)
        pa.scalar(found[1], arrow_type(total_type))  # it fits
    (again,), _, counts = mean.combine_all([[part] for part in found], [[part] for part in mean.init(one)])
    assert (again, *counts) == (wanted, count + 1)


def test_a_mean_that_does_not_fit_its_digits_is_refused_by_name() -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("s", RowsSpout("v: decimal(38,18)", {1: [(Decimal(10) ** 16,)]}))
    rows.persistent_aggregate(MemoryMapState.opaque(), Avg("v"), "mean")
    with pytest.raises(
        BatchFailedError, match=r"Avg\('v'\): the mean 10{16}.0* does not fit its 38 digits, of which 22"
    ):
        run_all(topology, "in_process")


@pytest.mark.spark
def test_a_nan_is_where_spark_has_it(spark: SparkSession) -> None:
    cases: list[list[Any]] = [
        [math.nan, 1.0, -math.inf],
        [1.0, math.nan, math.inf],
        [math.nan, None],
        [2.0, None, 1.0],
        [None],
    ]
    rows = [(f"{at}", 0, value, f"{value}") for at, values in enumerate(cases) for value in values]
    frame = spark.createDataFrame([(key, value, word) for key, _, value, word in rows], "k string, d double, w string")
    sorted_ = "slice(sort_array(collect_list(d), false), 1, 2)"
    found = frame.groupBy("k").agg(*map(expr, ["min(d)", "max(d)", "min_by(w, d)", "max_by(w, d)", sorted_])).collect()
    ours = aggregated(ORDERED, [table(rows)], grouped=True)
    for key, *values in found:
        value = ours[(key,)]
        assert repr([value[name] for name in ORDERED]) == repr(values), cases[int(key)]


def test_a_replayed_batch_counts_once(engine: str) -> None:
    topology = TridentTopology("t")
    rows = {1: [("a", 1, 1.0, "x")], 2: [("a", 2, 3.0, "y"), ("b", 7, 1.0, "x")], 3: [("a", 3, 2.0, "x")]}
    sales = (
        topology.new_stream("orders", RowsSpout("k: string, n: bigint, d: double, w: string", rows))
        .group_by("k")
        .persistent_aggregate(MemoryMapState(), ALL)
    )
    failed: list[int] = []

    def fail(point: str, attempt: Any) -> None:
        if point == "committed" and attempt.txid not in failed:
            failed.append(attempt.txid)
            raise FailedException("once, after the states")

    with start(topology, engine, fail) as running:
        running.process_all_available()
        found = running.state("aggregates").multi_get(["a"])[0]
    assert failed == [1, 2, 3]
    assert (found["rows"], found["sum"], found["mean"], found["all"]) == (3, 6, 2.0, ["x", "y", "x"])
    assert (sales.state_name, round(found["sd"], 9)) == ("aggregates", 1.0)
