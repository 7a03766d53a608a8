"""States that tasks of Spark commit: the same values as those that the driver commits, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FeederBatchSpout, FixedBatchSpout
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import QUICK, start
from trident import Config, TridentTopology
from trident.errors import ConfigError
from trident.operations import Count, MapGet, ReducerAggregator, Split, Sum
from trident.spout.interfaces import TransactionAttempt
from trident.tuples import TridentTuple

LINES = [(f"the cow {number % 7} jumped over moon {number}",) for number in range(60)]


class Longest(ReducerAggregator[int]):
    output_type = "int"

    def init(self) -> int:
        return 0

    def reduce(self, current: int, tuple: TridentTuple) -> int:
        return max(current, len(tuple[0]))


@pytest.fixture
def url(redis_server: Server) -> str:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server.port}/0"


def declare(url: str, name: str, placement: str) -> tuple[TridentTopology, dict[str, Any]]:
    """Count words; behind that, count counts; beside it a sum, a reducer, and lookups that are counted."""
    topology = TridentTopology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line: string", 20, *LINES)).each("line", Split(), "word")
    state = RedisState.opaque(url)
    counts = words.group_by("word").persistent_aggregate(state, Count(), "n", state_name="counts").parallelism_hint(3)
    again = counts.new_values_stream().group_by("n").persistent_aggregate(state, Count(), "times", state_name="again")
    total = words.persistent_aggregate(state, Count(), "total", state_name="total").parallelism_hint(2)
    longest = words.group_by("word").persistent_aggregate(state, "word", Longest(), "long", state_name="longest")
    before = words.state_query(counts, "word", MapGet(), "n")
    seen = before.group_by("word").persistent_aggregate(state, "n", Sum(), "sum", state_name="seen")
    states = {"counts": counts, "again": again, "total": total, "longest": longest, "seen": seen}
    for each in states.values():
        each.placement(placement)
    return topology, states


def values_of(url: str, name: str, placement: str, pending: int, log: Path) -> dict[str, Any]:
    topology, states = declare(url, name, placement)
    config = Config.of(
        {**QUICK, "engine": "spark", "max_spout_pending": pending, "log_dir": str(log), "parallelism": 2}
    )
    with topology.start(config) as running:
        running.process_all_available()
        placements = {placed.where for placed in running.placements.values()}
        assert placements == {placement}
        assert all(f"committed by the {placement}" in running.explain() for placement in placements)
        found = {name: sorted(running.state(state).get_tuples()) for name, state in states.items() if name != "total"}
        return {**found, "total": running.state(states["total"]).get()}


@pytest.mark.long
@pytest.mark.parametrize("pending", [1, 3])
def test_executors_and_driver_come_to_the_same_values(spark: Any, url: str, tmp_path: Path, pending: int) -> None:
    by_driver = values_of(url, f"d{pending}", "driver", pending, tmp_path / "d")
    by_executors = values_of(url, f"e{pending}", "executors", pending, tmp_path / "e")
    assert by_executors == by_driver
    assert by_driver["total"] == 6 * len(LINES) + len(LINES)


def test_a_store_that_cannot_fence_is_refused_by_name(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
    stream.group_by("word").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n", state_name="counts")
    with pytest.raises(
        ConfigError, match=r"state 'counts' cannot be committed in executors: its store .* cannot refuse"
    ):
        topology.start(engine="spark", state_placement="executors", log_dir=str(tmp_path / "log"))


def test_small_batches_of_engine_auto_are_committed_here_and_large_ones_by_executors(
    spark: Any, url: str, tmp_path: Path
) -> None:
    topology, feeder = TridentTopology("auto"), FeederBatchSpout("word: string")
    words = topology.new_stream("words", feeder)
    counts = words.group_by("word").persistent_aggregate(RedisState.opaque(url), Count(), "n").parallelism_hint(2)
    config = Config.of({**QUICK, "engine": "auto", "auto_bytes": 1000, "log_dir": str(tmp_path / "log")})
    with topology.start(config, state_placement="executors") as running:
        for size in (1, 3000, 2, 4000, 3):
            feeder.feed([[f"w{number % 7}"] for number in range(size)])
            running.process_all_available()
        assert [entry["engine"] for entry in running.recent_progress] == ["in_process", "spark"] * 2 + ["in_process"]
        assert sum(count for _, count in running.state(counts).get_tuples()) == 7006
        assert running.state(counts).multi_get(["w0", "w1"]) == [1004, 1003]


@pytest.mark.long
@pytest.mark.parametrize(("paused_at", "what"), [(1, "committed"), (3, "processed and committed")])
def test_a_commit_that_tasks_do_not_end_is_called_so_and_tried_again(
    spark: Any, url: str, redis_server: Server, tmp_path: Path, paused_at: int, what: str
) -> None:
    topology, words = TridentTopology("late"), [(f"w{number}",) for number in range(4)]
    state = RedisState.opaque(url, timeout_s=60)
    stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, *words)).group_by("word")
    counts = stream.persistent_aggregate(state, Count(), "n")
    client = redis.Redis(port=redis_server.port)

    def pause(point: str, attempt: TransactionAttempt) -> None:
        if (point, attempt.txid) == ("recorded", paused_at):
            client.client_pause(600_000, all=False)  # writes wait, reads do not

    # Of a batch that is processed before the one before it is recorded, the commit is a job of its own.
    conf = {"message_timeout_s": 8, "max_batch_attempts": 50, "state_placement": "executors"}
    pending = 3 if paused_at == 1 else 1
    with (
        client,
        start(topology, "spark", pause, log_dir=str(tmp_path / "log"), max_spout_pending=pending, **conf) as running,
    ):
        try:
            said = f"not {what} within message_timeout_s=8 seconds"
            until(lambda: running.status["lastFailure"] == said, f"the batch fails: {said}")
        finally:
            client.client_unpause()
        running.process_all_available()
        assert running.state(counts).multi_get([word for (word,) in words]) == [1] * 4
