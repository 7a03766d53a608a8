"""CommitGate: readers of this process that commits overtake again and again get one look between two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

R = TypeVar("R")

ROUNDS = 100
_FREE_ROUNDS = 1  # without the gate
_MOST_S = 2.0


class CommitGate:
    """A lock that a reader holds to delay the next commit; a commit that has begun continues.

    A read at the last committed batch is right if one commit happens meanwhile, and is repeated if two happen. If a batch
    takes less time than a read, or the reader gets little processor time, two would happen each time. A commit waits for
    a reader for 2 seconds at most, so a longer read may still be overtaken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_held = self._lock.locked  # as it is, because each commit asks

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def pass_through(self) -> None:
        """Wait for the reader that holds the gate; called before a commit begins."""
        if self._lock.acquire(timeout=_MOST_S):
            self._lock.release()


def read_in_rounds(
    read: Callable[[], R],
    was_overtaken: Callable[[Exception], bool],
    gate: AbstractContextManager[Any] | None,
    rounds: int = ROUNDS,
) -> R:
    """Return what `read` gives, which takes a newer snapshot in each round; what the last round raises is raised.

    `was_overtaken`: whether an error says that two batches were committed since the snapshot was taken; any other one is
    raised.
    `gate`: held from the second round on; None where commits are another process's.
    """
    for number in range(rounds):
        try:
            with gate if gate is not None and number >= _FREE_ROUNDS else nullcontext():
                return read()
        except Exception as error:
            if number == rounds - 1 or not was_overtaken(error):
                raise
    raise AssertionError("the last round returns or raises")
