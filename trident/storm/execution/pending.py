"""The tracked tuples of one spout task that are not answered yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_GENERATIONS = 2  # a tree times out after one to two message timeouts, as in Storm


PendingMessage = tuple[Any, str, float]
"""A spout's message while its tree is processed: its id, its stream and when it was emitted."""


class Pending:
    """Messages by the root of their tree."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: RotatingMap[PendingMessage] = RotatingMap(_GENERATIONS)
        self.answered_at_once: deque[tuple[Any, str]] = deque()
        """Messages that nothing is tracked of: acknowledged within the emit without ackers, else (they go to no bolt) after
        the spout's call."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def put(self, root: int, message_id: Any, stream: str) -> None:
        """Keep a message until its tree is complete."""
        self._messages.young[root] = message_id, stream, self._clock()
        self.count += 1

    def take(self, root: int) -> PendingMessage | None:
        """Return a message that is answered now; None if it timed out before, or another worker emitted it."""
        message = self._messages.pop(root)
        self.count -= message is not None
        return message

    def extend(self, root: int) -> None:
        """Give a message the whole timeout again."""
        self._messages.touch(root)

    def rotate(self) -> list[PendingMessage]:
        """Return the messages that have timed out; called once in each message timeout."""
        timed_out = list(self._messages.rotate().values())
        self.count -= len(timed_out)
        return timed_out


# `RotatingMap`: entries that are not touched for a while fall out of it, without a clock for each.

V = TypeVar("V")


class RotatingMap(Generic[V]):
    """A dict of generations: new entries go into `young`, `rotate` drops the oldest and returns it.

    With g generations and a rotation every T seconds an entry falls out after (g - 1) * T to g * T seconds.
    """

    def __init__(self, generations: int) -> None:
        self.young: dict[int, V] = {}
        self._older: deque[dict[int, V]] = deque({} for _ in range(generations - 1))

    def pop(self, key: int) -> V | None:
        """Take an entry out; None if there is none."""
        if key in self.young:
            return self.young.pop(key)
        for generation in self._older:
            if key in generation:
                return generation.pop(key)
        return None

    def touch(self, key: int) -> None:
        """Move an entry to the youngest generation, if there is one."""
        value = self.pop(key)
        if value is not None:
            self.young[key] = value

    def rotate(self) -> dict[int, V]:
        """Begin a new generation; return what falls out."""
        self._older.appendleft(self.young)
        self.young = {}
        return self._older.pop()
