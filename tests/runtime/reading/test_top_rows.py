"""`top`: the rows with the greatest values, in the order of Spark's values, of equal ones by key."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import run_all
from trident import Fields, TridentTopology
from trident.errors import StateError, UnsupportedOperation, WrongKeyError
from trident.operations import Avg, Count, Sum
from trident.runtime.reading.views import StateView
from trident.state import Snapshot, State

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
