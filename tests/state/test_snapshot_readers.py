"""What a reader does to a value that it was given changes nothing that is stored (R13)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import LRUMemoryMapState, MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import RowsSpout, dict_state
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import BaseQueryFunction, BaseStateUpdater, ReducerAggregator
from trident.state import (
    CachedMap,
    CodecSerializer,
    MicroBatchIBackingMap,
    SerializedMap,
    Snapshot,
    SnapshottableMap,
    StateConf,
    StateSpec,
    StateType,
    Txid,
    map_for,
)
from trident.testing import TopologyTestDriver

VALUE: list[Any] = [1, {"a": [2]}, ([3],)]


def value() -> list[Any]:
    return [1, {"a": [2]}, ([3],)]


def spoil(found: Any) -> None:
    """Change a value at every depth."""
    found[2][0].append("x")
    found[1]["a"].append("x")
    found.append("x")


class Append:
    def update(self, stored: list[Any] | None) -> list[Any]:
        return [*stored, "more"] if stored else value()


def over(wrap: Callable[[Any], Any]) -> Callable[[StateType], SnapshottableMap]:
    return lambda kind: SnapshottableMap(map_for(kind, wrap(DictMap({})), "s", 0), "all")


STORES: dict[str, Callable[[StateType], SnapshottableMap]] = {
    "memory": lambda kind: MemoryMapState(kind=kind).make_state(StateConf(), 0, 1),
    "lru": lambda kind: LRUMemoryMapState(9, kind=kind).make_state(StateConf(), 0, 1),
    "map": over(lambda backing: backing),
    "cached": over(lambda backing: CachedMap(backing, 9)),
    "chunked": over(lambda backing: MicroBatchIBackingMap(backing, 1, 1)),
    "serialized": lambda kind: SnapshottableMap(
        map_for(kind, CachedMap(SerializedMap(DictMap({}), CodecSerializer(kind)), 9), "s", 0), "all"
    ),
}
AFTER = Snapshot(1)
READS: dict[str, Callable[[Any], Any]] = {
    "multi_get": lambda state: state.multi_get([("k",)])[0],
    "the same key twice": lambda state: state.multi_get([("k",), ("k",)])[1],
    "get": lambda state: state.get(),
    "get_tuples": lambda state: next(iter(state.get_tuples()))[-1],
    "multi_get_at": lambda state: state.multi_get_at([("k",)], AFTER)[0],
    "get_at": lambda state: state.get_at(AFTER),
}


@pytest.mark.parametrize("kind", StateType, ids=lambda kind: kind.value)
@pytest.mark.parametrize("store", STORES)
def test_a_read_value_is_the_readers_own(store: str, kind: StateType) -> None:
    state = STORES[store](kind)
    keys = [("k",), state.snapshot_key]
    lists, opaque = store in ("memory", "lru"), kind is StateType.OPAQUE
    state.begin_commit(Txid(1))
    state.multi_put(keys, [value(), value()])
    for read in ("multi_get", "the same key twice", "get"):
        spoil(READS[read](state))
        assert state.multi_get(keys) == [VALUE, VALUE], f"{read} within the commit"
    state.commit(Txid(1))
    for name, read_by in READS.items():
        if (lists or "tuples" not in name) and (opaque or not name.endswith("_at")):
            spoil(read_by(state))
            assert state.multi_get(keys) == [VALUE, VALUE], name
    state.begin_commit(Txid(2))
    assert state.multi_update(keys, [Append(), Append()]) == [[*VALUE, "more"]] * 2
    state.commit(Txid(2))
    if opaque:
        assert state.multi_get_at(keys, AFTER) == [VALUE, VALUE]  # what stood before


@pytest.mark.parametrize("kind", StateType, ids=lambda kind: kind.value)
@pytest.mark.parametrize("store", STORES)
def test_so_is_what_an_update_returns(store: str, kind: StateType) -> None:
    state = STORES[store](kind)
    state.begin_commit(Txid(1))
    for found in (*state.multi_update([("k",)], [Append()]), state.update(Append())):
        spoil(found)
    assert state.multi_get([("k",), state.snapshot_key]) == [VALUE, VALUE]
    state.commit(Txid(1))
    assert state.multi_get([("k",), state.snapshot_key]) == [VALUE, VALUE]


class Keeping:
    """Returns one object again and again, and changes it between."""

    def __init__(self) -> None:
        self.value = value()

    def update(self, stored: Any) -> list[Any]:
        self.value.append("again")
        return self.value


@pytest.mark.parametrize("kind", StateType, ids=lambda kind: kind.value)
@pytest.mark.parametrize("store", STORES)
def test_what_is_changed_after_it_was_put_is_stored_as_it_was(store: str, kind: StateType) -> None:
    state, given, keeping = STORES[store](kind), value(), Keeping()
    state.begin_commit(Txid(1))
    state.multi_put([("k",)], [given])
    spoil(given)
    state.multi_update([("first",)], [keeping])
    state.multi_update([("second",)], [keeping])
    state.commit(Txid(1))
    keeping.update(None)
    wanted = [VALUE, [*VALUE, "again"], [*VALUE, "again", "again"]]
    assert state.multi_get([("k",), ("first",), ("second",)]) == wanted


class Collect(ReducerAggregator[list[int]]):
    output_types = ("array<bigint>",)

    def init(self) -> list[int]:
        return []

    def reduce(self, curr: list[int], tuple: TridentTuple) -> list[int]:
        return [*curr, tuple[0]]


class Spoiling(BaseQueryFunction[Any, int]):
    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[int]:
        found = state.multi_get([("a",)])[0] or []
        found.append(99)
        for *_, listed in state.get_tuples():
            listed.append(99)
        return [len(found) - 1] * len(args)

    def execute(self, tuple: TridentTuple, result: int, collector: TridentCollector) -> None:
        collector.emit([result])


def spec_of(store: str, kind: str, folder: Path) -> StateSpec:
    made: StateSpec
    if store == "delta":
        made = getattr(DeltaState, kind)(folder / "state")
    else:
        made = getattr(MemoryMapState, kind)()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("store", ["memory", "delta"])
def test_views_and_queries_change_nothing(store: str, kind: str, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("rows", RowsSpout("k: string, n: bigint", {}))
    state = rows.group_by("k").persistent_aggregate(spec_of(store, kind, tmp_path), "n", Collect(), "all")
    rows.state_query(state, Spoiling(), "seen: bigint").peek(lambda row: None)
    with TopologyTestDriver(topology) as driver:
        for n in (1, 2, 3):
            driver.feed("rows", ("a", n))
            driver.step()
            wanted = list(range(1, n + 1))
            view = driver.state(state)
            view.multi_get(["a"])[0].append(99)
            next(view.get_tuples())[-1].append(99)
            assert view.multi_get(["a"]) == [wanted]


def test_requests_change_nothing() -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("rows", FixedBatchSpout("k: string, n: bigint", 1, ("a", 1), ("a", 2)))
    state = rows.group_by("k").persistent_aggregate(MemoryMapState(), "n", Collect(), "all")
    topology.new_drpc_stream("f").state_query(state, Spoiling(), "seen: bigint")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        for _ in range(2):
            assert running.drpc("f").execute("") == [["", 2]]
        assert running.state(state).multi_get(["a"]) == [[1, 2]]


class SpoilingUpdater(BaseStateUpdater[Any]):
    """Changes what it read, and what it was told that it has written."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        spoilt = state.multi_get([("k",)])[0]
        if spoilt:
            spoil(spoilt)
        spoil(state.multi_update([("k",)], [Append()])[0])


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_an_updater_of_ones_own_changes_nothing_by_reading(kind: str) -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("rows", RowsSpout("n: bigint", {}))
    state = rows.partition_persist(dict_state({}, kind), SpoilingUpdater(), state_name="s")
    with TopologyTestDriver(topology) as driver:
        for _ in range(3):
            driver.feed("rows", 1)
            driver.step()
        assert driver.state(state).multi_get(["k"]) == [[*VALUE, "more", "more"]]
