"""A task that writes each message to a file and then acknowledges it; `test_message_kills.py` kills it.

`python -m tests.spouts.messages.counting_task SPOUT TASK TASKS FILE SEED`: one line of `FILE` for each message that was
processed, written before its acknowledgement. Answers come in any order; one of a hundred messages fails first.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

from tests.spouts.messages.driving import Task

_UNDER_WAY = 50


def main(spout: str, task: str, tasks: str, file: str, seed: str) -> None:
    """Run until killed."""
    choose = random.Random(int(seed))
    running = Task(pickle.loads(Path(spout).read_bytes()), int(task), int(tasks))
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    under_way: list[tuple[tuple[Any, ...], Any]] = []
    while True:
        running.spout.next_tuple()
        under_way += running.collector.emitted
        is_quiet = not running.collector.emitted
        running.collector.emitted.clear()
        while len(under_way) > (0 if is_quiet else _UNDER_WAY):
            at = choose.randrange(len(under_way))
            under_way[at], under_way[-1] = under_way[-1], under_way[at]
            values, id_ = under_way.pop()
            if choose.random() < 0.01:
                running.spout.fail(id_)
            else:
                os.write(out, b"%d\n" % values[1])
                running.spout.ack(id_)


if __name__ == "__main__":
    main(*sys.argv[1:])
