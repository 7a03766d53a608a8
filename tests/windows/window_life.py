"""A driver with windows in a process of its own: `python -m tests.windows.window_life FOLDER [POINT TXID]`.

It counts nine batches, in windows of tuples and of event time, kept in Delta tables beside the log; what fires is summed up
in a third. At a point of a batch's life it kills itself, without a chance to tidy up.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.delta import DeltaState
from tests.harness.forked import live
from trident import TridentTopology
from trident.operations import Count, SessionWindow, Sum, TumblingDurationWindow

ROWS = [("abc"[number % 3], number, number + number * 7 % 13 * 2) for number in range(90)]
"""Key, number, event time: out of order, so that batches fill each other's windows."""

BY_TIME = TumblingDurationWindow.of(timedelta(milliseconds=10)).by_event_time("at", delay=timedelta(milliseconds=4))
"""Some of the tuples are too late."""

SESSIONS = SessionWindow.of(timedelta(milliseconds=6), "at", delay=timedelta(milliseconds=4))
"""Here, too."""


def topology_in(folder: Path) -> TridentTopology:
    """Declare the topology, with its states in a folder."""

    def state(name: str) -> Any:
        return DeltaState.opaque(str(folder / name))

    topology = TridentTopology("life")
    stream = topology.new_stream("s", FixedBatchSpout("key: string, n: bigint, at: bigint", 10, *ROWS))
    sums = stream.sliding_window(20, 15, state("sums"), "n", Sum(), "sum", bounds="start, end", state_name="sums")
    sums.group_by("start", "end").persistent_aggregate(state("by_window"), "sum", Sum(), "total")
    keys = stream.group_by("key")
    counts = keys.window(BY_TIME, state("counts"), Count(), "n", state_name="counts")
    counts.group_by("key").persistent_aggregate(state("by_key"), "n", Sum(), "n_sum")
    sessions, late = keys.window_with_late_rows(SESSIONS, state("sessions"), Count(), "m", state_name="sessions")
    sessions.group_by("key").persistent_aggregate(state("of_sessions"), "m", Sum(), "m_sum")
    late.group_by("key").persistent_aggregate(state("of_late"), Count(), "late")
    return topology


if __name__ == "__main__":
    live(topology_in)
