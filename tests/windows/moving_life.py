"""A driver of a window and a join whose number of partitions changes: `python -m tests.windows.moving_life …`.

The arguments are a folder for the log, the address of a store, the number of partitions, and how the driver dies: `batch 3`
when batch 3 is committed, `before 2` or `after 2` at the second time that a partition writes what the window or the join keeps,
in the middle of a commit. Without the last two it runs to the end.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from states.redis import RedisState
from tests.windows.join_life import DELAYS, LEFT, RIGHT, SIZE, WITHIN
from trident import Config, JoinType, TridentTopology
from trident.operations import Count, SlidingDurationWindow, Sum
from trident.run.running import start
from trident.spout import TransactionAttempt
from trident.windows.window_state import WindowStore

SLIDING = SlidingDurationWindow.of(timedelta(milliseconds=12), timedelta(milliseconds=6)).by_event_time(
    "at", timedelta(milliseconds=4), timedelta(milliseconds=6)
)
"""Late rows make a window fire again."""


def topology_in(folder: Path, address: str, partitions: int) -> TridentTopology:
    """Declare the topology of a folder, with its states in a store."""

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


def die() -> None:
    """Die without a chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_write(when: str, number: int) -> None:
    """Arrange the death at a write of what a window or the join keeps."""
    write, count = WindowStore.write, itertools.count(1)

    def counted(store: WindowStore) -> None:
        at = next(count)
        if (when, number) == ("before", at):
            die()
        write(store)
        if (when, number) == ("after", at):
            die()

    WindowStore.write = counted  # type: ignore[assignment, method-assign]


def main(folder: str, address: str, partitions: str, when: str = "", number: str = "0") -> None:
    """Run until the sources are exhausted, or until death."""

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        if (when, reached, attempt.txid) == ("batch", "committed", int(number)):
            die()

    die_at_write(when, int(number))
    config = Config(engine="in_process", log_dir=str(Path(folder) / "log"), takeover=True)
    with start(topology_in(Path(folder), address, int(partitions)).graph(), config, None, observe) as running:
        running.process_all_available()


if __name__ == "__main__":
    main(*sys.argv[1:])
