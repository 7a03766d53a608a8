"""Windows and joins over time that executors commit come to what the driver comes to, whatever the number of partitions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK
from tests.windows.lives import BY_TIME, DELAYS, LEFT, RIGHT, ROWS, SESSIONS, SLIDING, WITHIN
from tests.windows.test_timers import Ends
from trident import Config, TridentTopology
from trident.operations import Count, Sum, TumblingCountWindow, TumblingDurationWindow, col

FIELDS = "key: string, n: bigint, at: bigint"
DAY = TumblingDurationWindow.of(timedelta(days=1), zone="Europe/Berlin").by_event_time("at", delay=timedelta(hours=2))


def declare(name: str, url: str, partitions: int) -> tuple[TridentTopology, list[Any]]:
    topology, state = TridentTopology(name), RedisState.opaque(url)
    rows = topology.new_stream("s", FixedBatchSpout(FIELDS, 30, *ROWS))
    by_time = rows.group_by("key").window(BY_TIME, state, Count(), "n", state_name="timed").parallelism_hint(partitions)
    again = rows.group_by("key").window(SLIDING, state, "n", Sum(), "sum", bounds="start, end", state_name="sliding")
    whole = rows.tumbling_window(7, state, "n", Sum(), "sum", bounds="start, end", state_name="whole")
    counted = rows.group_by("key").window(TumblingCountWindow.of(4), state, "n", Sum(), "sum", state_name="counted")
    sessions, late = rows.group_by("key").window_with_late_rows(
        SESSIONS, state, Count(), "m", bounds="first, last", state_name="sessions", parallelism=partitions
    )
    ends = rows.group_by("key").process(state, Ends(), "end: bigint, m: int", event_time="at", state_name="ends")
    hours = rows.select(
        "key", "n", at=col("n") * 3_600_000 + 1_729_900_000_000
    )  # about 2024-10-27, in Berlin a longer day
    by_day = hours.group_by("key").window(DAY, state, "n", Sum(), "sum", bounds="start, end", state_name="days")
    left, right = (
        topology.new_stream(side, FixedBatchSpout(FIELDS, 20, *given))
        for side, given in (("left", LEFT), ("right", RIGHT))
    )
    joined = topology.join_within(
        left, "key", right, "key", "key, l, l_at, r, r_at", times="at", within=WITHIN, delay=DELAYS, state=state,
        state_name="joined",
    ).parallelism_hint(partitions)  # fmt: skip
    return topology, [
        sessions.group_by("key", "first", "last").persistent_aggregate(
            state, "m", Sum(), "total", state_name="of_sessions"
        ),
        late.group_by("key").persistent_aggregate(state, "n", Sum(), "total", state_name="of_late"),
        ends.parallelism_hint(partitions)
        .group_by("key", "end")
        .persistent_aggregate(state, "m", Sum(), "total", state_name="of_ends"),
        by_time.group_by("key").persistent_aggregate(state, "n", Sum(), "total", state_name="of_timed"),
        again.parallelism_hint(partitions)
        .group_by("key", "end")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_sliding"),
        whole.group_by("start").persistent_aggregate(state, "sum", Sum(), "total", state_name="of_whole"),
        counted.parallelism_hint(partitions)
        .group_by("key")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_counted"),
        by_day.parallelism_hint(partitions)
        .group_by("key", "start")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_days"),
        joined.group_by("l", "r").persistent_aggregate(state, Count(), "times", state_name="of_joined"),
    ]


def values_of(name: str, url: str, partitions: int, log: Path, **conf: Any) -> list[Any]:
    topology, states = declare(name, url, partitions)
    config = Config.of({**QUICK, "engine": "spark", "log_dir": str(log), "parallelism": 2, **conf})
    with topology.start(config) as running:
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {conf["state_placement"]}
        return [sorted(running.state(state).get_tuples()) for state in states]


@pytest.mark.long
@pytest.mark.parametrize(("pending", "partitions"), [(1, 1), (1, 2), (3, 2)])
def test_executors_and_driver_fire_the_same(
    spark: Any, redis_server: Server, tmp_path: Path, pending: int, partitions: int
) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    by_driver = values_of("d", url, 1, tmp_path / "d", max_spout_pending=1, state_placement="driver")
    assert all(by_driver)
    conf = {"max_spout_pending": pending, "state_placement": "executors"}
    assert values_of("e", url, partitions, tmp_path / "e", **conf) == by_driver
