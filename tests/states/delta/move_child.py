"""Commits a batch to a Delta state of an earlier version, and kills itself in the middle of moving its changes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from states.delta.change_table import ChangeTable
from states.delta.published_table import PublishedTable
from tests.states.delta.delta_states import Log, commit, state_at
from trident.state.txid import Sentinel
from trident.state.winners import Winners

POINTS = {
    "before the copy is made": (ChangeTable, "copy", False),
    "after the copy is made": (ChangeTable, "copy", True),
    "before the step": (PublishedTable, "show", False),
    "after the step": (PublishedTable, "show", True),
}


def dying(function: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if after:
            function(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return call


def main(path: Path, point: str) -> None:
    owner, name, after = POINTS[point]
    setattr(owner, name, dying(getattr(owner, name), after))
    log = Log()
    log.winners, log.expected = Winners(((1, 1),)), Sentinel("inc", 5, 1)
    commit(state_at(path), log, 6, 2, {"man": 1, "lost": 1})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
