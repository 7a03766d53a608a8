"""Errors of components, as status and page show them: the last ones of each, and each of them once for who reports them."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from trident.observe.events import AttemptFailed

WHOLE_TOPOLOGY = "__topology"
"""The component of an error that ended the topology."""

_KEPT = 10
_MOST_COMPONENTS = 1000


@dataclass(frozen=True)
class ReportedError:
    """An error of a component, as status and page show it.

    `task`: 0 if it is that of no task.
    `time`: seconds since 1970.
    `text`: the exception with its traceback.
    `attempt`: the attempt at a batch that it ended, if it did.
    """

    component: str
    task: int
    host: str
    time: float
    text: str
    attempt: AttemptFailed | None = None

    @classmethod
    def of(cls, component: str, task: int, error: BaseException) -> Self:
        """Return an error of this process, now."""
        return cls(component, task, socket.gethostname(), time.time(), "".join(traceback.format_exception(error)))


class LastErrors:
    """The last ten errors of each component. Any thread may use it."""

    def __init__(self) -> None:
        self._errors: dict[str, deque[ReportedError]] = {}
        self._host = socket.gethostname()
        self._lock = threading.Lock()

    def add(self, component: str, text: str, at: float, attempt: AttemptFailed | None = None) -> None:
        """Add an error of this host."""
        with self._lock:
            if component not in self._errors and len(self._errors) < _MOST_COMPONENTS:
                self._errors[component] = deque(maxlen=_KEPT)
            if component in self._errors:
                self._errors[component].append(ReportedError(component, 0, self._host, at, text, attempt))

    def all(self) -> list[ReportedError]:
        """Return all of them, oldest first."""
        with self._lock:
            errors = [each for of_component in self._errors.values() for each in of_component]
        return sorted(errors, key=lambda each: each.time)


class ErrorFeed:
    """Returns each error of a running topology once, for a caller that reports errors elsewhere; for one thread.

    Of more than ten errors of a component between two calls, only the last ten are returned.
    """

    def __init__(self, errors: Callable[[], Sequence[ReportedError]]) -> None:
        self._errors = errors
        self._reported: frozenset[ReportedError] = frozenset()

    def new(self) -> list[ReportedError]:
        """Return the errors since the last call, oldest first."""
        errors = self._errors()
        new = [each for each in errors if each not in self._reported]
        self._reported = frozenset(errors)
        return new
