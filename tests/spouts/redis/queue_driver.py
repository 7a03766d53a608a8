"""A driver of the queue that counts exactly, as docs/spouts/redis-streams.md writes it: kills itself where it is told.

`python -m tests.spouts.redis.queue_driver URL LOG_DIR POINT BATCHES`: at `POINT` of its `BATCHES`-th batch; with 0
never, and then it ends when all is committed.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from states.redis import RedisState
from trident import Config
from trident.operations import Count
from trident.runtime import running
from trident.spout import TransactionAttempt

PAGE = Path(__file__).parents[3] / "docs" / "spouts" / "redis-streams.md"


def recipe(url: str) -> dict[str, Any]:
    """Run the program of the page against another server, and count beside it without the ids."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "new_values_stream" in block)
    program = program.replace("redis://localhost:6379/0", url)
    program = program.replace('group="count"', 'group="count", max_pending=10')
    names: dict[str, Any] = {}
    exec(program, names)
    plain = names["stream"].group_by("word").persistent_aggregate(RedisState.opaque(url), Count(), "plain")
    return {**names, "plain": plain}


def main(url: str, log_dir: str, point: str, batches: str) -> None:
    """Run until it is all done, or dead."""
    names, left = recipe(url), int(batches)

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    config = Config(engine="in_process", log_dir=log_dir, allow_inexact=True, poll_interval_ms=1)
    with running.start(names["topology"].graph(), config, None, observe) as topology:
        topology.process_all_available()


if __name__ == "__main__":
    main(*sys.argv[1:])
