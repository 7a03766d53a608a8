"""`migrate=`: what it makes of stored values, when, and what is refused."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import run_all, start
from trident import BatchFailedError, TridentTopology, migrate_state, move_state, open_state
from trident.errors import StateError, TopologyChangedError, TopologyError
from trident.operations import (
    ArgMax,
    ArgMin,
    Avg,
    Collect,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Min,
    StdDev,
    Sum,
    TopN,
)
from trident.state import StateSpec

ROWS = [["a", 1], ["b", 2], ["a", 3]]
Declare = Callable[..., TridentTopology]


@pytest.fixture
def state(tmp_path: Path) -> StateSpec:
    return sqlite_state(str(tmp_path / "state.sqlite"))


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def totals(
    state: StateSpec, rows: list[list[Any]], *aggregate: Any, of: str = "n: bigint", each: Any = None, **more: Any
) -> TridentTopology:
    """Return a topology that aggregates rows of a key and a number, to which a step may add a field."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout(f"k: string, {of}", 2, *rows))
    stream = stream if each is None else stream.each("n", *each)
    stream.group_by("k").persistent_aggregate(state, *aggregate, "total", **more)
    return topology


def cents(state: StateSpec, rows: list[list[Any]] = ROWS, **more: Any) -> TridentTopology:
    return totals(state, rows, "n", Sum(), **more)


def euros(state: StateSpec, migrate: Any = None, rows: list[list[Any]] = ROWS) -> TridentTopology:
    in_euros = (lambda n: Decimal(n) / 100, "euros: decimal(20,2)")
    return totals(state, rows, "euros", Sum(), each=in_euros, migrate=migrate)


def of_cents(value: int, former: str) -> Decimal:
    assert former == "bigint"
    return Decimal(value) / 100


def run(topology: TridentTopology, log: str) -> Any:
    return run_all(topology, "in_process", log_dir=log)


def rows(topology: TridentTopology, log: str) -> list[Any]:
    with open_state(topology, "total", log_dir=log) as reader:
        return sorted(reader.get_tuples())


def test_a_changed_type_is_refused_without_migrate(state: StateSpec, log: str) -> None:
    run(cents(state), log)
    with pytest.raises(
        TopologyChangedError, match=r"Sum\(n: bigint\) -> Sum\(euros: decimal.*\n +To do: count again beside it"
    ):
        start(euros(state), "in_process", log_dir=log)


def test_values_are_migrated_as_they_are_read_and_written(state: StateSpec, log: str) -> None:
    run(cents(state), log)
    run(euros(state, of_cents), log)
    assert rows(euros(state, of_cents), log) == [("a", Decimal("0.04")), ("b", Decimal("0.02"))]
    more = [*ROWS, ["a", 5], ["c", 7]]
    run(euros(state, of_cents, more), log)
    assert rows(euros(state, of_cents), log) == [("a", Decimal("0.09")), ("b", Decimal("0.02")), ("c", Decimal("0.07"))]
    with pytest.raises(TopologyChangedError, match="decimal.* -> .*bigint"):
        start(cents(state), "in_process", log_dir=log)


def test_after_a_pass_migrate_can_go(state: StateSpec, log: str) -> None:
    run(cents(state), log)
    run(euros(state, of_cents), log)
    with pytest.raises(TopologyError, match="has values of former types \\(bigint\\): declare it with migrate="):
        start(euros(state), "in_process", log_dir=log)
    done = migrate_state(euros(state, of_cents), "total", log_dir=log)
    assert (done.txid, done.rows, done.written) == (2, 2, 2)
    run(euros(state, None, [*ROWS, ["a", 5]]), log)
    assert rows(euros(state), log) == [("a", Decimal("0.09")), ("b", Decimal("0.02"))]


def test_a_wider_type_needs_no_function(state: StateSpec, log: str) -> None:
    def most(type_: str, *more: list[Any]) -> TridentTopology:
        return totals(state, [*ROWS, *more], "n", Max(), of=f"n: {type_}")

    run(most("int"), log)
    run(most("bigint", ["a", 1 << 40]), log)
    assert rows(most("bigint"), log) == [("a", 1 << 40), ("b", 2)]
    with pytest.raises(TopologyChangedError, match=r"bigint -> n: int\n +To do: declare 'n' as bigint"):
        start(most("int"), "in_process", log_dir=log)


def test_a_struct_of_fields_gets_others(state: StateSpec, log: str) -> None:
    def last(*fields: str, rows: list[list[Any]] = ROWS) -> TridentTopology:
        return totals(state, rows, fields, Last(), each=(str, "note: string"))

    run(last("k", "n"), log)
    wider = last("k", "n", "note", rows=[*ROWS, ["c", 7]])
    run(wider, log)
    assert rows(wider, log)[0] == ("a", {"k": "a", "n": 3, "note": None})
    assert rows(wider, log)[2] == ("c", {"k": "c", "n": 7, "note": "7"})
    run(last("note", "n", rows=[*ROWS, ["c", 7]]), log)
    assert rows(last("note", "n"), log)[2] == ("c", {"note": "7", "n": 7})


def test_three_types_are_there_at_once(state: StateSpec, log: str) -> None:
    def to_text(value: Any, former: str) -> str:
        return f"{former}: {value}"

    def texts(rows: list[list[Any]]) -> TridentTopology:
        return totals(state, rows, "text", Last(), each=(str, "text: string"), migrate=to_text)

    run(cents(state), log)
    run(euros(state, of_cents, [*ROWS, ["c", 7]]), log)
    run(texts([*ROWS, ["c", 7], ["d", 8]]), log)
    found = rows(texts(ROWS), log)
    assert [key for key, _ in found] == ["a", "b", "c", "d"]
    assert [value.partition(":")[0] for _, value in found] == ["bigint", "bigint", "decimal(38,2)", "8"]


def test_what_a_function_raises_or_returns_wrongly_writes_nothing(state: StateSpec, log: str) -> None:
    run(cents(state), log)
    for migrate, text in ((lambda value, former: value / 0, "ZeroDivisionError"), (lambda value, former: "x", "'x'")):
        with pytest.raises(BatchFailedError, match=text):
            run(euros(state, migrate, [*ROWS, ["a", 5]]), log)
        with pytest.raises(StateError, match=text):
            migrate_state(euros(state, migrate), "total", log_dir=log)
    run(euros(state, of_cents, [*ROWS, ["a", 5]]), log)
    assert rows(euros(state, of_cents), log) == [("a", Decimal("0.09")), ("b", Decimal("0.02"))]


def test_a_state_with_values_of_two_types_moves(state: StateSpec, log: str, tmp_path: Path) -> None:
    other = sqlite_state(str(tmp_path / "other.sqlite"))
    run(cents(state), log)
    run(euros(state, of_cents), log)
    move_state(euros(state, of_cents), "total", euros(other, of_cents), log_dir=log)
    run(euros(other, of_cents, [*ROWS, ["a", 5]]), log)
    assert rows(euros(other, of_cents), log) == [("a", Decimal("0.09")), ("b", Decimal("0.02"))]


@pytest.mark.slow
def test_a_table_of_one_type_is_refused_before_anything_is_recorded(log: str, tmp_path: Path) -> None:
    table = DeltaState.opaque(tmp_path / "table")
    run(cents(table), log)
    with pytest.raises(TopologyError, match="is in columns of its type"):
        start(euros(table, of_cents), "in_process", log_dir=log)
    run(cents(table, [*ROWS, ["a", 5]]), log)
    assert rows(cents(table), log) == [("a", 9), ("b", 2)]


@pytest.mark.slow
def test_values_are_migrated_by_a_move_where_a_table_has_one_type(log: str, tmp_path: Path) -> None:
    old, new = DeltaState.opaque(tmp_path / "old"), DeltaState.opaque(tmp_path / "new")
    run(cents(old), log)
    assert move_state(cents(old), "total", euros(new, of_cents), log_dir=log).written == 2
    assert move_state(cents(old), "total", euros(new, of_cents), log_dir=log).rows is None
    assert rows(euros(new), log) == [("a", Decimal("0.04")), ("b", Decimal("0.02"))]
    run(euros(new, None, [*ROWS, ["a", 5]]), log)
    assert rows(euros(new), log) == [("a", Decimal("0.09")), ("b", Decimal("0.02"))]


def test_another_key_is_refused_all_the_same(state: StateSpec, log: str) -> None:
    run(cents(state), log)
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("k: string, n: bigint", 2, *ROWS))
    stream.group_by("n").persistent_aggregate(state, Count(), "total", migrate=lambda value, former: value)
    with pytest.raises(TopologyChangedError, match=r"key \(k: string\) -> \(n: bigint\)"):
        start(topology, "in_process", log_dir=log)


def wrong(value: Any, former: str) -> bool:
    return bool(value)


@pytest.mark.parametrize(
    ("kind", "migrate", "text"),
    [
        ("opaque", "wider", "migrate='wider' is not a function"),
        ("transactional", of_cents, "migrate=a function takes an opaque state"),
        ("opaque", wrong, "migrate=a function returns boolean, and 'total' is declared as bigint"),
    ],
)
def test_a_migration_that_cannot_be_is_refused_at_the_call(tmp_path: Path, kind: str, migrate: Any, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        cents(sqlite_state(str(tmp_path / "db"), kind), migrate=migrate)


FORMER: dict[str, dict[str, Any]] = {
    "a count": {"rows": Count()},
    "two": {"sum": Sum("n"), "rows": Count()},
    "wide ones": {"mean": Avg("n"), "top": TopN(2, "n"), "sd": StdDev("n")},
}
FURTHER: dict[str, Any] = {
    "Sum": Sum("n"), "Count": Count(), "Max": Max("n"), "Min": Min("n"), "Avg": Avg("n"), "StdDev": StdDev("n"),
    "ArgMax": ArgMax("k", by="n"), "ArgMin": ArgMin("k", by="n"), "TopN": TopN(2, "n"), "TopBy": TopN(2, "k", by="n"),
    "Collect": Collect("n"), "CountDistinct": CountDistinct("n"), "First": ("n", First()), "Last": ("n, k", Last(by="n")),
}  # fmt: skip


def several(state: StateSpec, aggregates: dict[str, Any], rows: list[list[Any]]) -> TridentTopology:
    return totals(state, rows, aggregates)


@pytest.mark.parametrize("before", FORMER)
def test_further_aggregates_of_any_kind_begin_with_the_next_tuple(before: str, state: StateSpec, log: str) -> None:
    run(several(state, FORMER[before], ROWS), log)
    more, both = [*ROWS, ["c", 6], ["a", 5], ["a", 7]], {**FORMER[before], **FURTHER}
    run(several(state, both, more), log)
    found = dict(rows(several(state, both, more), log))
    for aggregates, of in ((FORMER[before], more), (FURTHER, [["a", 5], ["a", 7]])):
        wanted = run_all(several(MemoryMapState.opaque(), aggregates, of), "in_process").state("total").multi_get(["a"])
        assert [{part: found["a"][part] for part in wanted[0]}] == wanted
    assert {found["b"][name] for name in FURTHER} == {None}


def test_an_aggregate_of_another_kind_is_refused_before_anything_is_written(state: StateSpec, log: str) -> None:
    def means(aggregate: Any, rows: list[list[Any]] = ROWS) -> TridentTopology:
        return totals(state, rows, aggregate, of="n: double")

    run(means({"x": Sum("n")}), log)
    for other in (Avg("n"), Max("n")):
        with pytest.raises(TopologyChangedError, match=r"'x' Sum\(n: double\) -> .*\n +To do: give what is new a name"):
            start(means({"y": Count(), "x": other}), "in_process", log_dir=log)
    with pytest.raises(TopologyChangedError, match=r'rename=\{"x": "y"\}'):
        start(means({"y": Sum("n")}), "in_process", log_dir=log)
    run(means({"x": Sum("n")}, [*ROWS, ["a", 5.0]]), log)  # the former declaration goes on
    assert rows(means({"x": Sum("n")}), log)[0] == ("a", {"x": 9.0})
