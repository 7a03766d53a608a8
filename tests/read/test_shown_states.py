"""States as pandas, as Arrow, and as a notebook shows them; and the rows with the greatest values."""

import math
import os
import random
import re
import sys
from collections.abc import Iterator
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
from tests.harness.topology_runs import Keep, RowsState, run_all, start, stream_of
from trident import Fields, TridentTopology
from trident.errors import EnvironmentProblem, StateError, WrongKeyError
from trident.operations import Avg, Count, Max, Sum
from trident.read.views import StateView
from trident.run.running import RunningTopology
from trident.state import Snapshot, State

SALES = (("oslo", 10, "a"), ("bergen", 5, None), ("oslo", 20, "b"))


def sold(state: Any, aggregates: Any = None, out: str = "sales") -> TridentTopology:
    topology, stream = stream_of(FixedBatchSpout("town: string, euros: bigint, by: string", 2, *map(list, SALES)))
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


def test_a_single_value_of_several_aggregates(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout("n: bigint", 2, [1], [2]))
    stream.persistent_aggregate(MemoryMapState(), {"total": Sum("n"), "mean": Avg("n")}, "all")
    view = ran(topology).state("all")
    assert view.to_arrow().to_pylist() == [{"total": 3, "mean": 1.5}]
    assert "state all, 1 row" in view._repr_html_()


def test_whole_numbers_stay_whole_in_pandas_where_some_are_missing(topology: TridentTopology) -> None:
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


def test_stores_show_the_same_to_another_process(redis_server: Server, postgres_server: Server, tmp_path: Path) -> None:
    name = f"shown_{os.getpid()}"
    for number, state in enumerate(
        [
            DeltaState.opaque(str(tmp_path / "sales")),
            RedisState.opaque(f"redis://{redis_server.address}/0", prefix=name),
            PostgresState.opaque(f"postgresql://trident@{postgres_server.address}/postgres", table=name),
        ]
    ):
        topology, log_dir = sold(state), str(tmp_path / str(number))
        ran(topology, log_dir=log_dir)
        with trident.open_state(topology, "sales", log_dir=log_dir) as reader:
            assert reader.to_arrow().column_names == ["town", "revenue", "orders", "mean", "best"]
            assert "state sales, 2 rows, after batch 2" in reader._repr_html_()
            assert [row[0] for row in reader.top(5, by="revenue")] == ["oslo", "bergen"]
            assert reader.to_pandas().sort_values("town").to_numpy().tolist() == [
                ["bergen", 5, 1, 5.0, None],
                ["oslo", 30, 2, 15.0, "b"],
            ]
            if not number:
                assert reader.at(1).to_arrow().column_names[1:] == ["revenue", "orders", "mean", "best"]


def test_a_notebook_shows_twenty_rows(topology: TridentTopology) -> None:
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


@pytest.mark.slow
def test_states_that_are_read_together_are_shown_as_of_one_batch(tmp_path: Path, topology: TridentTopology) -> None:
    stream = topology.new_stream("s", FixedBatchSpout("town: string, euros: bigint", 2, *(row[:2] for row in SALES)))
    stream.group_by("town").persistent_aggregate(DeltaState.opaque(str(tmp_path / "d")), "euros", Sum(), "revenue")
    stream.persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "orders")
    ran(topology, log_dir=str(tmp_path / "log"))
    with trident.open_states(topology, "revenue", "orders", log_dir=str(tmp_path / "log")) as states:
        html = states._repr_html_()
        assert html.index("state revenue, 2 rows, after batch 2") < html.index("state orders, 1 row, after batch 2")
        assert states.txid == 2
    assert "JointReader(&#x27;t&#x27;, [&#x27;revenue&#x27;, &#x27;orders&#x27;]): " in states._repr_html_()


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
    rows = [(key, {"average": mean}) for key, mean in means.items()]
    view = listed(rows, "k: string, v: struct<average: double>", SEVERAL)
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


def test_a_running_topology_says_by_which_of_several_aggregates(topology: TridentTopology) -> None:
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
