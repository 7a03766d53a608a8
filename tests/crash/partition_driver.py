"""A driver that counts the rows of a partitioned source in a store on disk, and kills itself where it is told to."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from tests.crash.driver import serve
from tests.harness.sqlite_map import sqlite_state
from tests.spout.folder_source import spout_of
from trident import Config, TridentTopology
from trident.operations import Count, Sum
from trident.run.running import start
from trident.spout import SpoutType

POINTS = {"logged": "processed", "committed": "committed", "recorded": "recorded"}
"""Where a driver dies: when the metadata are logged, when all states have committed, when the record is written."""


def topology_of(life: dict[str, Any], before: Any = None) -> TridentTopology:
    """Count each row by itself, and sum those of each partition."""
    folder, kind = Path(life["folder"]), SpoutType(life["spout"])
    spout = spout_of(kind, folder / "source", before=before) if before else spout_of(kind, folder / "source")
    topology = TridentTopology("t")
    stream = topology.new_stream("s", spout)
    rows, sums = (sqlite_state(str(folder / f"{name}.db"), life["state"]) for name in ("rows", "sums"))
    stream.group_by("partition", "n").persistent_aggregate(rows, Count(), "count", state_name="rows")
    stream.group_by("partition").persistent_aggregate(sums, "n", Sum(), "sum", state_name="sums")
    return topology


def config_of(life: dict[str, Any]) -> Config:
    """Return the settings of a driver."""
    return Config(
        engine="in_process",
        log_dir=str(Path(life["folder"], "log")),
        max_spout_pending=life["pending"],
        poll_interval_ms=1,
        retry_backoff_ms=1,
    )


def main(life: dict[str, Any]) -> None:
    """Run until the source is read."""
    signal.alarm(60)

    def before(partition: str, attempt: Any) -> None:
        if life["point"] == "reading" and attempt.txid == life["txid"] and partition == life["partition"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def observe(step: str, attempt: Any) -> None:
        if POINTS.get(life["point"]) == step and attempt.txid == life["txid"]:
            os.kill(os.getpid(), signal.SIGKILL)

    if "kill_after_s" in life:
        threading.Timer(life["kill_after_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    with start(topology_of(life, before).graph(), config_of(life), None, observe) as running:
        running.process_all_available()
    Path(life["folder"], "done").touch()


if __name__ == "__main__":
    serve(main)
