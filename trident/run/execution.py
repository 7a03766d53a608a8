"""Attempts: each is started, processed and committed in the threads that suit it; each result is a message to the loop.

Handing a batch to another thread costs more than a small batch does; the loop's own thread costs nothing, but sees to nothing
else meanwhile. So it takes batches that are wanted one by one, or done in no time.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident
from time import monotonic, thread_time
from types import FrameType
from typing import NamedTuple

from trident.channel import Channel, DaemonPool, thread_stacks
from trident.engine.fragment_runs import TaskOutput
from trident.engine.replay_check import ReplayCheck
from trident.engine.runners import AutoRunner, Runner
from trident.engine.worker import Order, Part
from trident.errors import FencedError, describe
from trident.log.log_state import LogState
from trident.log.records import TIME
from trident.naming import shown
from trident.observe.health import RunningBatch, place_of
from trident.read import views
from trident.run.batch import LOOP, Batch, Begun, Lane, LoopMessage, Observer, Result
from trident.run.committer import Committed
from trident.run.opened_topology import OpenedTopology
from trident.run.placements import is_all_in_memory, roaming_states
from trident.run.sources import Sources
from trident.spout.interfaces import Quick, TransactionAttempt
from trident.state import values
from trident.state.interfaces import STORE_CALLS
from trident.state.txid import Txid
from trident.steps.applying import only_kernels
from trident.steps.failures import CALLERS, ENTERED, AtStep, Failure, StepFailed, failure_of
from trident.windows.window_partitions import Now

logger = logging.getLogger(__name__)

_BRIEF_BYTES = 96 << 10  # such a batch, if it meets kernels and memory only, is done sooner than it is handed over
_OURS = str(Path(__file__).parents[1])
_STATE = str(Path(values.__file__).parent)


class _Call(NamedTuple):
    frame: FrameType  # of the function that the step called
    step: AtStep
    given: object  # how much it has given so far, if it gives many objects


# Of the runner, about how many bytes the batch has, and whether no other is in flight.
LaneOf = Callable[[Runner, int | None, bool], Lane]


def lanes(pools: Lane, one_by_one: bool = False, by_size: bool = False) -> LaneOf:
    """Return where the batches of a topology go: to other threads, one while another commits, or to the loop's own."""
    brief_in_loop, brief_in_pools = replace(LOOP, brief=True), replace(pools, brief=True)

    def lane_of(runner: Runner, size: int | None, alone: bool) -> Lane:
        if one_by_one:
            return LOOP if runner.here else pools  # what Spark runs may be overdue, which the loop has to notice
        if not by_size or size is None or size > _BRIEF_BYTES or not runner.here:
            return pools
        # Only behind a large one is a small one handed over: in the loop it would wait for that one's commit.
        return brief_in_loop if alone else brief_in_pools

    return lane_of


def lanes_of(opened: OpenedTopology) -> LaneOf:
    name, plan, config = opened.plan.topology, opened.plan, opened.config
    # A user's own spout may wait for its source.
    emitters = opened.runner.program.emitters.values()
    at_hand = all(isinstance(emitter, Quick) and emitter.is_quick for emitter in emitters)
    # Else user code or a server is involved, and the time that a batch takes does not depend on its size alone.
    by_size = at_hand and is_all_in_memory(plan) and opened.committer.is_quick and only_kernels(plan)
    # Each attempt may hang, and the next one needs a thread.
    processing = DaemonPool(config.max_spout_pending * (config.max_batch_attempts + 1), f"trident-{name}-process")
    committing = DaemonPool(1, f"trident-{name}-commit")
    opened.closers.add("processing", lambda: processing.shutdown(wait=False, cancel_futures=True))
    opened.closers.add("committing", committing.shutdown)
    one_by_one = config.max_spout_pending == 1
    return lanes(Lane(processing.submit, committing.submit), one_by_one, by_size)


class Attempts:
    """Processes and commits attempts. An exception of one comes back to the loop, which waits for it."""

    def __init__(
        self,
        opened: OpenedTopology,
        sources: Sources,
        lane_of: LaneOf,
        observe: Observer | None,
        inbox: Channel[LoopMessage | None],
    ) -> None:
        self._name, self._committer = opened.plan.topology, opened.committer
        self._by_size = opened.runner if isinstance(opened.runner, AutoRunner) else None
        self._log, self._partitions, self._replays = opened.log, opened.plan.partitions, opened.replays
        self._sources, self._lane_of = sources, lane_of
        self._observe, self._report = observe, inbox.put
        self._begun: dict[TransactionAttempt, Begun] = {}  # what threads are at
        self._seen: dict[int, tuple[float, _Call]] = {}
        self._roaming, self._fencing = roaming_states(opened.plan, opened.states, opened.executors), threading.Lock()

    def start(self, batch: Batch, alone: bool) -> None:
        """Choose the runner and the threads for a batch, and start its processing; `alone`: no other batch is in flight."""
        if self._by_size is not None:
            batch.runner = self._by_size.of_size(batch.size)
        batch.lane = self._lane_of(batch.runner, batch.size, alone)
        # With none in flight, the batch before is recorded (R2).
        batch.commits_now = bool(batch.runner.commits) and alone and batch.undecided is None
        order = order_of(batch)
        if batch.commits_now:
            order = order._replace(txids=txids_of(batch.attempt, self._log.state, self._partitions))
        parts = self._sources.cut(batch)
        batch.tasks = len(parts)
        batch.lane.process(partial(self.process, batch, parts, order))

    def start_commit(self, batch: Batch) -> None:
        order = order_of(batch)._replace(txids=txids_of(batch.attempt, self._log.state, self._partitions))
        batch.lane.commit(partial(self.commit, batch, order))

    def process(self, batch: Batch, parts: Sequence[Part], order: Order) -> None:
        """Run the stages of an attempt up to the inputs of its states, or, if the order has txids, states in executors too."""
        if batch.runner.here:
            self._begun[batch.attempt] = Begun(batch.attempt.txid, get_ident(), monotonic(), watched=batch.lane.in_loop)
        before = 0.0 if batch.undecided is None else thread_time()  # a system call, which only an idle look needs
        result: Result
        try:
            if batch.commits_now:
                order = self._fence(batch, order)
            check = None if self._replays is None else self._check_of(self._replays, batch, parts)
            if check is not None and batch.runner.here:
                parts = check.read(parts)  # once for all that processes it
            output = batch.runner.process(parts, order)
            if check is not None and output.failure is None:
                batch.checked = check.check(parts, order, output if batch.runner.here else None)
            result = _cause(output) or output
        except BaseException as error:  # noqa: BLE001  a lost worker or executor fails the attempt
            result = _meaning(error, "spark")
        finally:
            self._begun.pop(batch.attempt, None)
        if batch.undecided is not None:
            batch.cost_s = thread_time() - before
        self._report((batch.attempt, result))

    def _check_of(self, check: ReplayCheck, batch: Batch, parts: Sequence[Part]) -> ReplayCheck | None:
        # One that failed must not fail again because this takes longer; Spark may have more rows than this process can hold.
        if batch.tries > 1 or batch.capture or (batch.size is None and not batch.runner.here):
            return None
        return check if check.chooses(batch.attempt.txid, parts, batch.size or 0) else None

    def _fence(self, batch: Batch, order: Order) -> Order:
        """Return the order with the txids as this attempt's tasks must see the partitions of the states.

        A task of an earlier attempt that is paused, not dead, may write when it wakes up, until its partition is this
        attempt's. Where keys roam, another partition may have written the same key by then: so all are taken first.
        """
        if not self._roaming or batch.tries == 1:
            return order
        with self._fencing:  # a dead attempt may still be at it, and the states are used by one thread at a time
            return order._replace(txids=self._committer.fence(self._roaming, order.txids))

    def commit(self, batch: Batch, order: Order) -> None:
        """Apply a processed attempt to all states: first those that tasks commit, then this process's."""
        result: Result | None = None
        try:
            order = order if batch.commits_now else self._fence(batch, order)
            if batch.output.kept is not None:  # the loop ends the attempt if this takes too long
                batch.output = batch.runner.commit(batch.output, order)
                result = _cause(batch.output)
        except BaseException as error:  # noqa: BLE001  a lost worker or executor fails the attempt
            result = _meaning(error, "spark")
        if result is None:
            self._begun[batch.attempt] = Begun(batch.attempt.txid, get_ident(), monotonic(), watched=True, commits=True)
            try:
                result = self._commit_states(batch, order)
            except BaseException as error:  # noqa: BLE001  unsaid, the loop would wait for this commit for ever
                result = _meaning(error, "commit")
            finally:
                self._begun.pop(batch.attempt, None)
        self._report((batch.attempt, result))

    def _commit_states(self, batch: Batch, order: Order) -> Committed:
        if self._observe is not None:
            self._observe("committing", batch.attempt)
        committed = self._committer.commit(order, batch.output, batch.runner.commits)
        if batch.tries > 1:
            committed.touched.update({name: list(range(len(order.txids[name]))) for name in self._roaming})
        if self._observe is not None:
            self._observe("committed", batch.attempt)
        return committed

    def cancel(self, batch: Batch) -> None:
        """Ask the runner to stop with an attempt; its result is ignored in any case."""
        try:
            batch.runner.cancel(batch.attempt)
        except Exception as error:  # noqa: BLE001  what it holds is free once it is done
            logger.warning("topology %s: attempt %s was not cancelled: %s", self._name, batch.attempt, describe(error))

    def overdue(self, limit_s: float, cause: str) -> tuple[int, Failure] | None:
        """Return a watched batch whose thread has been in one call of user code for `limit_s` seconds, and the place."""
        # A call hangs if two looks that far apart, and every look between them, find it: many short ones may take long.
        now, stacks = monotonic(), thread_stacks()
        before, self._seen = self._seen, {}
        asked = self._sources.asked
        for begun in [*self._begun.values(), *([] if asked is None else [asked])]:
            for thread in self._threads(begun) if begun.watched else ():
                call = _call(stacks.get(thread), _step_of(thread, begun))
                if call is None:
                    continue
                since, earlier = before.get(thread, (now, call))
                since = since if (call.frame, call.given) == (earlier.frame, earlier.given) else now
                self._seen[thread] = since, call
                if now - since >= limit_s:
                    return begun.txid, _failure(stacks[thread], call, cause)
        return None

    def hanging(self, attempt: TransactionAttempt, cause: str) -> Failure | None:
        """Return a failure that names what the attempt is at; None where no thread of this process is in the user's code."""
        for frame, step in self._at(self._begun.get(attempt)):
            if (call := _call(frame, step)) is not None:
                return _failure(frame, call, cause)
        return None

    def asked_batch(self) -> RunningBatch | None:
        asked = self._sources.asked
        if asked is None:
            return None
        return RunningBatch(asked.txid, "define", monotonic() - asked.since, 1, *self._place_of(asked))

    def place_of(self, attempt: TransactionAttempt) -> tuple[str, str]:
        """Return the step that a thread of this process is at for an attempt, and the line; "" for what is not known."""
        return self._place_of(self._begun.get(attempt))

    def _place_of(self, begun: Begun | None) -> tuple[str, str]:
        for frame, step in self._at(begun):
            if (frames := _frames(frame)) and step is not None:
                users = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OURS)]
                return step.step, place_of(users[-1] if users else frames[0])
        return "", ""

    def _at(self, begun: Begun | None) -> list[tuple[FrameType, AtStep | None]]:
        """Return where the threads are that work on an attempt: the innermost frame, and the step."""
        if begun is None:
            return []
        stacks = thread_stacks()
        return [(stacks[thread], _step_of(thread, begun)) for thread in self._threads(begun) if thread in stacks]

    def _threads(self, begun: Begun) -> list[int]:
        return [begun.thread, *(self._committer.threads() if begun.commits else ())]


def _meaning(error: BaseException, where: str) -> Failure | BaseException:
    """Return what an exception means: it fails the attempt, but `SystemExit` and its like end the topology."""
    if isinstance(error, StepFailed):
        return error.__cause__ if isinstance(error.__cause__, FencedError) else error.failure
    return failure_of(where, error) if isinstance(error, Exception) else error


def _cause(output: TaskOutput) -> Failure | FencedError | None:
    return FencedError(*output.fenced) if output.fenced else output.failure


def order_of(batch: Batch) -> Order:
    """Return what all are told that process a batch; those that commit it need its txids, too."""
    time = batch.definitions.get(TIME)
    now = None if time is None else Now(time["now"], "begins_again" in time)
    return Order(batch.attempt, batch.capture, {}, now)


def txids_of(attempt: TransactionAttempt, log: LogState, partitions: Mapping[str, int]) -> dict[str, list[Txid]]:
    """Return, by state, the batch's txid as each of its partitions must see it."""
    return {name: log.commits(name, count, *attempt) for name, count in partitions.items()}


def _step_of(thread: int, begun: Begun) -> AtStep | None:
    return next(reversed(ENTERED.get(thread, ())), AtStep(begun.spout) if begun.spout else None)


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Return a thread's frames up to the function that calls the user's code, the innermost first; none if it is elsewhere."""
    frames = [] if innermost is None else [frame for frame, _ in traceback.walk_stack(innermost)]
    callers = (at for at, frame in enumerate(frames) if frame.f_code in CALLERS)
    return frames[: next(callers, -1) + 1]


def _call(innermost: FrameType | None, step: AtStep | None) -> _Call | None:
    """Return the call of user code that a step made; None if the thread is elsewhere."""
    users = None
    for frame in _frames(innermost):
        file = frame.f_code.co_filename
        if file == values.__file__:  # of the modules of states only this one calls operations
            break
        # A store has limits of its own, and a large commit may take long.
        if file.startswith(_STATE) or file == views.__file__ or frame.f_code in STORE_CALLS:
            return None
        if not file.startswith(_OURS):
            users = frame  # the last one found is the outermost
    return None if users is None or step is None else _Call(users, step, step.given())


def _failure(innermost: FrameType, call: _Call, cause: str) -> Failure:
    step, row = call.step.step, call.step.row()
    on = "" if row is None else f" on tuple {shown(row)}"
    where = f"{call.frame.f_code.co_name}, {call.frame.f_code.co_filename}:{call.frame.f_lineno}"
    details = "".join(traceback.format_stack(innermost))
    return Failure(step, None, f"{cause}; it is still{on} in {where}", details=details)
