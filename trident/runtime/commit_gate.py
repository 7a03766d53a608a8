"""CommitGate: readers of this process that commits overtake again and again get one look between two of them."""

from __future__ import annotations

import threading

__all__ = ["FREE_ROUNDS", "CommitGate"]

FREE_ROUNDS = 1
"""So often a reader tries without the gate."""

_MOST_S = 2.0


class CommitGate:
    """Held by a reader, it keeps the next commit from beginning; the one that is under way goes on.

    A read at the last committed batch bears one commit, and is made again if there were two. Where a batch takes less time
    than a read, or the interpreter hardly lets the reader run, there would be two each time. A commit waits for readers 2
    seconds at most: one that takes longer has to bear to be overtaken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def pass_through(self) -> None:
        """Wait for the reader that holds the gate; called before a commit begins."""
        if self._lock.acquire(timeout=_MOST_S):
            self._lock.release()
