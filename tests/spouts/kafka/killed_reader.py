"""A driver that writes down each record it reads, and kills itself with SIGKILL after so many."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spouts.kafka import TransactionalTridentKafkaSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import BaseFunction, Count

__all__ = ["LIMIT", "read"]

LIMIT = 20
"""How many records a batch has."""


class Note(BaseFunction):
    """Writes partition and offset to a file, line by line."""

    def __init__(self, notes: str, last: int) -> None:
        self.notes, self.last = notes, last

    def execute(self, tuple_: Any, collector: Any) -> None:
        with Path(self.notes).open("a", encoding="utf-8") as notes:
            print(*tuple_, file=notes)
        self.last -= 1
        if not self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit((1,))


def read(bootstrap: str, topic: str, log_dir: str, notes: str, last: int = 0) -> int:
    """Read all that is there; returns the last batch."""
    topology = TridentTopology("killed-reader")
    spout = TransactionalTridentKafkaSpout(bootstrap, topic, fields="partition, offset", max_batch_records=LIMIT)
    noted = topology.new_stream("records", spout).each("partition, offset", Note(notes, last), "one: int")
    noted.persistent_aggregate(MemoryMapState(), Count(), "count")
    # The state ends with the process; what was read is the question here.
    settings = {"engine": "in_process", "max_spout_pending": 1, "log_dir": log_dir, "state_recovery": "discard_totals"}
    with topology.start(settings) as running:
        running.process_all_available()
        return running.txid


def noted(path: Path) -> Iterator[tuple[int, int]]:
    """Return what was written down."""
    for line in path.read_text(encoding="utf-8").splitlines():
        partition, offset = line.split()
        yield int(partition), int(offset)


if __name__ == "__main__":
    read(**json.loads(sys.argv[1]))
