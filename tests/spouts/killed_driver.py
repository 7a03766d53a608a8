"""A driver that is killed with SIGKILL while its batches run, and started again until it is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


def run_killed(script: str, *arguments: object, kill_at: Sequence[int], is_finished: bool = True) -> str:
    """Run a script to its end; before that once for each of `kill_at`, killed when it has printed so many lines.

    Returns the last line of the last run. That is a killed one without `is_finished`.
    """
    last = ""
    for lines in kill_at:
        last, code = _run(script, arguments, lines)
        assert code == -signal.SIGKILL, f"the driver ended before it had printed {lines} lines"
    if is_finished:
        last, code = _run(script, arguments, None)
        assert code == 0
    return last


def _run(script: str, arguments: Sequence[object], kill_at: int | None) -> tuple[str, int]:
    last = ""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for number, line in enumerate(driver.stdout, 1):
            last = line.strip()
            if number == kill_at:
                os.kill(driver.pid, signal.SIGKILL)
    return last, driver.returncode
