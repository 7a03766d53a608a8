"""Commits batches to a Delta state without end, as a driver does that is killed and started again.

The file of records is its log: a line `txid attempt` is written before the state is told of it. Each attempt adds one to
its own key, so what a lost attempt wrote would be seen.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from tests.states.delta.delta_states import Log, state_at, update
from trident.state.txid import Snapshot, Txid


def records_in(path: Path) -> list[tuple[int, int]]:
    """Return `(txid, attempt)` of the batches that the file holds; a line that a kill cut is none."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines if line.endswith("\n")]


def live(state: Any, records: Path, attempt: int, publishes: bool) -> None:
    """Commit batches to a state until death; `publishes`: the state is told what is recorded."""
    log, done = Log(), records_in(records)
    for each in done:
        log.record(Txid(*each, incarnation=log.incarnation))
    with records.open("a") as out:
        for number in count(len(done) + 1):
            txid = log.txid(number, attempt)
            state.begin_commit(txid)
            update(state, {"all": 1, f"attempt {attempt}": 1, f"w{number % 5}": 1})
            state.commit(txid)
            out.write(f"{number} {attempt}\n")
            out.flush()
            os.fsync(out.fileno())
            log.record(txid)
            if publishes:
                state.recorded(Snapshot(number, log.winners))


if __name__ == "__main__":
    live(state_at(Path(sys.argv[1]), publish_every_s=1), Path(sys.argv[2]), int(sys.argv[3]), publishes=True)
