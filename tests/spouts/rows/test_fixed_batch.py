"""FixedBatchSpout: its rows, all of them, in batches of a fixed size, also across restarts."""

from __future__ import annotations

import datetime
import decimal
import pickle
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from tests.spouts.reading import definitions, rows_of
from trident.arrow import schema_of
from trident.errors import ReplayMismatchError, TopologyError
from trident.spout import ITridentSpout, SpoutType, TransactionAttempt

WORDS = [("the",), ("cow",), ("jumped",), ("over",), ("moon",)]


def batches(spout: FixedBatchSpout, limit: int = 20) -> list[list[Any]]:
    coordinator = spout.get_coordinator({})
    return [rows_of(spout, coordinator, one) for one in islice(definitions(coordinator), limit)]


def numbers(count: int, start: int = 0) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + count), pa.int64())})


@pytest.mark.parametrize(
    ("spout", "expected"),
    [
        (FixedBatchSpout("word", 2, *WORDS), [WORDS[:2], WORDS[2:4], WORDS[4:]]),
        (FixedBatchSpout("word", 2, WORDS[:3], *WORDS[3:]), [WORDS[:2], WORDS[2:4], WORDS[4:]]),
        (FixedBatchSpout("word", 3, *WORDS, cycle=True), [WORDS[:3], WORDS[3:], WORDS[:3], WORDS[3:], WORDS[:3]]),
        (FixedBatchSpout("word: string", 3, cycle=True), []),
        (FixedBatchSpout.of_tables([numbers(3), numbers(0), numbers(2, 3)]), [[(0,), (1,), (2,)], [(3,), (4,)]]),
        (FixedBatchSpout.of_tables([numbers(1), numbers(1, 1)], cycle=True), [[(0,)], [(1,)], [(0,)], [(1,)], [(0,)]]),
        (FixedBatchSpout.of_tables([numbers(0)], cycle=True), []),
    ],
    ids=["rows", "batches", "a cycle", "no rows", "tables", "a cycle of tables", "empty tables"],
)
def test_rows_come_in_order_in_batches_and_a_cycle_begins_with_one_of_its_own(
    spout: FixedBatchSpout, expected: list[list[Any]]
) -> None:
    assert isinstance(spout, ITridentSpout)
    assert spout.spout_type is SpoutType.TRANSACTIONAL
    assert batches(spout, 5) == batches(pickle.loads(pickle.dumps(spout)), 5) == expected


def test_a_cycle_may_be_set_later() -> None:
    spout = FixedBatchSpout("word", 3, *WORDS)
    spout.set_cycle(True)
    assert len(batches(spout, 5)) == 5
    spout.set_cycle(False)
    assert len(batches(spout, 5)) == 2


def test_a_restart_goes_on_after_the_last_defined_row() -> None:
    first = FixedBatchSpout("word", 2, *WORDS).get_coordinator({}).initialize_transaction(1, None)
    assert first == {"start": 0, "end": 2}
    again = FixedBatchSpout("word", 2, *WORDS)
    coordinator = again.get_coordinator({})
    assert [rows_of(again, coordinator, one) for one in definitions(coordinator, first)] == [WORDS[2:4], WORDS[4:]]


def test_a_list_row_may_hold_lists() -> None:
    spout = FixedBatchSpout("tags, n", 5, [["a", "b"], 1], [[], 2])
    assert str(spout.get_output_fields()) == "tags: array<string>, n: bigint"
    assert batches(spout) == [[(["a", "b"], 1), ([], 2)]]


def test_types_that_are_not_declared_are_those_of_the_values() -> None:
    row = (
        1,
        1.5,
        "a",
        True,
        b"b",
        datetime.date(2020, 1, 1),
        datetime.datetime(2020, 1, 1),
        decimal.Decimal(1),
        {"a": 1},
    )
    fields = FixedBatchSpout([f"f{k}" for k in range(9)], 5, row, [None] * 9).get_output_fields()
    assert fields.types == (
        "bigint", "double", "string", "boolean", "binary", "date", "timestamp", "decimal(38,18)", "map<string,bigint>",
    )  # fmt: skip


def test_a_declared_type_stands() -> None:
    spout = FixedBatchSpout("n: int, x", 5, (1, 2))
    assert schema_of(spout.get_output_fields()) == pa.schema([("n", pa.int32()), ("x", pa.int64())])
    assert batches(spout) == [[(1, 2)]]


@pytest.mark.parametrize(
    ("fields", "rows", "message"),
    [
        ("a, b", [(1, 2), (1,)], r"row 1 has 1 values, but there are 2 fields \(a, b\): \(1,\)"),
        ("a", ["word"], r"row 0 is 'word', not a list or tuple of 1 values"),
        ("a", [(1,), ("x",)], r"field 'a' are of several types: bigint \(row 0\), string \(row 1\)"),
        ("a", [(1,), (True,)], r"bigint \(row 0\), boolean \(row 1\)"),
        ("a", [(None,)], r"field 'a' cannot be taken from the rows: none has a value"),
        ("a", [], r"field 'a' cannot be taken from the rows: none has a value"),
        ("a", [(object(),)], r"field 'a' cannot be taken from row 0: .* is a object; declare it"),
        ("a", [([1, "x"],)], r"field 'a' cannot be taken from row 0: \[1, 'x'\] is a list"),
        ("a: int, b: string", [(1, "x"), (2, 3)], r"row 1: the value 3 of field 'b' is not of type string"),
        ("a: tinyint", [(1,), (300,)], r"row 1: the value 300 of field 'a' is not of type tinyint"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_number(fields: str, rows: list[Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        FixedBatchSpout(fields, 2, *rows)


def test_a_batch_without_room_for_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batch_size=0 of FixedBatchSpout: give a whole number of at least 1"):
        FixedBatchSpout("a", 0, (1,))


def test_a_definition_beyond_the_rows_is_refused() -> None:
    coordinator = FixedBatchSpout("word", 9, *WORDS).get_coordinator({})
    message = "batch 7 was defined as the rows 3 to 6 .* the spout has 5 rows now; give it the rows"
    with pytest.raises(ReplayMismatchError, match=message):
        coordinator.parts(TransactionAttempt(7, 0), {"start": 3, "end": 6}, 1)
    with pytest.raises(ReplayMismatchError, match="has 5 rows now"):
        coordinator.parts(TransactionAttempt(7, 0), {"start": 5, "end": 6}, 1)


def test_a_definition_that_spans_tables_is_refused() -> None:
    coordinator = FixedBatchSpout.of_tables([numbers(3), numbers(2)]).get_coordinator({})
    with pytest.raises(ReplayMismatchError, match="the rows 2 to 4"):
        coordinator.parts(TransactionAttempt(1, 0), {"start": 2, "end": 4}, 1)


def address_of(table: pa.Table) -> int:
    """Return where the buffer of a table's one column lies, of which a slice is a view."""
    (batch,) = table.to_batches()
    buffer = batch.column(0).buffers()[1]
    assert buffer is not None
    return int(buffer.address)


def test_parts_are_equal_slices_that_share_the_memory_of_the_table() -> None:
    table = numbers(10_000)
    coordinator = FixedBatchSpout.of_tables([table]).get_coordinator({})
    parts = coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 10_000}, 4)
    assert [part.table.num_rows for part in parts] == [2500] * 4
    assert [address_of(part.table) for part in parts] == [address_of(table)] * 4


def test_a_pickled_part_carries_its_own_rows_only() -> None:
    coordinator = FixedBatchSpout.of_tables([numbers(10_000)]).get_coordinator({})
    part = coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 10_000}, 8)[1]
    data = pickle.dumps(part)
    assert len(data) < 1250 * 8 + 1000
    assert pickle.loads(data).table == numbers(1250, 1250)


def test_a_few_rows_are_one_part_and_keep_their_order() -> None:
    spout = FixedBatchSpout("n", 500, [(n,) for n in range(500)])
    coordinator = spout.get_coordinator({})
    assert len(coordinator.parts(TransactionAttempt(1, 0), {"start": 0, "end": 500}, 8)) == 1


def test_a_table_may_be_given_instead_of_rows() -> None:
    spout = FixedBatchSpout("n, m: string", 2, pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}))
    assert str(spout.get_output_fields()) == "n: bigint, m: string"
    assert batches(spout) == [[(1, "x"), (2, "y")], [(3, None)]]


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ("n", [numbers(1), (1,)], "rows and tables cannot be mixed"),
        ("n, m", [numbers(1)], r"the table has 1 columns \['n'\], but there are 2 fields"),
        ("n: int", [pa.table({"n": ["x"]})], r"cannot be read as \(n: int\)"),
        ("n", [pa.table({"n": pa.array([1], pa.time64("us"))})], "column 'n' is of Arrow type time64"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(fields: str, given: list[Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        FixedBatchSpout(fields, 2, *given)


def test_tables_of_several_schemas_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"table 1 has the schema \(n: string\), table 0 has \(n: int64\)"):
        FixedBatchSpout.of_tables([numbers(1), pa.table({"n": ["x"]})])


def test_no_table_at_all_is_refused() -> None:
    with pytest.raises(TopologyError, match="takes Arrow tables, at least one"):
        FixedBatchSpout.of_tables([])


def test_spark_types_survive_a_round_trip_through_a_schema() -> None:
    ddl = "a: array<int>, b: map<string,double>, c: struct<x:bigint,y:string>, d: decimal(10,2), e: timestamp, "
    ddl += "f: timestamp_ntz"
    spout = FixedBatchSpout(ddl, 1, ([1], {"k": 1.0}, {"x": 1, "y": "z"}, decimal.Decimal("1.50"), None, None))
    table = spout.get_coordinator({}).parts(TransactionAttempt(1, 0), {"start": 0, "end": 1}, 1)[0].table
    assert FixedBatchSpout.of_tables([table]).get_output_fields() == spout.get_output_fields()
