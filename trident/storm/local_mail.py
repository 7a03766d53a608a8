"""How deliveries get to executors of this process."""

from __future__ import annotations

from collections.abc import Mapping

from trident.storm.execution.inbox import Inbox
from trident.storm.execution.messages import Body
from trident.storm.execution.storm_worker import Worker
from trident.storm.execution.task_layout import Layout

__all__ = ["LocalMail", "inboxes_of"]


class LocalMail:
    """What one worker's executors send with, to all inboxes of this process."""

    def __init__(self, inboxes: Mapping[int, Inbox]) -> None:
        self._inboxes = inboxes
        self.worker: Worker | None = None

    def send(self, task: int, body: Body) -> None:
        """Hand over; never waits."""
        self._inboxes[task].put((task, body))

    def is_open(self, task: int) -> bool:
        """Whether the queue in front of a task has room."""
        return self._inboxes[task].is_open

    def wait_until_open(self, task: int) -> None:
        """Return when it has, or when the worker stops."""
        while not (self.worker and self.worker.stopping) and not self._inboxes[task].wait_until_open(0.05):
            pass


def inboxes_of(layout: Layout, capacity: int) -> dict[int, Inbox]:
    """Return an inbox for each executor, by its tasks."""
    found: dict[int, Inbox] = {}
    for each in layout.executors:
        found |= dict.fromkeys(each.tasks, Inbox(capacity))
    return found
