"""Reads see exactly the batches 1 to T, over any number of keys and partitions, while T+1 is being written (R12)."""

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap, commit
from tests.harness.topology_runs import (
    GATES,
    WAIT_S,
    Keep,
    Points,
    RowsSpout,
    RowsState,
    dict_state,
    keep,
    open_view,
    operation,
    run_all,
    start,
)
from trident import Config, Fields, TridentState, TridentTopology, TridentTuple, open_state
from trident.errors import (
    BatchFailedError,
    ConfigError,
    DRPCExecutionException,
    StaleTransactionError,
    StateError,
    TopologyError,
    UnsupportedOperation,
    WrongKeyError,
)
from trident.operations import BaseQueryFunction, Count, Sum
from trident.read.state_partitions import CommitGate
from trident.read.views import StateView
from trident.state import OpaqueMap, OpaqueValue, Snapshot, SnapshottableMap, State, StateSpec, Txid, Winners, map_state
from trident.state.interfaces import state_of

KEYS = [(f"k{n}",) for n in range(30)]


def counting(topology: TridentTopology, state: Any, partitions: int, batches: int) -> TridentState:
    """Declare a topology in which every batch adds 1 to every key."""
    rows = [list(key) for _ in range(batches) for key in KEYS]
    stream = topology.new_stream("s", FixedBatchSpout("k: string", len(KEYS), *rows))
    return stream.group_by("k").persistent_aggregate(state, Count(), "count").parallelism_hint(partitions)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "map"])
def test_reads_from_threads_never_mix_two_batches(
    partitions: int, durable: bool, topology: TridentTopology, tmp_path: Path
) -> None:
    batches = 20 if durable else 100  # a read of the map is as slow as its commit
    parts: list[dict[Any, Any]] = [{} for _ in range(partitions)]
    store = MemoryMapState() if not durable else _map_over(parts)
    state = counting(topology, store, partitions, batches)
    ended, begin = threading.Event(), threading.Barrier(4)

    def read(view: StateView, listing: bool) -> list[int]:
        begin.wait()
        seen: list[int] = []
        while not ended.is_set():
            values = [row[-1] for row in view.get_tuples()] if listing else view.multi_get(KEYS)
            assert len(set(values)) <= 1, values
            seen.append((values or [None])[0] or 0)
        assert seen == sorted(seen)
        return seen

    def hold(point: str, attempt: Any) -> None:
        if (point, attempt.txid) == ("committing", 2):
            begin.wait()  # the readers are at work before the second batch is

    with ThreadPoolExecutor(3) as threads:
        with start(topology, "in_process", hold, log_dir=tmp_path if durable else None) as running:
            views = [running.state(state) for _ in range(3)]
            readers = [threads.submit(read, view, not durable and at == 2) for at, view in enumerate(views)]
            running.process_all_available()
            assert running.state(state).multi_get(KEYS) == [batches] * len(KEYS)
            ended.set()
        seen = [set(reader.result()) for reader in readers]
        assert any(len(each) > 1 for each in seen)  # on a busy machine one of them may read once


def _map_over(parts: list[dict[Any, Any]]) -> StateSpec:
    return map_state(lambda conf, partition, count: DictMap(parts[partition]))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_read_during_a_commit_sees_the_batch_before(
    partitions: int, engine: str, topology: TridentTopology, gate: str
) -> None:
    class Held(RowsState):
        """Committed after the counts of the same batch."""

        def begin_commit(self, txid: int) -> None:
            if txid == 2:
                GATES.pass_through(gate)
            super().begin_commit(txid)

    rows = [list(key) for _ in range(2) for key in KEYS]
    stream = topology.new_stream("s", FixedBatchSpout("k: string", len(KEYS), *rows))
    counts = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), "count").parallelism_hint(partitions)
    whole = stream.persistent_aggregate(MemoryMapState(), Count(), "all")
    stream.partition_persist(Held(), Keep(), "x: string")
    with start(topology, engine) as running:
        GATES.await_reached(gate)
        assert running.txid == 1
        assert running.state(counts).multi_get(KEYS) == [1] * len(KEYS)
        assert {row[-1] for row in running.state(counts).get_tuples()} == {1}
        assert running.state(whole).get() == len(KEYS)
        GATES.open(gate)
        running.process_all_available()
        assert running.state(counts).multi_get(KEYS) == [2] * len(KEYS)
        assert running.state("all").get() == 2 * len(KEYS)


@pytest.mark.parametrize("kind", [MemoryMapState.transactional, MemoryMapState.non_transactional])
def test_other_kinds_show_their_latest_writes(kind: Callable[[], StateSpec], topology: TridentTopology) -> None:
    state = counting(topology, kind(), 2, 3)
    running = run_all(topology, "in_process", allow_inexact=True)
    view = running.state(state)
    assert view.multi_get(KEYS) == [3] * len(KEYS)
    assert sorted(view.get_tuples()) == sorted((*key, 3) for key in KEYS)


class PagedMap(DictMap):
    """Lists the keys of all partitions, its reserved ones too, three to a page."""

    def key_pages(self) -> Iterator[list[Any]]:
        keys = list(self.entries)
        yield from (keys[at : at + 3] for at in range(0, len(keys), 3))


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_shared_store_is_listed_in_pages_and_once(partitions: int, topology: TridentTopology, tmp_path: Path) -> None:
    entries: dict[Any, Any] = {}
    state = counting(topology, map_state(lambda conf, partition, count: PagedMap(entries)), partitions, 2)
    running = run_all(topology, "in_process", log_dir=tmp_path)
    assert sorted(running.state(state).get_tuples()) == sorted((*key, 2) for key in KEYS)


@pytest.mark.slow
def test_an_earlier_batch_can_be_read_where_the_store_keeps_it(topology: TridentTopology, tmp_path: Path) -> None:
    delta = counting(topology, DeltaState.opaque(tmp_path / "state"), 1, 3)
    other = topology.new_stream("other", FixedBatchSpout("x: string", 1, ["a"], ["b"]))
    whole = other.persistent_aggregate(MemoryMapState(), Count(), "all")
    running = run_all(topology, "in_process", log_dir=tmp_path / "log")
    view: Any = running.state(delta)
    assert [view.at(txid=txid).multi_get(KEYS[:2]) for txid in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
    assert sorted(view.at(2).get_tuples()) == sorted((*key, 2) for key in KEYS)
    with pytest.raises(StateError, match="read state 'count' as of batch 4: 3 is the last one committed"):
        view.at(4)
    assert view.at(np.int64(2)).multi_get(KEYS[:1]) == [2]
    assert list(view.get_tuples(limit=np.int32(0))) == view.top(0) == []
    odd: Any
    for odd in (-1, True, 1.5, "2", b"2", [], math.inf, Decimal(2)):
        for call, named in ((view.at, "txid"), (view.get_tuples, "limit"), (view.top, "count")):
            with pytest.raises(ConfigError, match=re.escape(f"{named}={odd!r}: give a whole number of at least 0")):
                call(**{named: odd})
    for odd in (None, 1, b"count", delta.new_values_stream(), Count):
        with pytest.raises(TopologyError, match="is not a state: give its name, or what persistent_aggregate"):
            running.state(odd)
        with pytest.raises(TopologyError, match="is not a state: give its name"):
            open_state(topology, odd)
    said = "state 'all' cannot be read as of an earlier batch: its store is not"
    with pytest.raises(UnsupportedOperation, match=said):
        running.state(whole).at(1)


def test_a_state_of_which_one_partition_keeps_no_past_has_none() -> None:
    past, now = opaque({}), opaque({})  # type: Any, Any
    commit(now, 1, now=1)
    past.at = lambda snapshot: opaque({})
    view = StateView([state_of(past), state_of(now)], lambda: Snapshot(2), columns=Fields("word: string, n: bigint"))
    with pytest.raises(UnsupportedOperation, match="cannot be read as of an earlier batch"):
        view.at(1)


def test_a_bare_value_is_a_key_of_one_part(topology: TridentTopology) -> None:
    state = counting(topology, MemoryMapState(), 2, 1)
    view = run_all(topology, "in_process").state(state)
    assert view.multi_get(["k1", ("k2",), "nobody"]) == [1, 1, None]
    assert view.multi_get([]) == []


DAY = date(2024, 2, 29)
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
WRONG_KEYS: dict[str, tuple[str, Any, str]] = {
    "a text for an int": ("k: int", ["1"], "expected a value of type int for 'k', got '1', a str"),
    "a truth value for an int": ("k: bigint", [True], "expected a value of type bigint for 'k', got True, a bool"),
    "a number for a text": ("k: string", [1], "expected a value of type string for 'k', got 1, a int"),
    "a text for a date": ("k: date", ["2024-02-29"], "expected a value of type date"),
    "a time for a date": ("k: date", [NOON], "take its .date()"),
    "milliseconds for a time": ("k: timestamp", [1709208000000],
        "expected a value of type timestamp .*give a datetime"),
    "a zone where there is none": ("k: timestamp_ntz", [NOON], "it has a zone"),
    "a text for bytes": ("k: binary", ["a"], "expected a value of type binary"),
    "a number for a truth value": ("k: boolean", [1], "expected a value of type boolean"),
    "one field of two": ("k: string, day: date", [("a",)], r"has 1 part; expected 2 parts, \(k, day\)"),
    "a bare value for two": ("k: string, day: date", ["a"], "has 1 part; expected 2 parts"),
    "three fields of two": ("k: string, day: date", [("a", DAY, 1)], "has 3 parts; expected 2 parts"),
    "a text for many keys": ("k: string", "ab", r"give a list of keys, \['ab'\]"),
    "bytes for many keys": ("k: binary", b"ab", "give a list of keys"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_what_cannot_be_a_key_is_refused_and_not_absent(case: str, topology: TridentTopology, tmp_path: Path) -> None:
    fields, keys, said = WRONG_KEYS[case]
    names = Fields(fields).names
    stream = topology.new_stream("s", RowsSpout(fields, {1: []}))
    state = stream.group_by(*names).persistent_aggregate(DeltaState.opaque(tmp_path / "state"), Count(), "n")
    with start(topology, "in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        with pytest.raises(WrongKeyError, match=f"state 'n'.*{said}"):
            running.state(state).multi_get(keys)
        with open_state(topology, state, log_dir=tmp_path / "log") as reader:
            with pytest.raises(WrongKeyError, match=said):
                reader.multi_get(keys)
            assert reader.multi_get([(None,) * len(names)]) == [None]


NUMBERS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "bigint": (3, [3, 3.0, Decimal("3.00"), np.int32(3), np.float64(3)], [3.5, 2**70, math.nan, Decimal("NaN")]),
    "tinyint": (3, [3, 3.0], [300, 259]),
    "double": (3.0, [3, 3.0, Decimal(3), np.float32(3)], [2**53 + 1, 10**400, 3.5]),
    "float": (0.1, [0.1, np.float32(0.1), Decimal("0.1")], [0.2, 1e300]),
    "decimal(5,2)": (Decimal("0.10"), [Decimal("0.1"), 0.1, Decimal("1E-1")], [Decimal("0.101"), 10**9, math.inf]),
}


@pytest.mark.slow
@pytest.mark.parametrize("type_", NUMBERS)
def test_a_number_is_a_key_if_its_type_has_it_or_absent(type_: str, topology: TridentTopology, tmp_path: Path) -> None:
    written, equal, other = NUMBERS[type_]
    stream = topology.new_stream("s", RowsSpout(f"k: {type_}", {1: [(written,)]}))
    state = stream.group_by("k").persistent_aggregate(DeltaState.opaque(tmp_path / "state"), Count(), "n")
    with start(topology, "in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        with open_state(topology, state, log_dir=tmp_path / "log") as reader:
            for view in (running.state(state), reader):
                assert view.multi_get([*other, *equal]) == [None] * len(other) + [1] * len(equal)
                assert [row[1] for each in equal for row in view.get_tuples((each,))] == [1] * len(equal)
                assert list(view.get_tuples((other[0],))) == []


def test_a_key_may_be_a_list_or_a_row(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("a: string, b: bigint", {1: [("x", 1)]}))
    state = stream.group_by("a", "b").persistent_aggregate(MemoryMapState(), Count(), "n")
    with start(topology, "in_process") as running:
        running.process_all_available()
        row = TridentTuple(Fields("a, b"), ("x", 1))
        assert running.state(state).multi_get([("x", 1), ["x", 1], row]) == [1, 1, 1]


def test_a_state_is_read_by_keys_or_as_a_single_value_and_not_the_other_way(topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("k: bigint", {1: [(1,)]}))
    grouped = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), "n")
    single = stream.persistent_aggregate(MemoryMapState(), Count(), "total")
    with start(topology, "in_process") as running:
        running.process_all_available()
        said = r"state 'n' has a value per key \(k\), and no single one; read it with multi_get"
        with pytest.raises(WrongKeyError, match=said):
            running.state(grouped).get()
        with pytest.raises(WrongKeyError, match="state 'total' holds a single value, and no keys; read it with get"):
            running.state(single).multi_get([1])
        with pytest.raises(WrongKeyError, match="they begin with k, of type bigint; give a tuple of the first fields"):
            running.state(grouped).get_tuples("1")
        assert (running.state(single).get(), running.state(grouped).multi_get([1])) == (1, [1])


AsText = operation(  # looks up the text of a value
    "AsText", BaseQueryFunction, execute=lambda row, result, collector: collector.emit([result]),
    batch_retrieve=lambda state, args: state.multi_get([str(row[0]) for row in args]),
)  # fmt: skip


@pytest.mark.parametrize("asks", ["batch", "request"])
def test_a_query_with_a_wrong_key_is_refused_in_a_batch_and_in_a_request(asks: str, topology: TridentTopology) -> None:
    stream = topology.new_stream("s", RowsSpout("k: bigint", {1: [(1,)], 2: [(1,)]}))
    state = stream.group_by("k").persistent_aggregate(MemoryMapState(), Count(), "n")
    if asks == "batch":
        keep(stream.state_query(state, "k", AsText(), "found"))
    else:
        topology.new_drpc_stream("find").state_query(state, "args", AsText(), "found")

    def run() -> None:
        with start(topology, "in_process") as running:
            running.process_all_available()
            running.drpc("find").execute("1")

    error = BatchFailedError if asks == "batch" else DRPCExecutionException
    with pytest.raises(error, match=r"key \('1',\) of state 'n': expected a value of type bigint"):
        run()


def test_what_a_state_cannot_do_is_said(topology: TridentTopology, tmp_path: Path) -> None:
    mapped = counting(topology, dict_state({}), 1, 1)
    rows = keep(topology.new_stream("other", FixedBatchSpout("x: string", 1, ["a"])))
    running = run_all(topology, "in_process", log_dir=tmp_path)
    with pytest.raises(
        UnsupportedOperation,
        match="list state 't/count': a DictMap cannot list its keys; ask for the keys that you know",
    ):
        list(running.state(mapped).get_tuples())
    said = r"state 'kept' is not snapshottable; read it with multi_get\(keys\)"
    with pytest.raises(UnsupportedOperation, match=said):
        running.state("kept").get()
    assert rows.rows == [("a",)]


def opaque(entries: dict[Any, Any]) -> SnapshottableMap:
    return SnapshottableMap(OpaqueMap(DictMap(entries)), "all")


class Racing(SnapshottableMap):
    """A map on which a batch is committed just before each of the first reads."""

    def __init__(self, entries: dict[Any, Any], commits: int, committed: Callable[[int], None]) -> None:
        super().__init__(OpaqueMap(DictMap(entries)), "all")
        self.commits, self.committed = commits, committed
        self.txid = 1

    def multi_get_at(self, keys: Sequence[Any], snapshot: Snapshot) -> list[Any]:
        for _ in range(2 if self.commits else 0):  # two, so that the snapshot is too old
            self.txid += 1
            self.begin_commit(Txid(self.txid))
            self.multi_put([("a",)], [self.txid])
            self.commit(self.txid)
        self.commits = max(0, self.commits - 1)
        self.committed(self.txid)
        values: list[Any] = self.map_state.multi_get_at(keys, snapshot)  # type: ignore[attr-defined]
        return values


def test_a_read_that_is_overtaken_is_made_again_at_a_newer_snapshot() -> None:
    newest = [1]
    racing = Racing({}, 3, lambda txid: newest.__setitem__(0, txid))
    view = StateView([racing], lambda: Snapshot(newest[0]))
    assert view.multi_get(["a"]) == [7]
    assert racing.txid == 7


def test_a_read_overtaken_again_and_again_holds_up_the_next_commit() -> None:
    class Held(CommitGate):
        def __enter__(self) -> None:
            super().__enter__()
            racing.commits = 0

    newest = [1]
    racing = Racing({}, 10**6, lambda txid: newest.__setitem__(0, txid))
    view = StateView([racing], lambda: Snapshot(newest[0]), gate=Held())
    assert view.multi_get(["a"]) == [3]
    assert racing.txid == 3


def test_who_holds_the_gate_sees_no_commit_begin(topology: TridentTopology) -> None:
    feeder = FeederBatchSpout("word: string")
    counts = topology.new_stream("words", feeder).group_by("word")
    state = counts.persistent_aggregate(MemoryMapState(), Count(), "count")
    points = Points()
    with start(topology, "in_process", points) as running:
        with running.gate:
            fed = threading.Thread(target=feeder.feed, args=([["a"]],))
            fed.start()
            points.await_point("processed", 1)
            assert not running.loop.drain().wait(0.3)
            assert points.of(1) == ["defined", "processed"]
        points.await_point("succeeded", 1)
        fed.join(WAIT_S)
        assert running.state(state).multi_get(["a"]) == [1]


def test_a_gate_that_is_held_for_long_is_not_waited_for(
    topology: TridentTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trident.read.state_partitions._MOST_S", 0.05)
    rows = keep(topology.new_stream("words", FixedBatchSpout("word: string", 1, ["a"], ["b"])))
    with start(topology, "in_process") as running, running.gate:
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_a_read_that_is_always_overtaken_says_so() -> None:
    view = StateView([Racing({}, 10**6, lambda txid: None)], lambda: Snapshot(1))
    with pytest.raises(StaleTransactionError, match="batch 1 is behind batch"):
        view.multi_get(["a"])


def test_a_value_of_an_attempt_that_lost_is_not_seen() -> None:
    entries = {"a": (2, 9, "before", "lost"), "b": (2, 8, "before", "won"), "c": (3, 8, "old", "new")}
    held = {(key,): OpaqueValue(*value) for key, value in entries.items()}
    view = StateView([opaque(held)], lambda: Snapshot(2, Winners(((1, 8),))))
    assert view.multi_get(["a", "b", "c", "d"]) == ["before", "won", "old", None]


def test_another_process_reads_through_the_graph(topology: TridentTopology, tmp_path: Path) -> None:
    parts: list[dict[Any, Any]] = [{}, {}]
    counting(topology, _map_over(parts), 2, 2)
    total = topology.new_stream("n", FeederBatchSpout("n: int")).persistent_aggregate(dict_state({}), "n", Sum(), "sum")
    running = run_all(topology, "in_process", log_dir=tmp_path)
    config, snapshot = Config(engine="in_process", log_dir=str(tmp_path)), running.log_state.snapshot
    for partitions in (None, 2):
        view = open_view(topology.graph(), config, "count", lambda: snapshot("count"), partitions)
        assert view.multi_get(KEYS) == [2] * len(KEYS)
        view.close()
    assert open_view(topology.graph(), config, total.state_name, lambda: snapshot("sum")).get() == 0


def test_a_view_closes_what_it_opened(topology: TridentTopology, tmp_path: Path) -> None:
    closed: list[int] = []

    class Closing(DictMap):
        def close(self) -> None:
            closed.append(id(self))

    state = counting(topology, map_state(lambda conf, at, count: Closing({})), 2, 1)
    with start(topology, "in_process", Points(), log_dir=tmp_path) as running:
        running.process_all_available()
        running.state(state)
        assert closed == []
    assert len(set(closed)) == 4  # two writers, two readers


class OneReaderMap(State):
    """A store that must not be read by two threads at once; tells whether it was."""

    def __init__(self) -> None:
        self.inside, self.both = threading.Lock(), threading.Event()

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        if not self.inside.acquire(blocking=False):
            self.both.set()
            return [None] * len(keys)
        try:
            self.both.wait(0.2)  # time enough for another reader to get in, if anything lets it
            return [1] * len(keys)
        finally:
            self.inside.release()


def test_threads_that_share_a_view_take_turns_at_the_store() -> None:
    store = OneReaderMap()
    view = StateView([store], lambda: Snapshot(0))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(view.multi_get, [["a"], ["b"]])) == [[1], [1]]
    assert not store.both.is_set()
