"""A batch in several tables, and keys updated in pieces: each key has all its rows, and the values of one update."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import QUICK, OneSpout
from trident import Config, Fields, TridentTopology
from trident.arrow import table_of
from trident.channel import COLLECTOR_PAUSE
from trident.graph import PersistNode
from trident.operations import Count, Sum
from trident.plan import make_plan
from trident.run import entries
from trident.run.committer import PartitionCommit
from trident.state import NonTransactionalMap, OpaqueMap, TransactionalMap, map_state
from trident.state.map_state import SnapshottableMap
from trident.state.txid import Txid

FIELDS = Fields("word: string", "n: bigint")
TABLES = [[("cow", 1), ("moon", 2)], [("cow", 4)], [("cow", 8), ("man", 16)]]


class TablesSpout(OneSpout):
    """One batch of one part, which is several tables."""

    fields = FIELDS

    def emit(self, part: Any) -> Iterator[pa.Table]:
        yield from (table_of(FIELDS, rows) for rows in TABLES)


class Added(Sum):
    """A subclass has no kernel."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("placement", ["driver", "executors"])
def test_each_key_has_all_rows_of_a_part(spark: Any, redis_url: str, tmp_path: Path, placement: str) -> None:
    state = RedisState.opaque(redis_url)
    topology = TridentTopology(f"parts-{placement}")
    rows = topology.new_stream("rows", TablesSpout())
    sums = rows.group_by("word").persistent_aggregate(state, "n", Sum(), "sum", state_name="sums")
    own = rows.group_by("word").persistent_aggregate(state, "n", Added(), "own", state_name="own")
    total = rows.persistent_aggregate(state, Count(), "total", state_name="total")
    for each in (sums, own, total):
        each.placement(placement)
    config = Config.of(
        {**QUICK, "engine": "spark", "log_dir": str(tmp_path), "max_batch_attempts": 1, "parallelism": 2}
    )
    with topology.start(config) as running:
        running.process_all_available()
        expected = [("cow", 13), ("man", 16), ("moon", 2)]
        assert sorted(running.state(sums).get_tuples()) == expected
        assert sorted(running.state(own).get_tuples()) == expected
        assert running.state(total).get() == 5


def test_the_cycle_collector_stays_off_until_the_last_of_several_threads_has_left() -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(COLLECTOR_PAUSE)
        second.enter_context(COLLECTOR_PAUSE)
        first.close()  # not in the order of their coming
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_cycle_collector_runs_now_and_then_under_threads_without_a_gap() -> None:
    collected: list[int] = []
    note = lambda phase, info: collected.append(info["generation"]) if phase == "start" else None  # noqa: E731
    with ExitStack() as last, mock.patch("trident.channel._MOST_UNSEEN", -1):
        last.callback(gc.callbacks.remove, note)
        last.enter_context(COLLECTOR_PAUSE)
        gc.callbacks.append(note)
        with COLLECTOR_PAUSE:
            pass
    assert collected in ([1], [2])  # each tenth time what is old, too
    assert gc.isenabled()


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
def test_pieces_come_to_one_update(node: PersistNode, monkeypatch: pytest.MonkeyPatch, kind: Any, wrap: Any) -> None:
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
