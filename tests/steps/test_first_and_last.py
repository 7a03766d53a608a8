"""`First` and `Last`: the kernel gives what their Python code gives, states keep the right tuple, replays change nothing."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, keep, run_all
from tests.steps.test_steps import CUTS, ORDERED, agree, chunked, keyed, row_by_row
from trident import Fields, TopologyError, TridentTopology
from trident.arrow import arrow_type
from trident.graph import Aggregation
from trident.operations import First, Last, MapGet, SnapshotGet
from trident.steps.aggregates import merge_partials, partial
from trident.steps.failures import TupleErrors

KINDS = pytest.mark.parametrize("kind", [First, Last])
NESTED = {"array<int>": st.lists(st.integers(0, 3), max_size=2)}


@pytest.mark.sample(8)
@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("ddl", [*ORDERED, *NESTED])
@settings(max_examples=15)
@given(data=st.data(), cut=CUTS, grouped=st.booleans())
def test_of_one_field_the_kernel_is_the_python_code(
    ddl: str, kind: Callable[[], Any], data: st.DataObject, cut: int, grouped: bool
) -> None:
    table = data.draw(keyed({**ORDERED, **NESTED}[ddl], arrow_type(ddl)))
    agree(kind(), ddl, table, cut, grouped)


@pytest.mark.sample(8)
@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("by", [None, *ORDERED])
@settings(max_examples=15)
@given(data=st.data(), cuts=st.tuples(CUTS, CUTS), grouped=st.booleans())
def test_of_several_fields_the_kernel_is_the_python_code(
    by: str | None, kind: Callable[..., Any], data: st.DataObject, cuts: tuple[int, int], grouped: bool
) -> None:
    ddl = by or "bigint"
    table = data.draw(keyed(ORDERED[ddl], arrow_type(ddl)))
    table = table.append_column("n", pa.array(range(table.num_rows), pa.int64()))
    first, second = sorted(min(cut, table.num_rows) for cut in cuts)
    parts = [table.slice(0, first), table.slice(first, second - first), table.slice(second)]
    aggregator = kind() if by is None else kind(by="v")
    native = whole(aggregator, ddl, parts, grouped)
    assert native == whole(row_by_row(aggregator), ddl, parts, grouped)
    assert native == whole(aggregator, ddl, [table], grouped)  # however a batch is cut


def whole(aggregator: Any, ddl: str, parts: list[pa.Table], grouped: bool) -> dict[Any, str]:
    """Aggregate tuples `v, n` in parts, and merge them."""
    group = Fields("k: string") if grouped else Fields()
    out = Fields(f"out: struct<v: {ddl}, n: bigint>")
    aggregation = Aggregation(Fields(f"v: {ddl}", "n: bigint"), aggregator, out, True, group)
    keys, values = merge_partials(aggregation, [partial("a", aggregation, part, TupleErrors()) for part in parts])
    assert len(set(keys)) == len(keys)
    return {key: repr(value) for key, value in zip(keys, values, strict=True)}  # a NaN is not equal to itself


ROWS = [("ann", "Oslo", 3), ("bob", "Rome", 5), ("ann", "Bergen", 3), ("bob", None, 4), ("ann", "Lima", None)]
FIELDS = "user: string, town: string, at: bigint"


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_state_keeps_the_first_and_the_last_over_all_batches(engine: str, size: int) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout(FIELDS, size, *ROWS))
    users = stream.group_by("user")

    def state(name: str, fields: str, aggregator: Any) -> Any:
        return users.persistent_aggregate(MemoryMapState(), fields, aggregator, name)

    states = {
        "last": state("last", "town", Last()),
        "first": state("first", "town", First()),
        "newest": state("newest", "town, at", Last(by="at")),
        "oldest": state("oldest", "town, at", First(by="at")),
        "rows": state("rows", "town, at", Last()),
    }
    one = stream.persistent_aggregate(MemoryMapState(), "town, at", Last(by="at"), "one")
    running = run_all(topology, engine)
    read = {name: running.state(state).multi_get(["ann", "bob"]) for name, state in states.items()}
    assert read == {
        "last": ["Lima", "Rome"],  # bob's null is skipped
        "first": ["Oslo", "Rome"],
        "newest": [{"town": "Bergen", "at": 3}, {"town": "Rome", "at": 5}],  # of equal ones the last; no time, no order
        "oldest": [{"town": "Oslo", "at": 3}, {"town": None, "at": 4}],  # of equal ones the first
        "rows": [{"town": "Lima", "at": None}, {"town": None, "at": 4}],
    }
    assert running.state(one).get() == {"town": "Rome", "at": 5}


def test_a_struct_fills_as_many_fields_as_a_query_names(engine: str) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", RowsSpout(FIELDS, {1: ROWS[:2], 2: ROWS[:2] + [("eve", "Nice", 1)]}))
    newest = stream.group_by("user").persistent_aggregate(MemoryMapState(), "town, at", Last(by="at"), "newest")
    one = stream.persistent_aggregate(MemoryMapState(), "town, at", Last(by="at"), "one")
    asked = stream.project("user").state_query(newest, "user", MapGet(), "town, since")
    asked = asked.state_query(one, SnapshotGet(), "newest_town, newest_at").state_query(
        newest, "user", MapGet(), "whole"
    )
    assert str(asked.fields).endswith("newest_at: bigint, whole: struct<town:string,at:bigint>")
    out = keep(asked, "out")
    run_all(topology, engine)
    assert [row[:5] for row in out.batches[1]] == [("ann", None, None, None, None), ("bob", None, None, None, None)]
    assert out.batches[2] == [
        ("ann", "Oslo", 3, "Rome", 5, {"town": "Oslo", "at": 3}),
        ("bob", "Rome", 5, "Rome", 5, {"town": "Rome", "at": 5}),
        ("eve", None, None, "Rome", 5, None),
    ]
    assert "MapGet(user) -> town: string, since: bigint" in topology.explain()


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda s: s.aggregate(Last(), "x"), "Last takes the fields to keep; name at least one before it"),
    "by another field": (
        lambda s: s.aggregate("town", First(by="at"), "x"),
        "First(by='at') keeps (town: string), which has no field 'at'; name it among the input fields",
    ),
    "only by": (
        lambda s: s.aggregate("at", Last(by="at"), "x"),
        "keeps nothing but its order; name the fields to keep beside 'at', or use Max()",
    ),
    "by a list": (
        lambda s: s.each("at", lambda at: [at], "l: array<bigint>").aggregate("town, l", Last(by="l"), "x"),
        "Last cannot order by 'l', which is array<bigint>",
    ),
    "another type": (
        lambda s: s.aggregate("town", Last(), "x: int"),
        "Last gives string, but its output field 'x' is declared int",
    ),
    "too many fields asked": (
        lambda s: s.state_query(
            s.group_by("user").persistent_aggregate(MemoryMapState(), "town, at", Last(), "x"), "user", MapGet(), "a, b, c"
        ),
        "the state's value is a struct<town:string,at:bigint>, but 3 output fields are named: ['a', 'b', 'c']; name 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_with_what_to_do(case: str) -> None:
    call, text = WRONG[case]
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout(FIELDS, 1, *ROWS))
    with pytest.raises(TopologyError) as caught:
        call(stream)
    assert text in str(caught.value)
    assert str(caught.value).startswith("stream 's")


@pytest.mark.parametrize("by", [1, "", ["at"]])
def test_the_order_is_named_by_a_text(by: Any) -> None:
    with pytest.raises(TypeError, match="by is the name of one of the input fields"):
        Last(by)


def test_another_order_is_another_meaning() -> None:
    def text(aggregator: Any) -> str:
        topology = TridentTopology("t")
        users = topology.new_stream("s", FixedBatchSpout(FIELDS, 1, *ROWS)).group_by("user")
        users.persistent_aggregate(MemoryMapState(), "town, at", aggregator, "last")
        return topology.explain()

    assert "Last-by-at(town, at) -> last" in text(Last(by="at"))
    assert "Last(town, at) -> last" in text(Last())


@settings(max_examples=20)
@given(chunked(st.one_of(st.none(), st.floats()), pa.float64()))
def test_no_order_no_tuple(order: Any) -> None:
    table = pa.table({"k": ["a"] * len(order), "v": order, "n": range(len(order))})
    known = [value for value in order.to_pylist() if value is not None and value == value]
    found = whole(Last(by="v"), "double", [table], True)
    if not len(order):
        assert found == {}
    elif known:
        assert f"'v': {max(known)!r}" in found["a",] or max(known) == 0
    else:
        assert found == {("a",): "None"}
