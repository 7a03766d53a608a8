"""A task in a process of its own, which a test kills: `python -m tests.spouts.messages.killed_task SPOUT COUNT ACKED`.

It takes `COUNT` messages with the pickled spout of the file `SPOUT`, acknowledges the first `ACKED` of them, says so, and
goes on calling the spout until it is killed.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.spouts.messages.driving import Task


def main(spout: str, count: str, acked: str) -> None:
    """Run until killed."""
    task = Task(pickle.loads(Path(spout).read_bytes()))
    taken = task.take(int(count))
    for _, id_ in taken[: int(acked)]:
        task.spout.ack(id_)
    task.until(lambda: task.spout.pending == int(count) - int(acked))
    sys.stdout.write(f"{[values for values, _ in taken]!r}\n")
    sys.stdout.flush()
    while True:
        task.spout.next_tuple()


if __name__ == "__main__":
    main(*sys.argv[1:])
