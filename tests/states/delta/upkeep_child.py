"""Commits batches to a Delta state, and is killed with SIGKILL right before it deletes its n-th file of old versions."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

from states.delta import old_versions
from tests.states.delta.delta_states import Log, state_at, update
from tests.states.delta.publish_child import records_in
from trident.state.txid import Txid

OPTIONS: dict[str, Any] = {"compact_after_commits": 3, "checkpoint_interval": 2, "retained_versions": 10}


def main(path: Path, records: Path, attempt: int, deletions: int) -> None:
    log, left, delete = Log(), count(deletions, -1), old_versions.delete_files

    def dies(system: Any, names: Any) -> None:
        for name in names:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            delete(system, [name])

    old_versions.delete_files = dies
    state = state_at(path, background_maintenance=False, **OPTIONS)
    done = records_in(records)
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
            log.record(txid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
