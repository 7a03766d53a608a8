"""A process that tries one batch on an embedded store and kills itself on the way: `python -m tests.stores.victim HEX`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.stores.catalog import STORES, Home
from tests.stores.drivers import Driver
from trident.log.framing import decode
from trident.log.log_interface import MemoryLog
from trident.log.log_state import LogState


def main(task: dict[str, Any]) -> None:
    """Try the batch; die at the n-th time that the point is reached, or right after the commit."""
    log = MemoryLog("campaign")
    log.state = LogState.from_data(task["log"])
    left = task["times"]

    def reach(point: str) -> None:
        nonlocal left
        if point == task["point"]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    driver = Driver(Home(STORES[task["store"]], Path(task["work"])), task["name"], log, reach)
    driver.attempt = task["attempt"]
    driver.write({(key,): number for key, number in task["batch"]})
    os.kill(os.getpid(), signal.SIGKILL)  # all is written and nothing recorded


if __name__ == "__main__":
    main(decode(bytes.fromhex(sys.argv[1])))
