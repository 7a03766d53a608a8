"""ReplayCheck: what does not repeat itself is found, with its step and tuple; what does repeat itself gives no alarm."""

import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import (
    FailTimes,
    Keep,
    OneSpout,
    RowsSpout,
    RowsState,
    keep,
    operation,
    run_all,
    start,
    touch,
)
from tests.run.random_topologies import Random
from trident import Fields, Stream, TridentTopology
from trident.engine.fragment_runs import PutBack
from trident.errors import BatchFailedError, ConfigError, ReplayDiffersError
from trident.observe import ReplayDiffered, TopologyListener
from trident.operations import (
    CombinerAggregator,
    Count,
    First,
    SessionWindow,
    Sum,
    TumblingCountWindow,
    TumblingDurationWindow,
    arrow_function,
)
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt
from trident.testing import TopologyTestDriver

ROWS = [("n", 5), ("s", 2), ("n", 7), ("e", 2)]
_numbers = itertools.count()


def clocked(amount: int) -> float:
    return time.time()


def rounded_clock(amount: int) -> int:
    return time.time_ns()


def drawn(amount: int) -> float:
    return random.random()


def numbered(amount: int) -> float:
    return float(next(_numbers))


def remembered(amount: int, seen: list[int] = []) -> float:  # noqa: B006  the mistake that is to be found
    seen.append(amount)
    return float(len(seen))


class Cached:
    """Remembers in itself how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, amount: int) -> float:
        self.calls += 1
        return self.calls / 2


FirstSeen = operation(  # keeps the value that it meets first: a result of the order
    "FirstSeen", CombinerAggregator,
    init=lambda row: int(row[0]), combine=lambda one, other: one, zero=lambda: None,
)  # fmt: skip
# Gives the members of a set in the order in which the set has them, which follows their insertion where hashes collide.
InSetOrder = operation(
    "InSetOrder", CombinerAggregator, "array<bigint>",
    init=lambda row: [int(row[0])], combine=lambda one, other: list({*one, *other}), zero=list,
)  # fmt: skip


def fed() -> tuple[TridentTopology, Stream]:
    """Return a topology, and its stream of sales, for a driver to feed."""
    topology = TridentTopology("sales")
    return topology, topology.new_stream("sales", FixedBatchSpout("shop: string, amount: bigint", 1, *ROWS[:1]))


def sales(
    function: Callable[..., Any], type_: str = "double", spout_type: SpoutType = SpoutType.TRANSACTIONAL
) -> TridentTopology:
    """Return a topology that adds up what a function makes of each amount, by shop."""
    topology = TridentTopology("sales")
    rows = topology.new_stream("sales", RowsSpout("shop: string, amount: bigint", {1: ROWS}, spout_type))
    made = rows.each("amount", function, f"made: {type_}").name("made")
    made.group_by("shop").persistent_aggregate(MemoryMapState.opaque(), "made", Sum(), "total")
    return topology


def checked(topology: TridentTopology, *rows: Any) -> ReplayDiffersError:
    """Return what `check_replays` raises after a batch of these rows."""
    with TopologyTestDriver(topology) as driver:
        driver.feed("sales", *(rows or ROWS))
        driver.run()
        with pytest.raises(ReplayDiffersError) as raised:
            driver.check_replays()
    return raised.value


@pytest.mark.parametrize("function", [clocked, drawn, numbered, remembered])
@pytest.mark.parametrize("spout_type", [SpoutType.TRANSACTIONAL, SpoutType.OPAQUE])
def test_a_step_with_other_results_is_named_with_its_tuple(function: Callable[..., Any], spout_type: SpoutType) -> None:
    error = checked(sales(function, spout_type=spout_type))
    assert (error.topology, error.txid, error.step) == ("sales", 1, f"sales/{function.__name__}")
    assert error.row == "[shop='n', amount=5]"
    assert "of [shop='n', amount=5] it makes [shop='n', amount=5, made=" in str(error)


def test_a_clock_of_nanoseconds_and_an_object_that_counts_are_found() -> None:
    assert checked(sales(rounded_clock, "bigint")).step == "sales/rounded_clock"
    assert checked(sales(Cached())).step == "sales/Cached"


def test_the_first_step_that_differs_is_named_and_a_filter_by_chance_too() -> None:
    topology, rows = fed()
    kept = rows.each("amount", lambda amount: amount + 1, "more: bigint").filter(
        "more", lambda more: next(_numbers) % 3 > 0
    )
    keep(kept.each("more", drawn, "made: double").aggregate("made", Sum(), "sum"))
    assert checked(topology).step == "sales/each/filter"


def test_what_a_vectorised_function_makes_of_a_whole_table_is_found() -> None:
    @arrow_function("share: double")
    def share_of_table(amount: pa.Array) -> pa.Array:
        return pa.array([each / sum(amount.to_pylist()) for each in amount.to_pylist()])

    topology, rows = fed()
    shares = rows.each("amount", share_of_table)
    shares.group_by("shop").persistent_aggregate(MemoryMapState(), "share", Sum(), "total")
    assert checked(topology, ("a", 1), ("b", 2), ("c", 3), ("d", 4)).step == "sales/share_of_table"


def of_order(aggregator: Any) -> TridentTopology:
    topology, rows = fed()
    rows.group_by("shop").persistent_aggregate(MemoryMapState(), "amount", aggregator, "kept")
    return topology


def test_an_aggregator_that_depends_on_the_order_is_named_with_its_key() -> None:
    error = checked(of_order(FirstSeen()))
    assert (error.step, error.row) == ("sales/FirstSeen@kept", None)
    assert error.difference.endswith("in another order: [shop='n', kept=5], then [shop='n', kept=7]")


def test_the_order_of_a_set_is_found() -> None:
    error = checked(of_order(InSetOrder()), ("n", 8), ("n", 0), ("n", 16))
    assert "in another order: [shop='n', kept=[" in str(error)


def test_an_aggregator_within_the_batch_is_named_behind_its_exchange() -> None:
    topology, rows = fed()
    keep(rows.group_by("shop").aggregate("amount", FirstSeen(), "first"))
    error = checked(topology)
    assert (error.step, error.row) == ("sales/FirstSeen:part", None)
    assert "in another order: [shop='n', first=" in str(error)


def test_a_built_in_that_goes_by_the_order_gives_no_alarm_but_a_clock_before_it_does() -> None:
    with TopologyTestDriver(of_order(First())) as driver:
        driver.feed("sales", *ROWS)
        driver.run()
        assert driver.check_replays() == 1
    topology, rows = fed()
    firsts = rows.each("amount", clocked, "at: double").group_by("shop")
    firsts.persistent_aggregate(MemoryMapState(), "at", First(), "kept")
    assert checked(topology).step == "sales/clocked"


def test_rounding_gives_no_alarm() -> None:
    topology = sales(lambda amount: amount / 3)
    with TopologyTestDriver(topology) as driver:
        driver.feed("sales", *(("n", amount) for amount in [10**9, 1, 7, -(10**6), 3, 5] * 20))
        driver.run()
        assert driver.check_replays() == 1


def event_time_topology(function: Callable[..., Any]) -> TridentTopology:
    """Return a topology with a window by event time, a join over time and a state of several partitions behind a function."""
    (topology, rows), second = fed(), timedelta(seconds=1)
    made = rows.each("amount", function, "made: double").each("amount", lambda amount: amount * 500, "at: bigint")
    window = TumblingDurationWindow.of(second).by_event_time("at")
    made.window(window, MemoryMapState(), "made", Sum(), "sum")
    made.group_by("shop").window(SessionWindow.of(second, "at"), MemoryMapState(), "made", Sum(), "of_session")
    late_too = TumblingDurationWindow.of(second).by_event_time("at")
    made.group_by("shop").window_with_late_rows(late_too, MemoryMapState(), "made", Sum(), "with_late")
    made.window(TumblingCountWindow.of(3), MemoryMapState(), "made", Sum(), "of_three")
    names = "shop, made, at, other, later"
    one, two = made.project("shop", "made", "at"), made.project("shop", "made", "at")
    within = (timedelta(0), second)
    topology.join_within(one, "shop", two, "shop", names, times=("at", "at"), within=within, delay=second)
    kept = RowsState()
    made.partition_by("shop").parallelism_hint(3).partition_persist(
        kept, ["shop", "made"], Keep(), "a: string, b: double"
    ).parallelism_hint(2)
    return topology


def test_windows_joins_over_time_and_rows_in_partitions_are_compared_too() -> None:
    with TopologyTestDriver(event_time_topology(lambda amount: amount / 3)) as driver:
        driver.feed("sales", *ROWS, *ROWS)
        driver.run()
        assert driver.check_replays() == 1
    assert checked(event_time_topology(drawn)).step == "sales/drawn"


@pytest.mark.slow
def test_twenty_random_topologies_give_no_alarm() -> None:
    for seed in range(20):
        topology = TridentTopology("random")
        case = Random(topology, seed)
        running = run_all(topology, "in_process", parallelism=1, verify_replays=1.0)
        case.compare()
        assert not [str(error.text) for error in running.errors], (seed, case.steps)
        assert running.status["replays"] == {"checked": 2, "skipped": 0, "differed": 0}, (seed, case.steps)


class Told(TopologyListener):
    def __init__(self) -> None:
        self.events: list[ReplayDiffered] = []

    def on_replay_differed(self, event: ReplayDiffered) -> None:
        self.events.append(event)


def test_a_running_topology_tells_of_a_step_once_and_counts(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    spout = FixedBatchSpout("shop: string, amount: bigint", 2, *([row] for row in ROWS))
    topology = TridentTopology("sales")
    made = topology.new_stream("sales", spout).each("amount", drawn, "made: double")
    total = made.group_by("shop").persistent_aggregate(MemoryMapState.opaque(), "made", Sum(), "total")
    with (
        caplog.at_level(logging.WARNING),
        topology.start(engine=engine, verify_replays=1.0, max_spout_pending=1, listeners=[told]) as running,
    ):
        running.process_all_available()
        assert running.status["replays"] == {"checked": 2, "skipped": 0, "differed": 2}
        assert running.pages.status().as_mapping()["replays"] == running.status["replays"]
        assert 0 < running.state(total).multi_get(["s"])[0] < 1
    (event,) = told.events
    assert (event.txid, event.step, event.row, event.reordered) == (1, "sales/drawn", "[shop='n', amount=5]", False)
    assert event.as_dict()["step"] == "sales/drawn"
    assert [record.message for record in caplog.records if "gives other results" in record.message] == [str(event)]
    assert [error.component for error in running.errors] == ["sales/drawn"]


class Touching(OneSpout):
    """An opaque spout whose emitter counts in a folder how often it reads; the rows are other ones each time."""

    fields, spout_type, is_quick = Fields("shop: string, amount: bigint"), SpoutType.OPAQUE, False

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> list[int]:
        return [1, 2]

    def emit(self, part: int) -> Iterator[pa.Table]:
        yield pa.table({"shop": ["n", "s"], "amount": [touch(self.folder), part]})


def test_the_rows_of_an_opaque_spout_are_read_once_and_peeks_are_not_called_again(tmp_path: Path) -> None:
    (reads := tmp_path / "reads").mkdir()
    (peeks := tmp_path / "peeks").mkdir()
    seen, topology = str(peeks), TridentTopology("sales")
    stream = topology.new_stream("sales", Touching(reads)).peek(lambda row: touch(seen))
    stream.aggregate("amount", Sum(), "sum").persistent_aggregate(MemoryMapState.opaque(), "sum", Sum(), "total")
    running = run_all(topology, "in_process", verify_replays=1.0)
    assert running.status["replays"] == {"checked": 1, "skipped": 0, "differed": 0}
    assert (len(list(reads.iterdir())), len(list(peeks.iterdir()))) == (2, 4)


def test_a_batch_that_raises_is_not_compared() -> None:
    with TopologyTestDriver(sales(lambda amount: 1 / (amount - 5))) as driver:
        driver.feed("sales", ("n", 7))
        driver.feed("sales", ("n", 5))
        with pytest.raises(BatchFailedError):
            driver.run()
        assert driver.check_replays() == 1


def test_a_try_after_a_failed_one_is_not_checked(tmp_path: Path) -> None:
    topology = TridentTopology("sales")
    rows = topology.new_stream("sales", FixedBatchSpout("shop: string", 1, ["n"], ["s"]))
    rows.each("shop", FailTimes(tmp_path, "n", 1, RuntimeError("once")), "same").persistent_aggregate(
        MemoryMapState.opaque(), Count(), "total"
    )
    running = run_all(topology, "in_process", verify_replays=1.0, max_spout_pending=1, max_batch_attempts=3)
    assert (running.txid, running.status["failures"]) == (2, 1)
    assert running.status["replays"] == {"checked": 1, "skipped": 0, "differed": 0}


def test_a_second_run_that_fails_ends_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    def once(amount: int) -> float:
        if next(_numbers) % 2:
            raise ValueError("every other time")
        return 1.0

    global _numbers
    _numbers = itertools.count()
    topology = TridentTopology("sales")
    rows = topology.new_stream("sales", RowsSpout("shop: string, amount: bigint", {1: ROWS[:1]}))
    rows.each("amount", once, "made: double").persistent_aggregate(MemoryMapState.opaque(), "made", Sum(), "total")
    running = run_all(topology, "in_process", verify_replays=1.0)
    assert running.txid == 1
    assert running.status["replays"] == {"checked": 0, "skipped": 1, "differed": 0}
    assert "could not be processed twice: step 'sales/once': ValueError: every other time" in caplog.text


def test_a_share_of_the_batches_is_chosen_and_always_the_same() -> None:
    with start(sales(lambda amount: 1.0), "in_process", verify_replays=0.25) as running:
        check = running.opened.replays
        assert check is not None
        parts: Any = [("sales", None)]
        chosen = [txid for txid in range(1, 2001) if check.chooses(txid, parts, 0)]
        assert 400 < len(chosen) < 600
        assert chosen == [txid for txid in range(1, 2001) if check.chooses(txid, parts, 1000)]
        assert not check.chooses(chosen[0], parts, 1 << 30)
        assert not check.chooses(chosen[0], [("sales", PutBack())], 0)
        assert not check.chooses(chosen[0], [], 0)


def test_a_share_is_from_0_to_1_and_0_by_default() -> None:
    with start(sales(lambda amount: 1.0), "in_process") as running:
        assert running.opened.replays is None
    with pytest.raises(ConfigError, match=r"verify_replays=1.5: give a share from 0 to 1"):
        sales(drawn).start(verify_replays=1.5)
