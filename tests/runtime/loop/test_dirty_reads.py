"""A query that may read what a failed attempt wrote, and feeds a state: refused by name, unless the read can be exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsSpout, RowsState, dict_state, start
from trident import Stream, TridentCollector, TridentState, TridentTopology, TridentTuple
from trident.errors import DirtyReadError, InexactPairingError
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count, MapGet, SnapshotGet, Sum
from trident.state import MapState, StateSpec, StateType, TransactionalMap
from trident.testing import TopologyTestDriver

POINTS = ["begin_commit:count", "put:count", "commit:count", "begin_commit:sum", "put:sum", "commit:sum", "record"]
KINDS = [kind.value for kind in StateType]


def seen_before(kind: str, fed: StateSpec | None = None) -> tuple[TridentTopology, TridentState]:
    """Count words, and add up over all tuples how often their word had come in the batches before."""
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    counts = words.group_by("word").persistent_aggregate(dict_state({}, kind), Count(), "count")
    return topology, add_up(words.state_query(counts, "word", MapGet(), "before"), fed)


def add_up(stream: Stream, fed: StateSpec | None = None) -> TridentState:
    spec = fed or MemoryMapState.opaque()
    return stream.filter("before", bool).persistent_aggregate(spec, "before", Sum(), "sum", state_name="sum")


def sum_after_a_failure(topology: TridentTopology, point: str, **settings: Any) -> int | None:
    """Run three batches of which the third one fails once; 3 is right."""
    with TopologyTestDriver(topology, **settings) as driver:
        for words in (["a"], ["a"], ["a"]):
            driver.feed("words", *words)
        driver.step()
        driver.step()
        driver.fail_at(point)
        driver.run()
        found: int | None = driver.state("sum").get()
        return found


@pytest.mark.parametrize("point", POINTS)
def test_an_opaque_state_is_read_as_of_the_batch_before_in_a_replay_too(point: str) -> None:
    assert sum_after_a_failure(seen_before("opaque")[0], point) == 3


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_read_of_another_kind_goes_wrong_after_a_failed_put(kind: str) -> None:
    wrong = {point for point in POINTS if sum_after_a_failure(seen_before(kind)[0], point, allow_inexact=True) != 3}
    assert wrong >= {"commit:count", "record"}


def test_such_a_read_is_refused_where_it_feeds_a_state() -> None:
    topology, _ = seen_before("transactional")
    with pytest.raises(
        DirtyReadError,
        match=r"query 'words/MapGet@count' reads state 'count', which is transactional, before the batch has updated it, "
        r"and feeds state 'sum': in a replay .* Make 'count' opaque, query it behind its own update .* allow_inexact=True",
    ):
        topology.start(engine="in_process")
    with pytest.raises(InexactPairingError), TopologyTestDriver(topology):
        pass


def described(topology: TridentTopology, state: str = "sum") -> dict[str, Any]:
    (found,) = (each for each in topology.describe() if each["state"] == state)
    pairing: dict[str, Any] = found["streams"]["words"]
    return pairing


def test_it_is_described_as_not_exact() -> None:
    topology, _ = seen_before("transactional")
    why = "query 'words/MapGet@count' may read from state 'count' what a failed attempt wrote, and feeds it"
    assert (described(topology)["guarantee"], described(topology)["why"]) == ("not exact", why)
    assert f"not exact (transactional spout, opaque state); {why}" in topology.explain()
    assert described(topology, "count")["exact"] is True
    assert described(seen_before("opaque")[0])["exact"] is True


def updated_first(point: str) -> TridentTopology:
    """The query is behind the update of the state that it reads."""
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")
    new = counts.new_values_stream().project("word")
    add_up(new.state_query(counts, "word", MapGet(), "before"), MemoryMapState.opaque())
    return topology


@pytest.mark.parametrize("point", POINTS)
def test_behind_its_update_a_state_is_read_as_after_the_batch_in_every_attempt(point: str) -> None:
    topology = updated_first(point)
    assert described(topology)["exact"] is True
    assert sum_after_a_failure(topology, point) == 1 + 2 + 3


def windowed(words: Stream, counts: TridentState) -> None:
    asked = words.state_query(counts, "word", MapGet(), "before")
    asked.tumbling_window(timedelta(days=1), Count(), "n").peek(print)


def far_behind(words: Stream, counts: TridentState) -> None:
    asked = words.state_query(counts, "word", MapGet(), "before").group_by("before").aggregate(Count(), "n").shuffle()
    first = asked.group_by("n").persistent_aggregate(MemoryMapState(), Count(), "m", state_name="first")
    first.new_values_stream().persistent_aggregate(MemoryMapState(), Count(), "k", state_name="second")


def back_into_itself(words: Stream, counts: TridentState) -> None:
    alone = words.persistent_aggregate(MemoryMapState.transactional(), Count(), "all")
    asked = words.state_query(alone, SnapshotGet(), "before")
    asked.group_by("before").persistent_aggregate(MemoryMapState.transactional(), Count(), "n")


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (windowed, "query 'words/MapGet@count' reads state 'count', .* feeds state 'n-window'"),
        (far_behind, "query 'words/MapGet@count' reads state 'count', .* feeds state 'first'"),
        (back_into_itself, "query 'words/SnapshotGet@all' reads state 'all', .* feeds state 'n'"),
    ],
)
def test_whatever_lies_between(declare: Callable[[Stream, TridentState], None], text: str) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"]))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")
    declare(words, counts)
    with pytest.raises(DirtyReadError, match=text):
        topology.start(engine="in_process")


class Rows(BaseQueryFunction[RowsState, int]):
    def batch_retrieve(self, state: RowsState, args: Sequence[TridentTuple]) -> Sequence[int]:
        return [len(state.rows)] * len(args)

    def execute(self, tuple: TridentTuple, result: int, collector: TridentCollector) -> None:
        collector.emit([result])


class RowsAt(RowsState):
    """Says what it held after a batch, so it is read as a map."""

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [len(self.rows)] * len(keys)

    def multi_get_at(self, keys: Sequence[Any], snapshot: Any) -> list[Any]:
        return [sum(len(rows) for txid, rows in self.batches.items() if txid <= snapshot.txid)] * len(keys)


class SingleRowsAt(RowsAt):
    def get(self) -> int:
        return len(self.rows)


class RowsOf(BaseQueryFunction[Any, int]):
    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[int]:
        return [state.multi_get([(0,)])[0]] * len(args)

    def execute(self, tuple: TridentTuple, result: int, collector: TridentCollector) -> None:
        collector.emit([result])


def over_rows(rows: RowsState, query: Any) -> TridentTopology:
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    kept = words.partition_persist(rows, Keep(), "x: string", state_name="count")
    add_up(words.state_query(kept, "word", query, "before: bigint"))
    return topology


def test_a_state_of_ones_own_is_read_exactly_if_it_knows_what_batches_left() -> None:
    with pytest.raises(DirtyReadError, match="reads state 'count', which is of a kind of its own, before the batch"):
        sum_after_a_failure(over_rows(RowsState(), Rows()), "record")
    assert sum_after_a_failure(over_rows(RowsState(), Rows()), "record", allow_inexact=True) == 1 + 3
    assert described(over_rows(RowsState(), Rows()))["guarantee"] == "unknown"
    with pytest.raises(DirtyReadError):  # its single value is the latest
        sum_after_a_failure(over_rows(SingleRowsAt(), RowsOf()), "record")
    for point in POINTS:
        assert sum_after_a_failure(over_rows(RowsAt(), RowsOf()), point) == 3


def test_what_flows_into_no_state_that_is_to_be_exact_is_let_through() -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"], ["a"]))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState.transactional(), Count(), "count")
    asked = words.state_query(counts, "word", MapGet(), "before")
    asked.peek(lambda row: None)
    kept = RowsState()
    asked.partition_persist(kept, Keep(), "word: string, before: bigint")
    topology.new_drpc_stream("f").state_query(counts, "args", MapGet(), "n")
    with start(topology, "in_process") as running:
        running.process_all_available()
    assert kept.rows == [("a", None), ("a", 1)]


class AddTwice(BaseStateUpdater[TransactionalMap]):
    """Emits what stands, as `multi_update` gives it."""

    def update_state(
        self, state: TransactionalMap, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        keys = [(row[0],) for row in tuples]
        state.multi_put(keys, [(old or 0) + 2 for old in state.multi_get(keys)])
        for (word,), value in zip(keys, state.multi_get(keys), strict=True):
            collector.emit([word, value])


@pytest.mark.parametrize("point", POINTS)
def test_two_states_in_a_chain_of_new_values_need_no_query(point: str) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    counts = words.partition_persist(
        dict_state({}, "transactional"), AddTwice(), "word: string, before: bigint", state_name="count"
    )
    add_up(counts.new_values_stream(), MemoryMapState.transactional())
    assert described(topology)["exact"] is True
    assert sum_after_a_failure(topology, point) == 2 + 4 + 6


class SeesAnotherKey(BaseStateUpdater[MapState[Any]]):
    """Counts under "a", and keeps in "seen" what "a" had before, if anything."""

    def update_state(self, state: MapState[Any], tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        (before,) = state.multi_get([("a",)])
        state.multi_put([("a",)], [(before or 0) + 1])
        if before is not None:
            state.multi_put([("seen",)], [before])


@pytest.mark.parametrize(("kind", "seen"), [("opaque", None), ("transactional", 1)])
def test_an_updater_that_reads_another_key_needs_an_opaque_state(kind: str, seen: int | None) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", RowsSpout("word: string", {}))
    words.partition_persist(dict_state({}, kind), SeesAnotherKey(), state_name="count")
    with TopologyTestDriver(topology) as driver:
        driver.feed("words", "a")
        driver.fail_at("record")
        driver.run()
        assert driver.state("count").multi_get(["a", "seen"]) == [1, seen]


def test_what_an_inexact_state_gives_makes_the_next_one_inexact() -> None:
    for spec, guarantee in ((MemoryMapState.non_transactional(), "not exact"), (RowsState(), "unknown")):
        topology = TridentTopology("t")
        words = topology.new_stream("words", RowsSpout("word: string", {}))
        first = words.partition_persist(spec, Keep(), "before: bigint", state_name="count")
        add_up(first.new_values_stream())
        found = described(topology)
        assert found["guarantee"] == guarantee
        assert found["why"] == "the new values of state 'count', which feed it, may differ in a replay"
