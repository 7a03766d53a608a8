"""Runs the tasks of a spout in one thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from trident.spout.rich import Activated
from trident.storm.execution.collectors import Pending, PendingMessage, SpoutCollector, TaskCounts
from trident.storm.execution.executor import Executor, Setting, TaskError
from trident.storm.execution.messages import Delivery, Outcomes
from trident.storm.interfaces import IRichSpout
from trident.storm.storm_topology import ExecutorPlace

_AT_ONCE = 64  # calls of next_tuple before what they emitted is sent
_HELD_BACK_S = 0.001  # for longer than this nothing waits to be sent


class SpoutTask:
    """One instance of a spout, and its messages."""

    def __init__(self, spout: IRichSpout, pending: Pending, collector: SpoutCollector, max_pending: int | None) -> None:
        self.spout = spout
        self.pending = pending
        self.collector = collector
        self.counts = TaskCounts[str]()
        self.max_pending = max_pending
        self._acks_untracked = False

    def may_emit(self) -> bool:
        """Whether it has fewer unanswered messages than it may have."""
        return self.max_pending is None or self.pending.count < self.max_pending

    def ack(self, message: PendingMessage, now: float) -> None:
        message_id, stream, emitted_at = message
        counts = self.counts[stream]
        counts.acked += 1
        counts.complete_s += now - emitted_at
        counts.complete_samples += 1
        self.spout.ack(message_id)

    def fail(self, message: PendingMessage) -> None:
        message_id, stream, _ = message
        self.counts[stream].failed += 1
        self.spout.fail(message_id)

    def ack_untracked(self) -> None:
        """Acknowledge what is not tracked, or went to no bolt; what an ack emits is acknowledged after it returned."""
        if self._acks_untracked:
            return
        self._acks_untracked = True
        try:
            while self.pending.answered_at_once:
                message_id, stream = self.pending.answered_at_once.popleft()
                self.counts[stream].acked += 1
                self.spout.ack(message_id)
        finally:
            self._acks_untracked = False


class SpoutExecutor(Executor):
    """One thread of a spout. It asks for no tuples while a queue is full, and goes on to take acks."""

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        super().__init__(place, setting)
        self._clock = setting.clock
        self._conf = setting.conf_of(place.component)
        self._readers = tuple(setting.read_by(place.component))
        self.tasks: dict[int, SpoutTask] = {}
        self._notified_active: bool | None = None
        self._next_rotation = setting.clock() + setting.conf.message_timeout_s

    @property
    def at_rest(self) -> bool:
        """Whether the spouts know that they are not asked, and nothing is pending."""
        return self._notified_active is False and not self.active and self.pending == 0

    @property
    def pending(self) -> int:
        return sum(len(each.pending) for each in list(self.tasks.values()))

    def open(self) -> None:
        for task in self.place.tasks:
            pending = Pending(self._clock)
            collector = SpoutCollector(pending, *(given := self._given(task)))
            spout: IRichSpout = self._setting.instance(self.place.component, task)
            made = self.tasks[task] = SpoutTask(spout, pending, collector, self._conf["max_spout_pending"])
            self.collectors[task], self.counts[task] = collector, made.counts
            self.instances[task], self._ends[task] = spout, spout.close
            collector.ack_untracked = partial(self._call, task, "ack", made.ack_untracked)
            self._call(task, "open", spout.open, self._conf, given[0], collector)

    def step(self, deliveries: Sequence[Delivery]) -> float:
        """Tell the spouts what became of their messages, then ask them for more."""
        began = self._clock()
        for task, outcomes in deliveries:
            self._take_outcomes(task, outcomes, began)  # type: ignore[arg-type]
        if began >= self._next_rotation:
            self._next_rotation = began + self._setting.conf.message_timeout_s
            for task, each in self.tasks.items():
                for message in each.pending.rotate():
                    self._call(task, "fail", each.fail, message)
        emitted = self._ask() if self._is_active() else False
        for each in self.tasks.values():  # what `open`, `activate`, an ack or a fail emitted to no bolt
            if each.pending.answered_at_once:
                each.collector.ack_untracked()
        self._outbox.flush()
        return 0.0 if emitted else self._setting.conf.spout_wait_ms / 1000

    def _ask(self) -> bool:
        """Call `next_tuple` of each task until nothing comes, or for a millisecond; whether anything was emitted last."""
        is_open = self._setting.mail.is_open
        if not all(map(is_open, self._readers)):
            return False
        clock = self._clock
        began = now = self.uncounted_since = clock()
        emitted = False
        for _ in range(_AT_ONCE):
            emitted = False
            for task, each in self.tasks.items():
                if not each.may_emit():
                    continue
                collector = each.collector
                before, self.call_since = collector.emits, now
                try:
                    each.spout.next_tuple()
                except TaskError:  # of an ack within the emit
                    raise
                except Exception as error:
                    raise TaskError(self.place.component, task, "next_tuple") from error
                emitted |= collector.emits != before
                if each.pending.answered_at_once:
                    collector.ack_untracked()
                now = clock()
            if not emitted or now - began > _HELD_BACK_S:
                break
        for each in self.tasks.values():
            each.counts.busy_s += (now - began) / len(self.tasks)
        self.uncounted_since = 0.0
        return emitted

    def _take_outcomes(self, task: int, outcomes: Outcomes, now: float) -> None:
        each, clock = self.tasks[task], self._clock
        try:
            for root in outcomes.acked:
                message = each.pending.take(root)
                if message is not None:
                    self.call_since = clock()
                    each.ack(message, now)
        except TaskError:  # of an ack within an emit
            raise
        except Exception as error:
            raise TaskError(self.place.component, task, "ack") from error
        for root in outcomes.failed:
            message = each.pending.take(root)
            if message is not None:
                self._call(task, "fail", each.fail, message)
        for root in outcomes.extended:
            each.pending.extend(root)

    def _is_active(self) -> bool:
        """Whether tuples are asked for; notifies the spouts when that changes."""
        active = self.active
        if active is not self._notified_active:
            self._notified_active = active
            for task, each in self.tasks.items():
                if isinstance(each.spout, Activated):
                    self._call(
                        task, *(("activate", each.spout.activate) if active else ("deactivate", each.spout.deactivate))
                    )
        return active

    def _call(self, task: int, what: str, function: Any, *args: Any) -> None:
        self.call_since = self._clock()
        try:
            function(*args)
        except TaskError:  # of an ack within an emit
            raise
        except Exception as error:
            raise TaskError(self.place.component, task, what) from error
