"""Executors: each runs the tasks of one spout, bolt or acker in one thread."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trident.errors import FailedException, ReportedFailedException
from trident.fields import Fields
from trident.spout.rich import Activated
from trident.storm.execution.acker import Acker
from trident.storm.execution.collectors import BasicCollector, BoltCollector, SpoutCollector, TaskCounts
from trident.storm.execution.launch import Setting, TaskError
from trident.storm.execution.messages import Delivery, Outbox, Outcomes
from trident.storm.interfaces import IBasicBolt, IRichSpout, is_basic
from trident.storm.storm_topology import ACKER, ExecutorPlace
from trident.storm.storm_tuples import SYSTEM, TICK_STREAM, Origin, SentTuple, Tuple

logger = logging.getLogger("trident.storm")

_CALLS_AT_ONCE = 64  # of next_tuple, before what they emitted is sent
_SPOUT_HOLDS_S = 0.001  # for longer than this nothing that a spout emitted waits to be sent
_TICK = Origin(SYSTEM, -1, TICK_STREAM, Fields("rate_secs: double"))
_BOLT_HOLDS_S = 0.01  # the same of a bolt, unless one call of execute takes longer
_SAMPLED = 20  # one tuple in so many is timed from its execution to its answer, as in Storm


class Executor:
    """One thread's work: one or more tasks of one component. `open`, `step` and `close` are called by that thread.

    Other threads read since when the last call of a task's code runs (`call_since`, on the worker's clock; 0 before the first),
    and since when it has worked without having added that to its totals (`uncounted_since`; 0 if it has).
    """

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        self.place, self.active, self._setting = place, True, setting
        uncontrolled = setting.read_by(place.component, on_cycle=True)
        self._outbox = Outbox(setting.mail, setting.layout.tasks.get(ACKER, ()), uncontrolled)
        self.instances: dict[int, Any] = {}
        self.collectors: dict[int, Any] = {}
        self.counts: dict[int, TaskCounts[Any]] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        self.call_since = self.uncounted_since = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether it will send nothing more unless something arrives; what waits for it is in its inbox."""
        return True

    @property
    def pending(self) -> int:
        return 0

    def open(self) -> None:
        raise NotImplementedError

    def step(self, deliveries: Sequence[Delivery]) -> float:
        """Process deliveries; return for how many seconds there is nothing to do unless others come."""
        raise NotImplementedError

    def close(self) -> None:
        """Clean up the instances. The unanswered messages of spouts go back to where they came from."""
        for task, end in self._ends.items():
            try:
                end()
            except Exception as error:  # noqa: BLE001  the other instances are cleaned up too
                self._setting.report(self.place.component, task, error)
            self.collectors[task].close()
        self._outbox.flush()


class SpoutExecutor(Executor):
    """One thread of a spout. It asks for no tuples while a queue is full, and goes on to take acks."""

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        super().__init__(place, setting)
        self._clock = setting.clock
        self._conf = setting.conf_of(place.component)
        self._readers = tuple(setting.read_by(place.component))
        self.collectors: dict[int, SpoutCollector] = {}
        self._notified_active: bool | None = None
        self._next_rotation = setting.clock() + setting.conf.message_timeout_s

    @property
    def at_rest(self) -> bool:
        return self._notified_active is False and not self.active and self.pending == 0

    @property
    def pending(self) -> int:
        return sum(each.pending for each in list(self.collectors.values()))

    def open(self) -> None:
        for task in self.place.tasks:
            spout: IRichSpout = self._setting.instance(self.place.component, task)
            max_pending = self._conf["max_spout_pending"]
            collector = SpoutCollector(spout, max_pending, self._setting, self.place, task, self._outbox)
            self.collectors[task], self.counts[task] = collector, collector.counts
            self.instances[task], self._ends[task] = spout, spout.close
            collector.ack_untracked = partial(self._call, task, "ack", collector.ack_at_once)
            self._call(task, "open", spout.open, self._conf, collector.context, collector)

    def step(self, deliveries: Sequence[Delivery]) -> float:
        began = self._clock()
        for task, outcomes in deliveries:
            self._take_outcomes(task, outcomes, began)  # type: ignore[arg-type]
        if began >= self._next_rotation:
            self._next_rotation = began + self._setting.conf.message_timeout_s
            for task, each in self.collectors.items():
                for message in each.messages.rotate():
                    self._call(task, "fail", each.take_fail, message)
        active = self.active
        if active is not self._notified_active:
            self._notified_active = active
            for task, each in self.collectors.items():
                spout = each.spout
                if isinstance(spout, Activated):
                    self._call(task, *(("activate", spout.activate) if active else ("deactivate", spout.deactivate)))
        emitted = active and self._ask()
        for each in self.collectors.values():  # what `open`, `activate`, an ack or a fail emitted to no bolt
            if each.messages.answered_at_once:
                each.ack_untracked()
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
        for _ in range(_CALLS_AT_ONCE):
            emitted = False
            for task, each in self.collectors.items():
                if each.max_pending is not None and each.messages.count >= each.max_pending:
                    continue
                before, self.call_since = each.emits, now
                try:
                    each.spout.next_tuple()
                except TaskError:  # of an ack within the emit
                    raise
                except Exception as error:
                    raise TaskError(self.place.component, task, "next_tuple") from error
                emitted |= each.emits != before
                if each.messages.answered_at_once:
                    each.ack_untracked()
                now = clock()
            if not emitted or now - began > _SPOUT_HOLDS_S:
                break
        for each in self.collectors.values():
            each.counts.busy_s += (now - began) / len(self.collectors)
        self.uncounted_since = 0.0
        return emitted

    def _take_outcomes(self, task: int, outcomes: Outcomes, now: float) -> None:
        each, clock = self.collectors[task], self._clock
        try:
            for root in outcomes.acked:
                message = each.messages.take(root)
                if message is not None:
                    self.call_since = clock()
                    each.take_ack(message, now)
        except TaskError:  # of an ack within an emit
            raise
        except Exception as error:
            raise TaskError(self.place.component, task, "ack") from error
        for root in outcomes.failed:
            message = each.messages.take(root)
            if message is not None:
                self._call(task, "fail", each.take_fail, message)
        for root in outcomes.extended:
            each.messages.extend(root)

    def _call(self, task: int, what: str, function: Any, *args: Any) -> None:
        self.call_since = self._clock()
        try:
            function(*args)
        except TaskError:  # of an ack within an emit
            raise
        except Exception as error:
            raise TaskError(self.place.component, task, what) from error


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
            collector = BoltCollector(self._setting, self.place, task, self._outbox)
            bolt = self._setting.instance(component, task)
            basic = is_basic(bolt)
            if basic:
                self._answering[task] = answering(bolt, collector)
            try:
                bolt.prepare(self._conf, collector.context, *(() if basic else (collector,)))
            except Exception as error:
                raise TaskError(component, task, "prepare") from error
            self.instances[task], self._ends[task] = bolt, bolt.cleanup
            self.collectors[task], self.counts[task] = collector, collector.counts

    def step(self, deliveries: Sequence[Delivery]) -> float:
        flush_at = self._setting.clock() + _BOLT_HOLDS_S
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
                    flush_at = now + _BOLT_HOLDS_S
        except Exception as error:
            raise TaskError(self.place.component, task, f"execute {each!r}") from error
        finally:
            holder.execute_s += clock() - began
            self.uncounted_since = 0.0
        return flush_at

    def _is_sample(self, tuples: list[SentTuple]) -> bool:
        self._until_sample -= len(tuples)
        if self._until_sample > 0 or tuples[0][1] is _TICK:
            return False
        self._until_sample += _SAMPLED * (1 - self._until_sample // _SAMPLED)
        return True

    def _look_for_answers(self, now: float) -> None:
        timeout = self._setting.conf.message_timeout_s
        self._next_look = now + timeout
        for task, counts in self.counts.items():
            given = [each for origin, each in counts.items() if origin.component != SYSTEM]  # ticks need no answer
            answered = sum(each.acked + each.failed for each in given)
            unanswered = sum(each.executed for each in given) - answered
            if unanswered and answered == self._answered_before.get(task, 0):
                logger.warning(
                    "bolt %s (task %d) holds %d tuples and has answered none for %g s; call collector.ack or fail for each, "
                    "or derive it from BaseBasicBolt", self.place.component, task, unanswered, timeout,
                )  # fmt: skip
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


class AckerExecutor(Executor):
    """One thread of ackers."""

    def __init__(self, place: ExecutorPlace, setting: Setting) -> None:
        super().__init__(place, setting)
        self._handled = self.counts.setdefault(place.tasks[0], TaskCounts[str]())[""]
        self._next_rotation = setting.clock() + setting.conf.message_timeout_s

    def open(self) -> None:
        """Begin with no trees: the trees of an acker that died time out at their spouts."""
        self.instances = {task: Acker(self._setting.mail.send) for task in self.place.tasks}

    def step(self, deliveries: Sequence[Delivery]) -> float:
        began = self._setting.clock()
        for task, tracking in deliveries:
            self.instances[task].handle(tracking)
        now = self._setting.clock()
        self._handled.executed += len(deliveries)
        self._handled.execute_s += now - began
        if now >= self._next_rotation:
            self._next_rotation = now + self._setting.conf.message_timeout_s
            for acker in self.instances.values():
                acker.rotate()
        return self._next_rotation - now


def make_executor(place: ExecutorPlace, setting: Setting) -> Executor:
    if place.component == ACKER:
        return AckerExecutor(place, setting)
    kind = SpoutExecutor if place.component in setting.topology.spouts else BoltExecutor
    return kind(place, setting)
