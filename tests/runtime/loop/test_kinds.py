"""Where a state of your own says its kind: on itself or on its factory, as a `StateType` or by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import LRUMemoryMapState, MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import Keep, RowsState, dict_state, run_all, start
from trident import TridentTopology
from trident.coordination.log_reader import LogReader
from trident.errors import ConfigError, InexactPairingError, TopologyError
from trident.operations import Count
from trident.planner import make_plan
from trident.runtime.start.placements import lasting_states
from trident.spout import SpoutType
from trident.state import MapStateFactory, SnapshottableMap, StateSpec, StateType, TransactionalMap
from trident.state.interfaces import state_of


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
