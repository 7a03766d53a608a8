"""A driver whose query sees its own batch, in a process of its own.

`python -m tests.run.this_batch_life FOLDER [POINT TXID]` keeps the newest town of each user in a Delta table, looks
the town of each tuple up as after its batch, and counts the answers in another table. At a point of a batch's life it kills
itself, without a chance to tidy up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.delta import DeltaState
from tests.harness.forked import live
from trident import TridentTopology
from trident.operations import Count, Last, MapGet

ROWS = [("abcd"[number * 7 % 4], f"town {number * 5 % 11}") for number in range(60)]
"""User and town."""

BATCH = 10


def topology_in(folder: Path) -> TridentTopology:
    """Declare the topology, with its states in a folder."""

    def state(name: str) -> Any:
        return DeltaState.opaque(str(folder / name))

    topology = TridentTopology("life")
    stream = topology.new_stream("s", FixedBatchSpout("user: string, town: string", BATCH, *ROWS))
    towns = stream.group_by("user").persistent_aggregate(state("towns"), "town", Last(), "town")
    asked = stream.project("user").state_query(towns, "user", MapGet(), "town", sees="this_batch")
    asked.group_by("user", "town").persistent_aggregate(state("seen"), Count(), "seen")
    return topology


if __name__ == "__main__":
    live(topology_in)
