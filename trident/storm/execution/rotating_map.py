"""`RotatingMap`: entries that are not touched for a while fall out of it, without a clock for each."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["RotatingMap"]

V = TypeVar("V")


class RotatingMap(Generic[V]):
    """A dict of generations: `add` writes to the youngest one, `rotate` drops the oldest and returns it.

    With g generations and a rotation every T seconds an entry falls out after (g - 1) * T to g * T seconds.
    """

    def __init__(self, generations: int) -> None:
        self._generations: deque[dict[int, V]] = deque({} for _ in range(generations))

    def add(self, key: int, value: V) -> None:
        """Write an entry whose key is not there yet."""
        self._generations[0][key] = value

    def pop(self, key: int) -> V | None:
        """Take an entry out; None if there is none."""
        for generation in self._generations:
            if key in generation:
                return generation.pop(key)
        return None

    def touch(self, key: int) -> None:
        """Move an entry to the youngest generation, if there is one."""
        value = self.pop(key)
        if value is not None:
            self.add(key, value)

    def rotate(self) -> dict[int, V]:
        """Begin a new generation; return what falls out."""
        self._generations.appendleft({})
        return self._generations.pop()
