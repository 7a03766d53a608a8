"""Topologies with windows and joins over time whose drivers tests kill; each has its log in a folder."""

import itertools
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.forked import die, live
from trident import JoinType, TridentTopology
from trident.operations import Count, SessionWindow, SlidingDurationWindow, Sum, TumblingDurationWindow
from trident.windows.window_state import WindowStore

ROWS = [("abc"[number % 3], number, number + number * 7 % 13 * 2) for number in range(90)]
"""Key, number, event time: out of order, so that batches fill each other's windows."""

BY_TIME = TumblingDurationWindow.of(timedelta(milliseconds=10)).by_event_time("at", delay=timedelta(milliseconds=4))
"""Some of the tuples are too late."""

SESSIONS = SessionWindow.of(timedelta(milliseconds=6), "at", delay=timedelta(milliseconds=4))
"""Here, too."""


LEFT = [("abc"[number % 3], number, number + number * 7 % 13) for number in range(60)]
RIGHT = [("abcd"[number % 4], number, number + number * 5 % 17) for number in range(60)]
"""Key, number, event time: out of order, some of them late."""

SIZE = 10
WITHIN = (timedelta(milliseconds=-2), timedelta(milliseconds=6))
DELAYS = (timedelta(milliseconds=4), timedelta(milliseconds=9))


CLOCK_ROWS = [("abc"[number % 3], 1 << number) for number in range(12)]
"""Two make a batch."""

_LENGTH = timedelta(days=1000)  # no window comes to its end


def clock_in(folder: Path, url: str) -> TridentTopology:
    """Windows by the time of the batch, and the sums of what they gave, in a Redis."""
    topology = TridentTopology(folder.name)
    stream = topology.new_stream("s", FixedBatchSpout("key: string, n: bigint", 2, *CLOCK_ROWS)).group_by("key")
    window = TumblingDurationWindow.of(_LENGTH)
    given = stream.window(window, RedisState.opaque(url), "n", Sum(), "sum", state_name="w").parallelism_hint(2)
    given.group_by("key").persistent_aggregate(RedisState.opaque(url), "sum", Sum(), "total")
    return topology


_MS = timedelta(milliseconds=1)
SLIDING = SlidingDurationWindow.of(12 * _MS, 6 * _MS).by_event_time("at", 4 * _MS, 6 * _MS)
"""Late rows make a window fire again."""


def moving_in(folder: Path, address: str, partitions: int) -> TridentTopology:
    """A window and a join in so many partitions, with their states in a store."""

    def state() -> Any:
        return RedisState.opaque(address) if address.startswith("redis") else PostgresState.opaque(address)

    topology = TridentTopology(folder.name)
    left, right = (
        topology.new_stream(name, FixedBatchSpout("key: string, n: bigint, at: bigint", SIZE, *rows))
        for name, rows in (("left", LEFT), ("right", RIGHT))
    )
    by_key = left.group_by("key").window(SLIDING, state(), "n", Sum(), "sum", bounds="start, end", state_name="w")
    by_key.parallelism_hint(partitions).group_by("key", "end").persistent_aggregate(state(), "sum", Sum(), "sums")
    joined = topology.join_within(
        left, "key", right, "key", "key, l, l_at, r, r_at", times="at", within=WITHIN, delay=DELAYS, state=state(),
        join_type=JoinType.OUTER, state_name="j",
    )  # fmt: skip
    joined.parallelism_hint(partitions).group_by("l", "r").persistent_aggregate(state(), Count(), "times")
    return topology


def die_at_write(when: str, number: int) -> None:
    """Die at the n-th time that a partition writes what a window or the join keeps, in the middle of a commit."""
    write, count = WindowStore.write, itertools.count(1)

    def counted(store: WindowStore) -> None:
        at = next(count)
        if (when, number) == ("before", at):
            die()
        write(store)
        if (when, number) == ("after", at):
            die()

    WindowStore.write = counted  # type: ignore[assignment, method-assign]


def move(folder: Path, address: str, partitions: int, when: str = "", number: int = 0) -> None:
    """Run to the end, or to death: `batch` when a batch is committed, `before` or `after` the n-th write of a partition."""
    die_at_write(when, number)
    live(
        partial(moving_in, address=address, partitions=partitions), folder, "committed" if when == "batch" else "",
        number,
    )  # fmt: skip
