"""`Channel`: messages that many threads put and one takes."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Messages for one thread, oldest first.

    In place of `queue.SimpleQueue`: before Python 3.13 its `get` never returns if its timeout is over before it begins to wait.
    `queue.Queue` holds a lock that a signal handler, which may put a message too, would wait for in the same thread.

    `messages`: those that have come and were not taken, only to be looked at.
    """

    def __init__(self) -> None:
        self.messages: deque[T] = deque()
        self._come = Lock()  # released when a message has come since one was last waited for
        self._come.acquire()

    def put(self, message: T) -> None:
        """Add a message, from any thread or signal handler."""
        self.messages.append(message)
        if self._come.locked():
            with suppress(RuntimeError):  # another thread has just done so
                self._come.release()

    def take(self, wait_s: float = 0.0, most: int = 1) -> list[T]:
        """Return the oldest messages, `most` at the most; empty if none comes within `wait_s` seconds."""
        messages = self.messages
        if not messages and wait_s > 0:
            until = monotonic() + wait_s
            # It may have been released for a message that was taken without waiting.
            while not messages and self._come.acquire(timeout=max(0.0, until - monotonic())):
                pass
        return [messages.popleft() for _ in range(min(len(messages), most))]
