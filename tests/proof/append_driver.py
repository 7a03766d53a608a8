"""A driver that appends rows to lists, killed at random; and a reader of the lists that writes down all that it sees."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from states.delta import DeltaState
from states.redis import RedisState
from tests.crash.case import WORDS, ScriptedSpout
from tests.crash.driver import serve
from tests.crash.feed_driver import config_of
from tests.crash.fuse import Fuse
from trident import TridentTopology, open_state
from trident.errors import BackendError, LogError, StateError
from trident.operations import CombinerAggregator
from trident.state import StateSpec
from trident.tuples import TridentTuple

BATCH_SIZE = 10


class Appended(CombinerAggregator[list[int]]):
    """A list of all numbers, in the order in which they came."""

    def init(self, tuple: TridentTuple) -> list[int]:
        return [int(tuple[0])]

    def combine(self, val1: list[int], val2: list[int]) -> list[int]:
        return [*val1, *val2]

    def zero(self) -> list[int]:
        return []


def topology_of(life: dict[str, Any]) -> TridentTopology:
    """Append the weight of each row to the list of its word; what a replay of a batch has is another draw."""
    topology = TridentTopology(life["name"])
    rows = topology.new_stream(
        "rows", ScriptedSpout("changing", life["seed"], life["number"], Fuse(), life["rows"], BATCH_SIZE)
    )
    spec: StateSpec = (
        DeltaState.opaque(f"{life['folder']}/lists") if not life["redis"] else RedisState.opaque(life["redis"])
    )
    lists = rows.group_by("word").persistent_aggregate(
        spec, "weight", Appended(), "weights: array<bigint>", state_name="lists"
    )
    lists.parallelism_hint(1 + 2 * bool(life["redis"]))
    return topology


def main(life: dict[str, Any]) -> None:
    """Run a driver until its source is read, or a reader until that is so."""
    signal.alarm(600)
    if "kill_after_s" in life:
        threading.Timer(life["kill_after_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    if life["role"] == "reader":
        read(life)
        return
    with topology_of(life).start(config_of(life)) as running:
        running.process_all_available()
    (Path(life["folder"]) / "done").touch()


def read(life: dict[str, Any]) -> None:
    """Read all lists again and again, once more when the driver is done; a line of JSON each time that they are others."""
    folder, before = Path(life["folder"]), None
    with (folder / f"reads-{life['number']}.jsonl").open("a") as journal:
        is_last = False
        while not is_last:
            is_last = (folder / "done").exists()
            try:
                with open_state(topology_of(life), "lists", config_of(life)) as state:
                    while not is_last:
                        is_last = (folder / "done").exists()
                        lists = dict(zip(WORDS, state.multi_get(WORDS), strict=True))
                        if lists != before:
                            before = lists
                            journal.write(json.dumps({key: values or [] for key, values in lists.items()}) + "\n")
            except (LogError, StateError) as error:
                # There is no log yet; or the server was killed, or is away: that is said, and the reader tries again.
                is_last = False
                if isinstance(error, StateError) and not isinstance(error, BackendError):
                    raise


if __name__ == "__main__":
    serve(main)
