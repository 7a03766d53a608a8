"""The tracked tuples of one spout task that are not answered yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

PendingMessage = tuple[Any, str, float]
"""A spout's message while its tree is processed: its id, its stream and when it was emitted."""


class Pending:
    """Messages by the root of their tree.

    In two generations: without a clock for each, a tree times out after one to two message timeouts, as in Storm.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._young: dict[int, PendingMessage] = {}
        self._older: dict[int, PendingMessage] = {}
        self.count = 0  # asked for before each call of `next_tuple`, so it is kept
        self.answered_at_once: deque[tuple[Any, str]] = deque()
        """Messages that nothing is tracked of: acknowledged within the emit without ackers, else (they go to no bolt) after
        the spout's call."""

    def __len__(self) -> int:
        return self.count

    def put(self, root: int, message_id: Any, stream: str) -> None:
        """Keep a message until its tree is complete."""
        self._young[root] = message_id, stream, self._clock()
        self.count += 1

    def take(self, root: int) -> PendingMessage | None:
        """Return a message that is answered now; None if it timed out before, or another worker emitted it."""
        message = self._young.pop(root, None) or self._older.pop(root, None)
        self.count -= message is not None
        return message

    def extend(self, root: int) -> None:
        """Give a message the whole timeout again."""
        message = self.take(root)
        if message is not None:
            self._young[root] = message
            self.count += 1

    def rotate(self) -> list[PendingMessage]:
        """Return the messages that have timed out; called once in each message timeout."""
        timed_out, self._older, self._young = self._older, self._young, {}
        self.count -= len(timed_out)
        return list(timed_out.values())
