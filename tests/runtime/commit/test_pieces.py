"""Many keys are updated in pieces, with the values of one update, and without being remembered."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from tests.harness.crashing_stores import DictMap
from trident import TridentTopology
from trident.graph import PersistNode
from trident.operations import Count
from trident.planner import make_plan
from trident.runtime.commit import entries
from trident.runtime.commit.committer import PartitionCommit
from trident.state import NonTransactionalMap, OpaqueMap, TransactionalMap, map_state
from trident.state.map_state import SnapshottableMap
from trident.state.txid import Txid

KEYS = [f"k{number}" for number in range(95)]
PARTS = [
    pa.table({"word": KEYS[:60], "n": pa.array([1] * 60, pa.int64())}),
    pa.table({"word": KEYS[40:], "n": pa.array([2] * 55, pa.int64())}),
]
TOTALS = {(key,): (1 if at < 60 else 0) + (2 if at >= 40 else 0) for at, key in enumerate(KEYS)}


@pytest.fixture
def node() -> PersistNode:
    topology = TridentTopology("t")
    words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
    words.group_by("word").persistent_aggregate(map_state(lambda *_: DictMap({}), "opaque"), Count(), "n")
    (found,) = make_plan(topology.graph()).commits
    assert isinstance(found, PersistNode)
    return found


def updated(node: PersistNode, state: Any, txid: int) -> pa.Table | None:
    commit = PartitionCommit(node, state, Txid(txid, 1 << 20), entries.inputs_of(node, PARTS, 1, None)[0], wanted=True)
    commit.run()
    return commit.values


@pytest.mark.parametrize("kind", [OpaqueMap, TransactionalMap, NonTransactionalMap])
@pytest.mark.parametrize("wrap", [lambda state: state, SnapshottableMap])
def test_pieces_come_to_the_values_of_one_update(
    node: PersistNode, monkeypatch: pytest.MonkeyPatch, kind: Any, wrap: Any
) -> None:
    whole: dict[Any, Any] = {}
    one_by_one: dict[Any, Any] = {}
    given = updated(node, wrap(kind(DictMap(whole))), 1)
    monkeypatch.setattr(entries, "PIECE", 10)
    state = wrap(kind(DictMap(one_by_one)))
    in_pieces = updated(node, state, 1)
    assert one_by_one == whole
    assert given is not None
    assert in_pieces is not None
    assert sorted(map(repr, in_pieces.to_pylist())) == sorted(map(repr, given.to_pylist()))
    assert dict(zip(TOTALS, state.multi_get(list(TOTALS)), strict=True)) == TOTALS
    updated(node, state, 2)
    assert state.multi_get(list(TOTALS)) == [2 * total for total in TOTALS.values()]


def test_keys_of_one_piece_are_not_remembered_and_those_of_other_updates_are() -> None:
    state = OpaqueMap(DictMap({}))
    adding = [_Adding()]
    state.begin_commit(Txid(1, 1 << 20))
    assert state.multi_update_once([("a",)], adding) == [1]
    assert state._written == {}
    assert state.multi_update([("b",)], adding) == [1]
    assert state.multi_update_once([("c",)], adding) == [1]
    assert state.multi_update([("b",)], adding) == [2]
    state.commit(Txid(1, 1 << 20))


class _Adding:
    def update(self, stored: int | None) -> int:
        return (stored or 0) + 1
