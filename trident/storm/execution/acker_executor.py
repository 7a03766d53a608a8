"""Runs the tasks of the system component `__acker` in one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.storm.execution.acker import Acker
from trident.storm.execution.executor import Setting
from trident.storm.execution.messages import Delivery
from trident.storm.execution.task_layout import ExecutorPlace

__all__ = ["AckerExecutor"]


class AckerExecutor:
    """One thread of ackers."""

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        self.place = place
        self.active = True
        self._setting = setting
        self.ackers: dict[int, Acker] = {}
        self.instances: dict[int, Any] = {}
        self.handled = 0
        self.busy_s = self.call_since = self.uncounted_since = 0.0
        self._next_rotation = setting.clock() + setting.conf.message_timeout_s

    @property
    def at_rest(self) -> bool:
        """What waits for it is in its inbox."""
        return True

    @property
    def pending(self) -> int:
        """Ackers have no messages of their own."""
        return 0

    def open(self) -> None:
        """Begin with no trees: those of an acker that died time out at their spouts."""
        self.ackers = {task: Acker(self._setting.mail.send) for task in self.place.tasks}
        self.instances = dict(self.ackers)

    def step(self, deliveries: Sequence[Delivery]) -> float:
        """Take in news of trees."""
        began = self._setting.clock()
        for task, news in deliveries:
            self.ackers[task].handle(news)  # type: ignore[arg-type]
        now = self._setting.clock()
        self.handled += len(deliveries)
        self.busy_s += now - began
        if now >= self._next_rotation:
            self._next_rotation = now + self._setting.conf.message_timeout_s
            for acker in self.ackers.values():
                acker.rotate()
        return self._next_rotation - now

    def close(self) -> None:
        """There is nothing to release."""
