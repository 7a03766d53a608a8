"""Stages and publishes batches of a Delta state, and kills itself in the second one, at the point that it is given."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from states.delta.state_table import StateTable
from tests.states.delta.delta_states import Log, state_at
from trident.state.txid import Snapshot

_append = StateTable.append

POINTS = {
    "staged": "a task has staged, and its driver has not begun to publish",
    "moved": "the driver has moved the file, and not made a version of it",
    "published": "the driver has published, and not recorded",
}


def die(*_: Any) -> None:
    """End as if the machine did."""
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_the_commit(table: StateTable, *args: Any, **options: Any) -> Any:
    """Die instead of appending; a merge beside the commits, in a thread of its own, may append."""
    if threading.current_thread() is threading.main_thread():
        die()
    return _append(table, *args, **options)


def main(path: Path, point: str, large: bool) -> None:
    from tests.states.delta.test_delta_staging import stage, step

    options: dict[str, Any] = {"max_keys_in_memory": 1} if large else {}
    task, driver, log = state_at(path, **options), state_at(path, **options), Log()
    for number in (1, 2):
        step(task, driver, log, number, 1, {"man": 1, "dog": 1})
        driver.recorded(Snapshot(number, log.winners))
    txid = log.txid(3, 1)
    staged = stage(task, txid, {"man": 100, "lost": 1})
    if point == "staged":
        die()
    if point == "moved":
        StateTable.append = _die_in_the_commit  # type: ignore[method-assign,assignment]
    driver.publish(txid, staged)
    die()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "large")
