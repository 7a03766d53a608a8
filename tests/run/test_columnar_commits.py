"""A topology's sums go to a memory state as columns where they may, and downstream sees the new values."""

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryData, MemoryMapState
from states.memory.state import _kept
from trident import BatchFailedError, TridentTopology
from trident.engine.routing import RowFrame
from trident.engine.worker import Order, Program, run_entry
from trident.operations import Count, Max, Min, Sum
from trident.plan import make_plan
from trident.run.committing import CommittingProgram, committing_program
from trident.spout.interfaces import TransactionAttempt
from trident.state import Txid, Winners

ROWS = [("a", 1, 0.5), ("b", 2, -0.0), ("a", 3, float("inf")), ("a", 5, 0.25), (None, 7, 1.0), ("b", 9, 2.0)]
MOST = (1 << 63) - 1


@pytest.fixture(autouse=True)
def always_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.state.number_table._FEW_KEYS", 0)


def data_of(factory: MemoryMapState) -> MemoryData:
    (data,) = (data for (owner, _), kept in _kept.items() if owner == factory.id for data in kept.values())
    return data


def summed(rows: list[Any], aggregator: Any, value: str | None, *group: str) -> tuple[MemoryData, dict[Any, Any]]:
    """Run batches of two rows; return what the state is kept in, and its values by key."""
    topology, factory, seen = TridentTopology("columns"), MemoryMapState(), MemoryMapState()
    stream = topology.new_stream("rows", FixedBatchSpout("word: string, n: bigint, x: double", 2, *rows)).group_by(
        *group
    )
    given = () if value is None else (value,)
    state = stream.persistent_aggregate(factory, *given, aggregator, "total")
    latest = state.new_values_stream().group_by(*group).persistent_aggregate(seen, "total", Max(), "largest")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        values = {row[:-1]: row[-1] for row in running.state(state).get_tuples()}
        if not isinstance(aggregator, Min):  # what grows is largest at the end
            assert {row[:-1]: row[-1] for row in running.state(latest).get_tuples()} == values
    return data_of(factory), values


@pytest.mark.parametrize(
    ("aggregator", "value", "group", "expected"),
    [
        (Count(), None, ["word"], {("a",): 3, ("b",): 2, (None,): 1}),
        (Sum(), "n", ["word"], {("a",): 9, ("b",): 11, (None,): 7}),
        (Sum(), "x", ["word"], {("a",): float("inf"), ("b",): 2.0, (None,): 1.0}),
        (Max(), "n", ["word"], {("a",): 5, ("b",): 9, (None,): 7}),
        (Min(), "x", ["word"], {("a",): 0.25, ("b",): 0.0, (None,): 1.0}),
        (Count(), None, ["word", "n"], {(word, n): 1 for word, n, _ in ROWS}),
    ],
)
def test_a_total_is_kept_in_columns(aggregator: Any, value: str | None, group: list[str], expected: Any) -> None:
    data, values = summed(ROWS, aggregator, value, *group)
    assert values == expected
    assert data.values.columns is not None
    assert len(data.values.columns) == len(expected)


def test_other_keys_are_kept_in_a_dict() -> None:
    data, values = summed(ROWS, Count(), None, "x")
    assert values == {(x,): 1 for _, _, x in ROWS}
    assert data.values.columns is None


def test_a_null_total_goes_by_rows() -> None:
    data, values = summed([("a", None, 0.0), ("b", 1, 0.0), ("a", 2, 0.0)], Max(), "n", "word")
    assert (values, data.values.columns is None) == ({("a",): 2, ("b",): 1}, False)


def test_whole_numbers_may_be_summed_up_as_floating_ones() -> None:
    topology = TridentTopology("floating")
    stream = topology.new_stream("rows", FixedBatchSpout("n: bigint", 2, *[(MOST,)] * 4, (2**53 + 1,)))
    total = stream.persistent_aggregate(MemoryMapState(), "n", Sum(), "total: double")
    least = stream.persistent_aggregate(MemoryMapState(), "n", Min(), "least: double")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state(total).get() == pytest.approx(4.0 * MOST + 2**53)
        assert running.state(least).get() == 2.0**53


BEYOND: list[tuple[str, Any, Any, str, Any]] = [
    ("bigint", MOST, Sum(), "total", MOST + 1),
    ("bigint", -MOST, Sum(), "total", -MOST - 2),
    ("bigint", (1 << 31) - 1, Sum(), "total: int", 1 << 31),
    ("decimal(38,0)", Decimal(10**38 - 1), Sum(), "total", Decimal(10**38)),
    ("decimal(5,2)", Decimal("999.00"), Sum(), "total: decimal(5,2)", Decimal("1000.00")),
    ("float", 3e38, Sum(), "total: float", 6e38),
    ("bigint", MOST, {"sum": Sum("n"), "count": Count()}, "total", MOST + 1),
]


@pytest.mark.parametrize("store", ["opaque", "transactional", pytest.param("delta", marks=pytest.mark.slow)])
@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize(
    ("type_", "first", "aggregator", "output", "sum_"), BEYOND, ids=[str(one[0::3]) for one in BEYOND]
)
def test_a_sum_beyond_its_type_fails_the_batch_by_key(
    type_: str, first: Any, aggregator: Any, output: str, sum_: Any, in_one_batch: bool, store: str, tmp_path: Path
) -> None:
    topology = TridentTopology("beyond")
    factory = DeltaState(str(tmp_path / "state")) if store == "delta" else getattr(MemoryMapState, store)()
    rest = sum_ - first if isinstance(sum_, Decimal | float) else type(first)(sum_ - first)
    given_rows = [("b", first), ("a", first), ("c", rest), ("a", rest)]
    rows = FixedBatchSpout(f"word: string, n: {type_}", 4 if in_one_batch else 1, *given_rows)
    given = (aggregator,) if isinstance(aggregator, dict) else ("n", aggregator)
    state = topology.new_stream("rows", rows).group_by("word").persistent_aggregate(factory, *given, output)
    log: dict[str, Any] = {} if store != "delta" else {"log_dir": str(tmp_path / "log")}
    running = topology.start(engine="in_process", **log)
    with pytest.raises(BatchFailedError, match=r"on tuple \[word='a'\]: field 'total' is declared .*, but got"):
        running.process_all_available()
    committed = [] if in_one_batch else ["b", "a", "c"]
    assert [key for key in "bac" if running.state(state).multi_get([key])[0] is not None] == committed
    with suppress(BatchFailedError):
        running.stop()


def test_a_task_commits_by_columns_too() -> None:
    topology, factory = TridentTopology("tasks"), MemoryMapState()
    words = topology.new_stream("rows", FixedBatchSpout("word: string", 1, ["a"])).group_by("word")
    words.persistent_aggregate(factory, Count(), "n", state_name="counts")
    plan = make_plan(topology.graph())
    program = Program("tasks", plan.fragments, {}, {}, {}, plan.exchanges, plan.levels)
    made = committing_program(program, plan, ["counts"])
    (entry,) = made.commits
    table = pa.table({"word": ["a", "b"], "n": pa.array([2, 1], pa.int64())})
    frames = [RowFrame(entry, 0, 0, ("rows", 0, 0), table)]
    order = Order(TransactionAttempt(1, 1), txids={"counts": [Txid(1, 1, Winners(), "log", None)]})
    output = run_entry(CommittingProgram(made), order, entry, 0, frames)
    assert (output.failure, output.keys) == (None, {"counts": 2})
    assert data_of(factory).values.columns is not None
