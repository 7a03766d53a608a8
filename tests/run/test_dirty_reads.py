"""Where a state says its kind; a query that may read what a failed attempt wrote, and feeds a state, is refused."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import LRUMemoryMapState, MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import Keep, RowsSpout, RowsState, dict_state, operation, run_all, start
from trident import Stream, TridentCollector, TridentState, TridentTopology, TridentTuple
from trident.errors import ConfigError, DirtyReadError, InexactPairingError, TopologyError
from trident.log.log_reader import LogReader
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count, MapGet, SnapshotGet, Sum
from trident.plan import make_plan
from trident.run.placements import lasting_states
from trident.spout import SpoutType
from trident.state import MapState, MapStateFactory, SnapshottableMap, StateSpec, StateType, TransactionalMap
from trident.state.interfaces import state_of
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


Rows = operation(
    "Rows", BaseQueryFunction, None,
    batch_retrieve=lambda state, args: [len(state.rows)] * len(args),
    execute=lambda row, result, collector: collector.emit([result]),
)  # fmt: skip


class RowsAt(RowsState):
    """Says what it held after a batch, so it is read as a map."""

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [len(self.rows)] * len(keys)

    def multi_get_at(self, keys: Sequence[Any], snapshot: Any) -> list[Any]:
        return [sum(len(rows) for txid, rows in self.batches.items() if txid <= snapshot.txid)] * len(keys)


class SingleRowsAt(RowsAt):
    def get(self) -> int:
        return len(self.rows)


RowsOf = operation(
    "RowsOf", BaseQueryFunction, None,
    batch_retrieve=lambda state, args: [state.multi_get([(0,)])[0]] * len(args),
    execute=lambda row, result, collector: collector.emit([result]),
)  # fmt: skip


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
    run_all(topology, "in_process")
    assert kept.rows == [("a", None), ("a", 1)]


def add_twice(state: TransactionalMap, rows: Sequence[TridentTuple], collector: TridentCollector) -> None:
    """Emit what stands, as `multi_update` gives it."""
    keys = [(row[0],) for row in rows]
    state.multi_put(keys, [(old or 0) + 2 for old in state.multi_get(keys)])
    for (word,), value in zip(keys, state.multi_get(keys), strict=True):
        collector.emit([word, value])


AddTwice = operation("AddTwice", BaseStateUpdater, None, update_state=add_twice)


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


def see_another_key(state: MapState[Any], rows: Sequence[TridentTuple], collector: TridentCollector) -> None:
    """Count under "a", and keep in "seen" what "a" had before, if anything."""
    (before,) = state.multi_get([("a",)])
    state.multi_put([("a",)], [(before or 0) + 1])
    if before is not None:
        state.multi_put([("seen",)], [before])


SeesAnotherKey = operation("SeesAnotherKey", BaseStateUpdater, None, update_state=see_another_key)


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


class KindOfRows(RowsState):
    kind: Any = None


class Factory:
    """Makes a state of your own; both may say a kind."""

    in_memory = True

    def __init__(self, of_state: Any = None, of_factory: Any = None) -> None:
        self.state = KindOfRows()
        self.state.kind = of_state
        if of_factory is not None:
            self.kind = of_factory

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> KindOfRows:
        return self.state


def keeping(factory: Any, promise: SpoutType | str = SpoutType.OPAQUE) -> TridentTopology:
    topology = TridentTopology("t")
    spout = FixedBatchSpout("word: string", 1, ["a"])
    spout.spout_type = promise  # type: ignore[assignment]  # a name is as good
    topology.new_stream("words", spout).partition_persist(StateSpec(factory), Keep(), "x: string", state_name="kept")
    return topology


NAMES = ["transactional", StateType.TRANSACTIONAL, "non_transactional", "non-transactional"]


@pytest.mark.parametrize("kind", NAMES, ids=str)
@pytest.mark.parametrize("place", ["of_state", "of_factory"])
def test_a_kind_counts_wherever_and_however_it_is_said(place: str, kind: Any) -> None:
    with pytest.raises(InexactPairingError, match="has an opaque spout and feeds state 'kept', which is (non-)?trans"):
        start(keeping(Factory(**{place: kind})), "in_process")


@pytest.mark.parametrize("factory", [Factory("opaque"), Factory(None, "opaque"), Factory("opaque", StateType.OPAQUE)])
def test_an_opaque_state_of_ones_own_takes_an_opaque_spout(factory: Factory) -> None:
    run_all(keeping(factory), "in_process")
    assert factory.state.rows == [("a",)]


@pytest.mark.parametrize("place", ["of_state", "of_factory"])
@pytest.mark.parametrize("kind", ["exactly-once", "OPAQUE", 3, ""])
def test_an_unknown_kind_is_refused(place: str, kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"state kind {kind!r} is unknown; use one of 'non-transactional', 'transac"):
        start(keeping(Factory(**{place: kind})), "in_process", allow_inexact=True)


def test_a_window_is_refused_a_kind_that_is_said_by_name() -> None:
    stream = TridentTopology("t").new_stream("words", FixedBatchSpout("word: string", 1, ["a"]))
    with pytest.raises(
        TopologyError, match="state 'n-window', which is transactional; only an opaque state lets a replay"
    ):
        stream.tumbling_window(9, StateSpec(Factory(None, "transactional")), Count(), "n")


@pytest.mark.parametrize("keeps", [None, False, True])
def test_a_state_of_ones_own_needs_durable_definitions_unless_it_keeps_the_attempts(keeps: bool | None) -> None:
    factory = Factory("opaque")
    if keeps is not None:
        factory.state.keeps_attempts = lambda: keeps  # type: ignore[attr-defined]
    topology = keeping(factory, SpoutType.TRANSACTIONAL)
    assert bool(lasting_states(make_plan(topology.graph()), {"kept": [state_of(factory.state)]})) is (keeps is not True)
    if keeps is False:
        with pytest.raises(InexactPairingError, match="feeds state 'kept', which is opaque without attempts"):
            start(keeping(factory), "in_process")


def test_two_kinds_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"state 'kept' \(KindOfRows of Factory\): two kinds are declared, 'opaque' and 'transactional'; declare one",
    ):
        start(keeping(Factory("opaque", "transactional")), "in_process")


def test_the_kind_that_is_said_is_what_the_log_records(tmp_path: Path) -> None:
    for place in ({"of_state": "opaque"}, {"of_factory": StateType.OPAQUE}):
        log_dir = tmp_path / next(iter(place))
        run_all(keeping(Factory(**place)), "in_process", log_dir=str(log_dir))
        assert LogReader(log_dir).refresh().layouts == {"kept": (1, "opaque")}


def test_a_wrapper_says_what_it_wraps() -> None:
    class Mine(TransactionalMap):
        kind = "transactional"  # type: ignore[assignment]

    assert SnapshottableMap(Mine(DictMap({}))).kind is StateType.TRANSACTIONAL


@pytest.mark.parametrize(
    "factory",
    [
        MapStateFactory(dict_state({}).factory.backing_map_factory, "transactional"),  # type: ignore[arg-type, attr-defined]
        MemoryMapState(kind="transactional"),  # type: ignore[arg-type]
        LRUMemoryMapState(9, kind="transactional"),  # type: ignore[arg-type]
    ],
)
def test_the_factories_of_ours_take_names_too(factory: Any, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"], ["a"])).group_by("word")
    state = words.persistent_aggregate(factory, Count(), "n")
    assert topology.describe()[0]["kind"] == "transactional"
    assert run_all(topology, "in_process", log_dir=str(tmp_path)).state(state).multi_get(["a"]) == [2]


def test_what_a_spout_promises_is_said_by_name_too() -> None:
    with pytest.raises(InexactPairingError, match=r"\(opaque spout, transactional state\)"):
        start(keeping(Factory("transactional"), "opaque"), "in_process")
    run_all(keeping(Factory("transactional"), "transactional"), "in_process")
    with pytest.raises(
        TopologyError, match=r"FixedBatchSpout\.spout_type is 'exact', which is unknown; use one of 'non-"
    ):
        start(keeping(Factory("transactional"), "exact"), "in_process")
