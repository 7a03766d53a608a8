"""Drivers in a process of their own that kill themselves at a point of a batch's life, without a chance to tidy up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from trident import Config, TridentTopology
from trident.runtime.running import start
from trident.spout import TransactionAttempt


def live(topology_in: Callable[[Path], TridentTopology]) -> None:
    """Run a topology as the arguments of the program say: `FOLDER [POINT TXID]`; its log is in the folder.

    It runs until the sources are exhausted, or until the point.
    """
    folder, (point, txid) = Path(sys.argv[1]), sys.argv[2:] or ("", "0")

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        if (reached, attempt.txid) == (point, int(txid)):
            os.kill(os.getpid(), signal.SIGKILL)

    config = Config(engine="in_process", log_dir=str(folder / "log"), takeover=True)
    with start(topology_in(folder).graph(), config, None, observe) as running:
        running.process_all_available()
