"""A part of a batch may be several tables: each key has all of their rows, wherever its state is committed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import redis

from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK
from trident import Config, Fields, TridentTopology
from trident.arrow import COLLECTOR_PAUSE, table_of
from trident.operations import CombinerAggregator, Count, Sum
from trident.spout.interfaces import SpoutType, TransactionAttempt

FIELDS = Fields("word: string", "n: bigint")
TABLES = [[("cow", 1), ("moon", 2)], [("cow", 4)], [("cow", 8), ("man", 16)]]


class TablesSpout:
    """One batch of one part, which is several tables."""

    spout_type = SpoutType.TRANSACTIONAL

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> TablesSpout:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> TablesSpout:
        return self

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        return 1 if previous is None else None

    def parts(self, attempt: TransactionAttempt, definition: Any, parallelism: int) -> Sequence[Any]:
        return [definition]

    def emit(self, part: Any) -> Iterator[pa.Table]:
        yield from (table_of(FIELDS, rows) for rows in TABLES)

    def success(self, txid: int, definition: Any) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class Added(CombinerAggregator[int]):
    """Has no kernel."""

    output_type = "bigint"

    def init(self, tuple: Any) -> int:
        return int(tuple[0])

    def combine(self, left: int, right: int) -> int:
        return left + right

    def zero(self) -> int:
        return 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("placement", ["driver", "executors"])
def test_each_key_has_all_rows_of_a_part(spark: Any, redis_server: Server, tmp_path: Path, placement: str) -> None:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    state = RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}/0")
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


def test_the_cycle_collector_runs_now_and_then_where_threads_take_turns_without_a_gap() -> None:
    collected: list[int] = []
    note = lambda phase, info: collected.append(info["generation"]) if phase == "start" else None  # noqa: E731
    with ExitStack() as last, mock.patch("trident.arrow._MOST_UNSEEN", -1):
        last.callback(gc.callbacks.remove, note)
        last.enter_context(COLLECTOR_PAUSE)
        gc.callbacks.append(note)
        with COLLECTOR_PAUSE:
            pass
    assert collected == [1]
    assert gc.isenabled()
