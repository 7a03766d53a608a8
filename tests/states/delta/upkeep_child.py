"""Commits batches to a Delta state, and is killed with SIGKILL right before it deletes its n-th file of old versions."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

from states.delta import data_files
from tests.states.delta.delta_states import state_at
from tests.states.delta.publish_child import live

OPTIONS: dict[str, Any] = {"compact_after_commits": 3, "checkpoint_interval": 2, "retained_versions": 10}


def main(path: Path, records: Path, attempt: int, deletions: int) -> None:
    left, delete = count(deletions, -1), data_files.delete_files

    def dies(system: Any, names: Any) -> None:
        for name in names:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            delete(system, [name])

    data_files.delete_files = dies
    live(state_at(path, background_maintenance=False, **OPTIONS), records, attempt, publishes=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
