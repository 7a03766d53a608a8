"""`state_query(..., sees="this_batch")`: the state as after the query's own batch, whatever failed and was replayed."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.topology_runs import RowsSpout, keep, run_all
from trident import Stream, TopologyError, TridentTopology
from trident.operations import Count, Last, MapGet, SnapshotGet, Sum, TupleCollectionGet
from trident.plan import make_plan
from trident.spout import SpoutType
from trident.testing import TopologyTestDriver

WORDS = {1: [("a",), ("a",), ("b",)], 2: [("a",), ("c",)], 3: []}


def words(topology: TridentTopology, batches: Any = None, kind: SpoutType = SpoutType.TRANSACTIONAL) -> Stream:
    return topology.new_stream("s", RowsSpout("word: string", batches or {}, kind))


@pytest.mark.parametrize(("kind", "partitions"), [("opaque", 1), ("opaque", 3), ("transactional", 3)])
def test_a_query_sees_all_of_its_batch_and_by_default_none(kind: str, partitions: int, engine: str) -> None:
    topology = TridentTopology("t")
    stream = words(topology, WORDS)
    state = getattr(MemoryMapState, kind)()
    counts = stream.group_by("word").persistent_aggregate(state, Count(), "count").parallelism_hint(partitions)
    now = keep(stream.state_query(counts, "word", MapGet(), "count", sees="this_batch"), "now")
    before = (
        keep(stream.group_by("word").state_query(counts, "word", MapGet(), "count"), "before")
        if kind == "opaque"
        else None
    )
    run_all(topology, engine)
    assert {txid: sorted(rows) for txid, rows in now.batches.items() if rows} == {
        1: [("a", 2), ("a", 2), ("b", 1)],
        2: [("a", 3), ("c", 1)],
    }
    if before is not None:
        assert sorted(before.batches[2]) == [("a", 2), ("c", None)]


def test_single_values_and_listings_are_of_this_batch_too(engine: str) -> None:
    topology = TridentTopology("t")
    stream = words(topology, {1: [("a",)], 2: [("b",)]})
    total = stream.persistent_aggregate(MemoryMapState(), Count(), "total")
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    seen = stream.state_query(total, SnapshotGet(), "total", sees="this_batch")
    listed = keep(seen.state_query(counts, TupleCollectionGet(), "key, count", sees="this_batch"))
    run_all(topology, engine)
    assert listed.batches[1] == [("a", 1, "a", 1)]
    assert sorted(listed.batches[2]) == [("b", 2, "a", 1), ("b", 2, "b", 1)]


def test_states_wait_for_each_other_in_the_order_of_the_plan(engine: str) -> None:
    """The second state is fed by a query of the first, and is asked by a stream that is declared before both are updated."""
    topology = TridentTopology("t")
    stream, other = words(topology, {1: [("a",), ("a",)], 2: [("a",)]}), topology.new_stream(
        "o", RowsSpout("ask: bigint", {1: [(2,)], 2: [(3,)]})
    )  # fmt: skip
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    levels = stream.state_query(counts, "word", MapGet(), "count", sees="this_batch").group_by("count")
    reached = levels.persistent_aggregate(MemoryMapState(), Count(), "reached")
    asked = keep(other.state_query(reached, "ask", MapGet(), "reached", sees="this_batch"))
    plan = make_plan(topology.graph())
    assert [node.id for node in plan.commits] == [
        "s/Count@count", "s/MapGet@count", "s/MapGet@count/Count@reached", "o/MapGet@reached", "o/MapGet@reached/Keep@kept",
    ]  # fmt: skip
    run_all(topology, engine)
    assert asked.batches == {1: [(2, 2)], 2: [(3, 1)]}
    assert "query count: MapGet(word) -> count: bigint, sees this batch" in topology.explain()


POINTS = ["process", "begin_commit:count", "put:count", "commit:count", "begin_commit:seen", "commit:seen", "record"]
ROWS_OF_A_BATCH = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)
LIVES = st.lists(
    st.tuples(ROWS_OF_A_BATCH, st.lists(st.tuples(st.sampled_from(POINTS), ROWS_OF_A_BATCH), max_size=2)), max_size=8
)


@pytest.mark.slow
@settings(max_examples=40)
@given(LIVES, st.booleans())
def test_a_replay_sees_its_own_batch_and_nothing_of_what_failed(life: Any, columns: bool) -> None:
    """Attempts hold other tuples each time; what the failed ones wrote stays in the store, and must not be seen."""
    topology = TridentTopology("t")
    stream = words(topology, kind=SpoutType.OPAQUE)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    if not columns:  # those are for one partition
        counts.parallelism_hint(2)
    seen = stream.state_query(counts, "word", MapGet(), "count", sees="this_batch")
    everything = stream.state_query(counts, TupleCollectionGet(), "key, count", sees="this_batch")
    total = seen.group_by("word").persistent_aggregate(MemoryMapState(), "count", Sum(), "seen")
    expected, sums, listings = Counter[str](), Counter[str](), []
    with TopologyTestDriver(topology, max_batch_attempts=9) as driver:
        for rows, failures in life:
            committed = rows
            driver.feed("s", *rows)
            for point, then in failures:
                driver.fail_at(point)
                result = driver.step()
                assert result is not None
                assert not result.committed
                driver.replay("s", *then)
                committed = then
            driver.run()
            expected.update(committed)
            for word in committed:
                sums[word] += expected[word]
            listings.append(sorted((word, key, n) for word in committed for key, n in expected.items()))
        assert dict(driver.state(total).get_tuples()) == dict(sums)
        assert [sorted(rows) for rows in driver.captured(everything).values()] == listings


@pytest.mark.parametrize("point", POINTS)
def test_a_transactional_state_shows_a_replay_what_the_first_attempt_saw(point: str) -> None:
    topology = TridentTopology("t")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")
    seen = stream.state_query(counts, "word", MapGet(), "count", sees="this_batch")
    total = seen.group_by("word").persistent_aggregate(MemoryMapState.transactional(), "count", Sum(), "seen")
    with TopologyTestDriver(topology) as driver:
        for txid in range(1, 4):
            driver.feed("s", "a", "b", "a")
            driver.fail_at(point)
            assert [result.committed for result in driver.run()] == [False, True]
            assert driver.captured(seen)[txid] == [("a", 2 * txid), ("b", txid), ("a", 2 * txid)]
        assert dict(driver.state(total).get_tuples()) == {"a": 2 * (2 + 4 + 6), "b": 1 + 2 + 3}


WRONG: dict[str, tuple[Callable[[TridentTopology, Stream, Any], Any], str]] = {
    "unknown": (
        lambda t, s, state: s.state_query(state, "word", MapGet(), "n", sees="now"),  # type: ignore[arg-type]
        "state_query got sees='now'; it is 'batch_before' or 'this_batch'",
    ),
    "static": (
        lambda t, s, state: s.state_query(
            t.new_static_state(MemoryMapState(), "fixed"), "word", MapGet(), "n: int", sees="this_batch"
        ),
        "state 'fixed' is static: no batch updates it; leave sees out",
    ),
    "a request": (
        lambda t, s, state: t.new_drpc_stream("ask").state_query(state, "args", MapGet(), "n", sees="this_batch"),
        "a request of DRPC function 'ask' is in no batch that updates state 'count'; leave sees out, and it sees the newest",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_with_what_to_do(case: str) -> None:
    call, text = WRONG[case]
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("word: string", 1, ("a",)))
    state = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with pytest.raises(TopologyError) as caught:
        call(topology, stream, state)
    assert text in str(caught.value)


def test_in_delta_in_a_window_of_crashes_nothing_is_needed_but_the_option(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("k: string, v: int", 2, ("a", 1), ("a", 2), ("a", 3), ("b", 4)))
    last = stream.group_by("k").persistent_aggregate(DeltaState.opaque(str(tmp_path / "d")), "v", Last(), "last")
    seen = keep(stream.state_query(last, "k", MapGet(), "last", sees="this_batch"))
    run_all(topology, "in_process", log_dir=str(tmp_path / "log"))
    assert seen.rows == [("a", 1, 2), ("a", 2, 2), ("a", 3, 3), ("b", 4, 4)]
