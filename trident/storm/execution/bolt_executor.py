"""Runs the tasks of a bolt in one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trident.errors import FailedException, ReportedFailedException
from trident.fields import Fields
from trident.storm.execution.collectors import BasicCollector, BoltCollector
from trident.storm.execution.executor import Executor, Setting, TaskError
from trident.storm.execution.messages import Delivery
from trident.storm.interfaces import IBasicBolt, is_basic
from trident.storm.storm_topology import ExecutorPlace
from trident.storm.storm_tuples import SYSTEM, TICK_STREAM, Origin, SentTuple, Tuple

logger = logging.getLogger("trident.storm")

_TICK = Origin(SYSTEM, -1, TICK_STREAM, Fields("rate_secs: double"))
_HELD_BACK_S = 0.01  # nothing waits for longer than this to be sent, unless one call of execute takes longer
_SAMPLED = 20  # one tuple in so many is timed from its execution to its answer, as in Storm


class BoltExecutor(Executor):
    """One thread of a bolt."""

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        super().__init__(place, setting)
        self._conf = setting.conf_of(place.component)
        self._answering: dict[int, Callable[[Tuple], None]] = {}  # of basic bolts
        self._until_sample = 1
        now = setting.clock()
        self._tick_s: float | None = self._conf["tick_tuple_freq_s"]
        self._next_tick = now + (self._tick_s or 0)
        self._next_look = now + setting.conf.message_timeout_s
        self._answered_before: dict[int, int] = {}

    def open(self) -> None:
        component = self.place.component
        for task in self.place.tasks:
            collector = BoltCollector(*(given := self._given(task)))
            bolt = self._setting.instance(component, task)
            basic = is_basic(bolt)
            if basic:
                self._answering[task] = answering(bolt, collector)
            try:
                bolt.prepare(self._conf, given[0], *(() if basic else (collector,)))
            except Exception as error:
                raise TaskError(component, task, "prepare") from error
            self.instances[task], self._ends[task] = bolt, bolt.cleanup
            self.collectors[task], self.counts[task] = collector, collector.counts

    def step(self, deliveries: Sequence[Delivery]) -> float:
        """Execute the tuples of deliveries; return the seconds until the next tick."""
        flush_at = self._setting.clock() + _HELD_BACK_S
        for task, tuples in deliveries:
            flush_at = self._execute(task, tuples, flush_at)  # type: ignore[arg-type]
        now = self._setting.clock()
        if self._tick_s is not None and now >= self._next_tick:
            self._next_tick = now + self._tick_s
            for task in self.place.tasks:
                self._execute(task, [((self._tick_s,), _TICK, None, 0)], flush_at)
        self._outbox.flush()
        if now >= self._next_look:
            self._look_for_answers(now)
        return min(self._next_look, self._next_tick if self._tick_s is not None else self._next_look) - now

    def _execute(self, task: int, tuples: list[SentTuple], flush_at: float) -> float:
        """Execute tuples, and send what resulted from them by a certain time; return the time by which to send the next."""
        execute = self._answering.get(task) or self.instances[task].execute  # which a bolt may change while it runs
        counts, clock = self.counts[task], self._setting.clock
        began = now = self.uncounted_since = clock()
        started = began if self._is_sample(tuples) else 0.0
        each, origin = None, tuples[0][1]
        holder = counts[origin]
        try:
            for values, source, root, edge in tuples:
                if source is not origin:
                    holder.execute_s += now - began
                    began, origin, holder = now, source, counts[source]
                each = Tuple()  # without `__init__`, which would take as long as all of this
                each.values = values
                each.origin = origin
                each.root = root
                each.edge = edge
                each.holder = holder
                each.started = started
                started = 0.0
                holder.executed += 1
                self.call_since = now
                execute(each)
                now = clock()
                if now > flush_at:  # answers of a slow bolt must not wait for the rest of the delivery
                    self._outbox.flush()
                    now = clock()
                    flush_at = now + _HELD_BACK_S
        except Exception as error:
            raise TaskError(self.place.component, task, f"execute {each!r}") from error
        finally:
            holder.execute_s += clock() - began
            self.uncounted_since = 0.0
        return flush_at

    def _is_sample(self, tuples: list[SentTuple]) -> bool:
        """Whether the first of these tuples is to be timed."""
        self._until_sample -= len(tuples)
        if self._until_sample > 0 or tuples[0][1] is _TICK:
            return False
        self._until_sample += _SAMPLED * (1 - self._until_sample // _SAMPLED)
        return True

    def _look_for_answers(self, now: float) -> None:
        """Warn of a bolt that answers nothing: every message behind its tuples times out."""
        timeout = self._setting.conf.message_timeout_s
        self._next_look = now + timeout
        for task, counts in self.counts.items():
            given = [each for origin, each in counts.items() if origin.component != SYSTEM]  # ticks need no answer
            answered = sum(each.acked + each.failed for each in given)
            unanswered = sum(each.executed for each in given) - answered
            if unanswered and answered == self._answered_before.get(task, 0):
                logger.warning(
                    "bolt %s (task %d) holds %d tuples and has answered none for %g s; call collector.ack or fail for each, "
                    "or derive it from BaseBasicBolt",
                    self.place.component,
                    task,
                    unanswered,
                    timeout,
                )
            self._answered_before[task] = answered


def answering(bolt: IBasicBolt, collector: BoltCollector) -> Callable[[Tuple], None]:
    """Return `execute` of the rich bolt that a basic bolt is: it answers the tuple, and what it emits is anchored to that."""
    basic, run = BasicCollector(collector), bolt.execute

    def execute(tuple: Tuple) -> None:
        basic.anchor = tuple
        try:
            run(tuple, basic)
        except FailedException as error:
            if isinstance(error, ReportedFailedException):
                collector.report_error(error)
            collector.fail(tuple)
        else:
            collector.ack(tuple)

    return execute
