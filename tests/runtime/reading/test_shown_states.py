"""States as pandas, as Arrow, as a notebook shows them; keys and edited values as people write them."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import Keep, RowsState, run_all, start
from trident import Fields, TridentTopology
from trident.errors import EnvironmentProblem, StateError, UnsupportedOperation, WrongKeyError
from trident.operations import Avg, Count, Max, Sum
from trident.runtime.reading.views import StateView
from trident.runtime.reading.written_values import edited_values, number_of, parse_key, parse_prefix, plain
from trident.runtime.running import RunningTopology
from trident.state import Snapshot, State

SALES = (("oslo", 10, "a"), ("bergen", 5, None), ("oslo", 20, "b"))


def sold(state: Any, aggregates: Any = None, out: str = "sales") -> TridentTopology:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("town: string, euros: bigint, by: string", 2, *map(list, SALES)))
    several = {"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros"), "best": Max("by")}
    stream.group_by("town").persistent_aggregate(state, aggregates or several, out)
    return topology


def ran(topology: TridentTopology, **conf: Any) -> RunningTopology:
    return run_all(topology, "in_process", **conf)


def test_several_aggregates_are_a_column_each_without_what_they_remember() -> None:
    table = ran(sold(MemoryMapState())).state("sales").to_arrow()
    types = {"revenue": pa.int64(), "orders": pa.int64(), "mean": pa.float64(), "best": pa.string()}
    assert table.schema == pa.schema({"town": pa.string(), **types})
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [
        ("bergen", 5, 1, 5.0, None),
        ("oslo", 30, 2, 15.0, "b"),
    ]


def test_a_notebook_shows_the_results_only() -> None:
    html = ran(sold(MemoryMapState())).state("sales")._repr_html_()
    assert "revenue" in html
    assert "mean_sum" not in html
    assert "state sales, 2 rows, after batch 2" in html


def test_a_result_named_as_a_field_of_the_key_gets_another_name() -> None:
    topology = sold(MemoryMapState(), {"town": Count(), "n": Count()})
    assert ran(topology).state("sales").to_arrow().column_names == ["town", "town_", "n"]


def test_a_single_value_of_several_aggregates() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("n: bigint", 2, [1], [2]))
    stream.persistent_aggregate(MemoryMapState(), {"total": Sum("n"), "mean": Avg("n")}, "all")
    view = ran(topology).state("all")
    assert view.to_arrow().to_pylist() == [{"total": 3, "mean": 1.5}]
    assert "state all, 1 row" in view._repr_html_()


def test_whole_numbers_stay_whole_in_pandas_where_some_are_missing() -> None:
    topology = TridentTopology("t")
    big = 2**60 + 1
    stream = topology.new_stream("s", FixedBatchSpout("k: string, n: bigint", 2, ["a", big], ["b", None]))
    stream.group_by("k").persistent_aggregate(MemoryMapState(), {"most": Max("n"), "rows": Count()}, "most_of")
    frame = ran(topology).state("most_of").to_pandas().sort_values("k")
    assert frame["most"].tolist() == [big, None]
    assert frame["rows"].dtype == "int64"


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    view = ran(sold(MemoryMapState())).state("sales")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EnvironmentProblem, match=r"to_pandas\(\) needs the package pandas .*trident-spark\[spark\]"):
        view.to_pandas()
    assert view.to_arrow().num_rows == 2


@pytest.mark.slow
def test_a_reader_in_another_process_has_the_same(tmp_path: Path) -> None:
    topology = sold(DeltaState.opaque(str(tmp_path / "sales")))
    ran(topology, log_dir=str(tmp_path / "log"))
    with trident.open_state(topology, "sales", log_dir=str(tmp_path / "log")) as reader:
        assert reader.to_arrow().num_rows == len(reader.to_pandas()) == 2
        assert "mean_count" not in reader.to_arrow().column_names
        assert "state sales, 2 rows, after batch 2" in reader._repr_html_()
        assert [row[0] for row in reader.top(1, by="orders")] == ["oslo"]
        assert reader.at(1).to_arrow().column_names[1:] == ["revenue", "orders", "mean", "best"]


def test_servers_show_the_same(redis_server: Server, postgres_server: Server, tmp_path: Path) -> None:
    name = f"shown_{os.getpid()}"
    for number, state in enumerate(
        [
            RedisState.opaque(f"redis://{redis_server.address}/0", prefix=name),
            PostgresState.opaque(f"postgresql://trident@{postgres_server.address}/postgres", table=name),
        ]
    ):
        topology, log_dir = sold(state), str(tmp_path / str(number))
        ran(topology, log_dir=log_dir)
        with trident.open_state(topology, "sales", log_dir=log_dir) as reader:
            assert "state sales, 2 rows, after batch 2" in reader._repr_html_()
            assert [row[0] for row in reader.top(5, by="revenue")] == ["oslo", "bergen"]
            assert reader.to_pandas().sort_values("town").to_numpy().tolist() == [
                ["bergen", 5, 1, 5.0, None],
                ["oslo", 30, 2, 15.0, "b"],
            ]


def test_a_notebook_shows_twenty_rows() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("n: bigint", 30, *([n] for n in range(30))))
    stream.group_by("n").persistent_aggregate(MemoryMapState(), Count(), "count")
    view = ran(topology).state("count")
    html = view._repr_html_()
    assert "state count, the first 20 rows, after batch 1" in html
    assert html.count("<tr>") == 1 + 20
    assert repr(view) == "StateView('count', after batch 1)"


def test_a_state_whose_store_is_closed_says_so(tmp_path: Path) -> None:
    topology = sold(sqlite_state(str(tmp_path / "s.sqlite")))
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        view = running.state("sales")
        assert "2 rows" in view._repr_html_()
    assert "closed database" in view._repr_html_()


def test_a_state_that_cannot_be_listed_says_so() -> None:
    topology, rows = TridentTopology("t"), RowsState()
    topology.new_stream("s", FixedBatchSpout("n: bigint", 2, [1])).partition_persist(rows, "n", Keep(), "n: bigint")
    html = ran(topology).state("s-persist")._repr_html_()
    assert html.startswith("<pre")
    assert "the store of state &#x27;s-persist&#x27; cannot list its keys" in html


def test_states_that_are_read_together_are_shown_as_of_one_batch(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("town: string, euros: bigint", 2, *(row[:2] for row in SALES)))
    stream.group_by("town").persistent_aggregate(DeltaState.opaque(str(tmp_path / "d")), "euros", Sum(), "revenue")
    stream.persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "orders")
    ran(topology, log_dir=str(tmp_path / "log"))
    with trident.open_states(topology, "revenue", "orders", log_dir=str(tmp_path / "log")) as states:
        html = states._repr_html_()
        assert html.index("state revenue, 2 rows, after batch 2") < html.index("state orders, 1 row, after batch 2")
        assert states.txid == 2
    assert "JointReader(&#x27;t&#x27;, [&#x27;revenue&#x27;, &#x27;orders&#x27;]): " in states._repr_html_()


# ---- the greatest values ---------------------------------------------------------------------------------------------


SEVERAL = "revenue: bigint, average: double"


class Listed(State):
    """A state that has these rows."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)


def listed(rows: list[tuple[Any, ...]], columns: str = "k: string, n: bigint", results: str = "") -> StateView:
    named = Fields(results) if results else Fields()
    return StateView([Listed(rows)], lambda: Snapshot(1), "sales", columns=Fields(columns), results=named)


def test_the_greatest_values_come_first_and_of_equal_ones_the_smaller_key() -> None:
    rows = [(f"k{at % 7}{at}", at % 5) for at in range(50)]
    expected = sorted(rows, key=lambda row: (-row[1], row[0]))
    for _ in range(20):
        random.Random(7).shuffle(rows)
        count = random.Random(len(rows)).randrange(60)
        assert listed(rows).top(count) == expected[:count]


def test_a_nan_is_above_all_numbers_and_none_comes_last() -> None:
    means = {"none": None, "least": -math.inf, "nan": math.nan, "more": 1.5, "most": math.inf}
    view = listed(
        [(key, {"average": mean}) for key, mean in means.items()], "k: string, v: struct<average: double>", SEVERAL
    )
    assert [key for key, _ in view.top(9, by="average")] == ["nan", "most", "more", "least", "none"]


def test_keys_without_a_type_have_one_order() -> None:
    rows = [(key, 1) for key in (1, 1.5, "a", None, True, b"a", Decimal(2), math.nan, -1.0)]
    orders = set()
    for seed in range(10):
        random.Random(seed).shuffle(rows)
        orders.add(repr(listed(rows, "k, n").top(9)))
    assert len(orders) == 1


def test_only_keys_that_begin_so_are_asked() -> None:
    rows = [("oslo", 1, 5), ("oslo", 2, 7), ("bergen", 1, 9)]
    view = listed(rows, "town: string, day: int, n: bigint")
    assert view.top(1, prefix=("oslo",)) == [("oslo", 2, 7)]
    assert view.top(5, "n", prefix="b") == [("bergen", 1, 9)]


def test_a_running_topology_says_by_which_of_several_aggregates() -> None:
    topology = TridentTopology("t")
    rows = FixedBatchSpout("town: string, euros: bigint", 2, ["oslo", 10], ["bergen", 50], ["oslo", 20])
    totals = {"revenue": Sum("euros"), "orders": Count(), "average": Avg("euros")}
    sales = topology.new_stream("s", rows).group_by("town").persistent_aggregate(MemoryMapState(), totals, "sales")
    view = run_all(topology, "in_process").state(sales)
    assert [row[0] for row in view.top(10, by="revenue")] == ["bergen", "oslo"]
    assert [row[0] for row in view.top(1, by="orders")] == ["oslo"]
    with pytest.raises(StateError, match=re.escape("by None: by is one of ['revenue', 'orders', 'average']")):
        view.top(10)
    with pytest.raises(StateError, match="'average_sum': by is one of"):
        view.top(10, by="average_sum")


def test_what_has_no_greatest_value_is_refused_by_name() -> None:
    with pytest.raises(StateError, match=re.escape("'v' is map<string,int>, which has no order")):
        listed([], "k: string, v: map<string,int>").top(3)
    with pytest.raises(StateError, match="state 'sales': they have no order: .* of 'str' and 'int'|'int' and 'str'"):
        listed([("a", 1), ("b", "c")], "k: string, v").top(3)
    with pytest.raises(WrongKeyError, match=r"state 'sales' holds a single value; read it with get\(\)"):
        listed([(3,)], "n: bigint").top(3)


def test_a_store_that_cannot_list_its_keys_says_so() -> None:
    class Unlisted(State):
        pass

    view = StateView([Unlisted()], lambda: Snapshot(1), "sales", columns=Fields("k: string, n: bigint"))
    with pytest.raises(UnsupportedOperation, match="state 'sales' cannot list its keys; read those that you know"):
        view.top(3)


@pytest.mark.parametrize(
    ("text", "fields", "key"),
    [
        ('["a"]', Fields("word: string"), ('["a"]',)),
        ("7", Fields("n: smallint"), (7,)),
        ("1.5", Fields("x: double"), (1.5,)),
        ("False", Fields("b: boolean"), (False,)),
        ("2.50", Fields("d: decimal(10,2)"), (Decimal("2.50"),)),
        ("2026-01-31", Fields("d: date"), (date(2026, 1, 31),)),
        ("2026-01-31T10:00", Fields("t: timestamp"), (datetime(2026, 1, 31, 10, tzinfo=UTC),)),
        ("2026-01-31T10:00", Fields("t: timestamp_ntz"), (datetime(2026, 1, 31, 10),)),
        ("é", Fields("b: binary"), ("é".encode(),)),
        ('["a", "7"]', Fields("a: string, b: int"), ("a", 7)),
        ("[null, true]", Fields("a: string, b: boolean"), (None, True)),
        ("a", Fields(), ("a",)),
        ('["a", 1]', Fields(), ("a", 1)),
    ],
)
def test_a_text_becomes_a_key(text: str, fields: Fields, key: tuple[Any, ...]) -> None:
    parsed = parse_key(text, fields, "s")
    assert parsed == key
    assert [type(part) for part in parsed] == [type(part) for part in key]


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("x", Fields("n: int"), "key 'x' of state 's': expected a value of type int"),
        ("yes", Fields("b: boolean"), "type boolean"),
        ("a", Fields("a: string, b: int"), "expected a JSON list of its 2 fields (a, b)"),
        ('["a"]', Fields("a: string, b: int"), "expected a JSON list of its 2 fields"),
        ("[1, 1]", Fields("a: string, b: int"), "a of key '[1, 1]' of state 's': expected a value of type string"),
        ('["a", true]', Fields("a: string, b: int"), "b of key"),
        ('["a", 1.5]', Fields("a: string, b: int"), "b of key"),
        ('["a", 12345678901234567890.5]', Fields("a: string, d: decimal(38,18)"), "is read as 1.2345678901234567e+19"),
        ('["a", true]', Fields("a: string, b: double"), "type double"),
        ("yesterday", Fields("t: timestamp"), "type timestamp"),
        ("1,5", Fields("d: decimal(10,2)"), "type decimal(10,2)"),
    ],
)
def test_a_text_that_cannot_be_a_key_is_refused(text: str, fields: Fields, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_key(text, fields, "s")


@pytest.mark.parametrize(
    ("text", "fields", "part"),
    [
        ("shop-1", Fields("shop: string, day: date"), ("shop-1",)),
        ('["shop-1"]', Fields("shop: string, day: date"), ("shop-1",)),
        ('["shop-1", "2026-01-31"]', Fields("shop: string, day: date"), ("shop-1", date(2026, 1, 31))),
        ("7", Fields("n: int, shop: string"), (7,)),
        ('["a"]', Fields("a: string"), ('["a"]',)),
        ("a", Fields(), ("a",)),
    ],
)
def test_a_text_becomes_a_part_of_a_key(text: str, fields: Fields, part: Any) -> None:
    assert parse_key(text, fields, "s", part=True) == part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["a"', "expected its first field, or a JSON list of some or all of its 2 fields (n, shop)"),
        ("[1, 2, 3]", "expected its first field, or a JSON list"),
        ("[]", "expected its first field, or a JSON list"),
        ("a", "n of key 'a' of state 's': expected a value of type int"),
    ],
)
def test_a_text_that_begins_no_key_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_key(text, Fields("n: int, shop: string"), "s", part=True)


@pytest.mark.parametrize(
    ("text", "fields", "prefix"),
    [
        ("th", Fields("a: string"), "th"),
        ('["a"]', Fields("a: string"), '["a"]'),
        ('["a"]', Fields("a: string, b: int"), ("a",)),
        ('["a", 1]', Fields("a: string, b: int"), ("a", 1)),
        ("[1]", Fields("a: int, b: int"), (1,)),
        ("a", Fields("a: string, b: int"), "a"),
        ("a", Fields(), "a"),
        ("[1, 2]", Fields(), (1, 2)),
    ],
)
def test_a_text_becomes_a_prefix(text: str, fields: Fields, prefix: Any) -> None:
    assert parse_prefix(text, fields, "s") == prefix


@pytest.mark.parametrize("fields", [Fields("n: int"), Fields("n: int, a: string")])
def test_a_number_does_not_begin_with_a_text(fields: Fields) -> None:
    with pytest.raises(ValueError, match="the key begins with n, of type int, which does not begin with a text"):
        parse_prefix("a", fields, "s")


# ---- values that a user edits ----------------------------------------------------------------------------------------


EACH: dict[str, Any] = {
    "text": "a", "whole": 1, "number": 1.5, "flag": True, "none": None, "bytes": b"\x00a", "day": dt.date(2026, 1, 2),
    "price": Decimal("2.50"), "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3), "list": [Decimal("1.0")],
    "struct": {"n": Decimal("1")}, "span": dt.timedelta(1),
}  # fmt: skip


def test_what_is_not_edited_is_the_same_values() -> None:
    assert edited_values(json.loads(json.dumps(plain(EACH))), EACH) == EACH
    nan = {"n": float("nan")}
    assert math.isnan(edited_values(json.loads(json.dumps(plain(nan))), nan)["n"])


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("price", "3.25", Decimal("3.25")), ("price", 3, Decimal(3)), ("day", "2026-02-03", dt.date(2026, 2, 3)),
        ("at", "2026-02-03T04:00:00+01:00", dt.datetime(2026, 2, 3, 3, tzinfo=dt.UTC)), ("number", 2, 2.0),
        ("local", "2026-02-03 04:00", dt.datetime(2026, 2, 3, 4)),
        ("bytes", "YWI=", b"ab"), ("text", None, None), ("none", "x", "x"),
        ("list", ["2.5", "3"], [Decimal("2.5"), Decimal(3)]),
        ("struct", {"n": "7"}, {"n": Decimal(7)}),
    ],
)  # fmt: skip
def test_what_is_edited_is_of_the_type_before(field: str, given: Any, value: Any) -> None:
    found = edited_values({**plain(EACH), field: given}, EACH)[field]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("field", "given"),
    [("price", "cheap"), ("whole", 1.0), ("whole", "1"), ("flag", 1), ("text", 1), ("number", "1"), ("number", True),
     ("day", "soon"), ("bytes", "?"), ("list", 1), ("list", "12"), ("at", 5),
     ("at", "2026-02-03T04:00:00"), ("local", "2026-02-03T04:00:00Z"), ("day", "2026-02-03T04:00:00"), ("number", 2**53 + 1),
     ("span", "2 days, 0:00:00")],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_its_field(field: str, given: Any) -> None:
    with pytest.raises(ValueError, match=f"field '{field}': .* cannot be a .*, which it was"):
        edited_values({**plain(EACH), field: given}, EACH)


def test_a_zero_may_be_edited_to_the_other_one_and_a_flag_to_no_number() -> None:
    found = edited_values({"n": -0.0, "list": [0.0, 2]}, {"n": 0.0, "list": [-0.0, 2.0]})
    assert repr(found) == "{'n': -0.0, 'list': [0.0, 2.0]}"
    with pytest.raises(ValueError, match=r"field 'flags': \[1\] cannot be a list, which it was"):
        edited_values({"flags": [1]}, {"flags": [True]})


@pytest.mark.parametrize("text", ["0.1", "1e3", "2.50", "-0.0", "0.30000000000000004"])
def test_a_number_of_json_is_read_as_the_double_that_it_says(text: str) -> None:
    assert json.loads(text, parse_float=number_of) == float(text)


@pytest.mark.parametrize("text", ["1.00000000000000000001", "12345678901234567890.12", "1e400"])
def test_a_number_of_json_with_more_digits_than_a_double_keeps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a decimal in quotes"):
        json.loads(text, parse_float=number_of)
