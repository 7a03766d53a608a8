"""What `describe` says of states: kind, store, and the cell of the guarantee matrix."""

from __future__ import annotations

import itertools
import json

import pytest

from spouts import FixedBatchSpout
from states.cassandra import CassandraState
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.explain.topologies import everything, stock, word_count
from tests.harness.crashing_stores import WithoutAttempts
from tests.harness.topology_runs import dict_state
from trident import TridentTopology
from trident.errors import InexactPairingError
from trident.operations import Count
from trident.spout import SpoutType
from trident.state import StateSpec, StateType


def test_a_state_is_described() -> None:
    (count,) = word_count().describe()
    why = "a replay is applied to the value from before the batch"
    cell = "(transactional spout, opaque state)"
    pairing = {"spout": "transactional", "cell": cell, "exact": True, "guarantee": "exact", "why": why}
    assert count == {
        "state": "count",
        "kind": "opaque",
        "store": "DeltaState",
        "partitions": 1,
        "static": False,
        "key": ["word: string"],
        "value": ["count: bigint"],
        "streams": {"lines": pairing},
    }


def test_a_state_names_all_streams_that_reach_it() -> None:
    assert {state["state"]: list(state["streams"]) for state in stock().describe()} == {
        "stock": ["came", "went"],
        "moved": ["came", "went"],
    }


def test_static_states_and_states_of_ones_own() -> None:
    towns, mine, loose = everything().describe()
    assert (towns["static"], towns["partitions"], towns["streams"]) == (True, 2, {})
    assert (mine["kind"], mine["store"]) == (None, "RowsState")
    assert (mine["streams"]["in"]["exact"], mine["streams"]["in"]["guarantee"]) == (None, "unknown")
    assert loose["streams"]["in"]["guarantee"] == "not exact"


def test_a_map_of_ones_own_is_named() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", FixedBatchSpout("n: bigint", 1, [1]))
    stream.persistent_aggregate(dict_state({}), Count(), "c").parallelism_hint(3)
    (state,) = topology.describe()
    assert (state["store"], state["partitions"]) == ("<lambda>", 3)


@pytest.mark.parametrize(
    "spec",
    [
        RedisState.opaque("redis://localhost", serializer=WithoutAttempts()),
        CassandraState.opaque("localhost", keyspace="k", serializer=WithoutAttempts()),
        MemcachedState.opaque(serializer=WithoutAttempts()),
        MemcachedState.cache_for(RedisState.opaque("redis://localhost", serializer=WithoutAttempts())),
    ],
)
def test_a_layout_without_attempts_is_not_exact_with_an_opaque_spout(spec: StateSpec) -> None:
    for promise, exact in ((SpoutType.OPAQUE, False), (SpoutType.TRANSACTIONAL, True)):
        topology = TridentTopology("t")
        spout = FixedBatchSpout("n: bigint", 1, [1])
        spout.spout_type = promise
        topology.new_stream("in", spout).persistent_aggregate(spec, Count(), "c")
        pairing = topology.describe()[0]["streams"]["in"]
        assert (pairing["exact"], pairing["cell"]) == (exact, f"({promise.value} spout, opaque state without attempts)")
        assert ("what a failed attempt wrote stays" in pairing["why"]) is not exact


def test_a_description_is_plain_data() -> None:
    for made in (word_count, stock, everything):
        assert json.loads(json.dumps(made().describe())) == made().describe()


@pytest.mark.parametrize(("promise", "kind"), list(itertools.product(SpoutType, StateType)))
def test_what_is_called_exact_is_what_is_let_start(promise: SpoutType, kind: StateType) -> None:
    topology = TridentTopology("t")
    spout = FixedBatchSpout("n: bigint", 1, [1])
    spout.spout_type = promise
    topology.new_stream("in", spout).persistent_aggregate(MemoryMapState(kind=kind), Count(), "c")
    (state,) = topology.describe()
    try:
        topology.start(engine="in_process").stop()
        accepted = True
    except InexactPairingError:
        accepted = False
    assert state["streams"]["in"]["exact"] is accepted
    assert state["streams"]["in"]["cell"] == f"({promise.value} spout, {kind.value} state)"
