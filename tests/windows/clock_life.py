"""A driver of windows by the time of the batch: `python -m tests.windows.clock_life FOLDER URL ENGINE RESET …`.

It keeps its windows, and the sums of what they gave, in a Redis. RESET says whether it sets `reset_batch_time`. With POINT
and TXID it kills itself at a point of a batch's life, without a chance to tidy up.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from spouts import FixedBatchSpout
from states.redis import RedisState
from trident import Config, TridentTopology
from trident.operations import Sum, TumblingDurationWindow
from trident.run.running import start
from trident.spout import TransactionAttempt

ROWS = [("abc"[number % 3], 1 << number) for number in range(12)]
"""Two make a batch."""

_LENGTH = timedelta(days=1000)  # no window comes to its end


def topology_in(folder: Path, url: str) -> TridentTopology:
    """Declare the topology of a folder, with its states in a Redis."""
    topology = TridentTopology(folder.name)
    stream = topology.new_stream("s", FixedBatchSpout("key: string, n: bigint", 2, *ROWS)).group_by("key")
    window = TumblingDurationWindow.of(_LENGTH)
    given = stream.window(window, RedisState.opaque(url), "n", Sum(), "sum", state_name="w").parallelism_hint(2)
    given.group_by("key").persistent_aggregate(RedisState.opaque(url), "sum", Sum(), "total")
    return topology


def main(folder: str, url: str, engine: str, reset: str, point: str = "", txid: str = "0") -> None:
    """Run until the source is exhausted, or until the point."""

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        if (reached, attempt.txid) == (point, int(txid)):
            os.kill(os.getpid(), signal.SIGKILL)

    config = Config.of(
        {
            "engine": engine,
            "state_placement": "executors" if engine == "spark" else "auto",
            "master": "local[2]" if engine == "spark" else None,
            "max_spout_pending": 2 if reset == "True" else 1,  # else batch 4 has the wrong time already
            "reset_batch_time": reset == "True",
            "log_dir": str(Path(folder) / "log"),
            "takeover": True,
        }
    )
    with start(topology_in(Path(folder), url).graph(), config, None, observe) as running:
        running.process_all_available()


if __name__ == "__main__":
    main(*sys.argv[1:])
