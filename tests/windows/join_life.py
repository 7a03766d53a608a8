"""A driver with a join over time in a process of its own: `python -m tests.windows.join_life FOLDER [POINT TXID]`.

It joins two streams, kept in Delta tables beside the log, and counts how often each pair came. At a point of a batch's life it
kills itself, without a chance to tidy up.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.delta import DeltaState
from tests.harness.forked import live
from trident import JoinType, TridentTopology
from trident.operations import Count

LEFT = [("abc"[number % 3], number, number + number * 7 % 13) for number in range(60)]
RIGHT = [("abcd"[number % 4], number, number + number * 5 % 17) for number in range(60)]
"""Key, number, event time: out of order, some of them late."""

SIZE = 10
WITHIN = (timedelta(milliseconds=-2), timedelta(milliseconds=6))
DELAYS = (timedelta(milliseconds=4), timedelta(milliseconds=9))


def topology_in(folder: Path) -> TridentTopology:
    """Declare the topology, with its states in a folder."""

    def state(name: str) -> Any:
        return DeltaState.opaque(str(folder / name))

    topology = TridentTopology("life")
    left, right = (
        topology.new_stream(name, FixedBatchSpout("key: string, n: bigint, at: bigint", SIZE, *rows))
        for name, rows in (("left", LEFT), ("right", RIGHT))
    )
    joined = topology.join_within(
        left, "key", right, "key", "key, l, l_at, r, r_at", times="at", within=WITHIN, delay=DELAYS, state=state("joined"),
        join_type=JoinType.mixed(JoinType.INNER, JoinType.OUTER),
    )  # fmt: skip
    joined.group_by("l", "r").persistent_aggregate(state("times"), Count(), "times")
    return topology


if __name__ == "__main__":
    live(topology_in)
