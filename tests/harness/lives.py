"""Drivers in a process of their own that kill themselves at a point of a batch's life, without a chance to tidy up."""

from __future__ import annotations

import os
import signal
import subprocess
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


def exit_code_of(module: str, *told: object) -> int:
    """Run a program of the tests in a process of its own, to its end."""
    command = [sys.executable, "-m", module, *map(str, told)]
    return subprocess.run(command, cwd=Path(__file__).parents[2], check=False, timeout=200).returncode


def die_in_turn(module: str, folder: Path, *deaths: tuple[str, int]) -> None:
    """Let a driver die at each of these points and batches, one after the other, and the last one run to its end."""
    assert [exit_code_of(module, folder, *death) for death in deaths] == [-signal.SIGKILL] * len(deaths)
    assert exit_code_of(module, folder) == 0
