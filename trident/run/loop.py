"""BatchLoop: the steps of a batch. One thread leads all batches through them; other threads process and commit, and report.

- R1  A batch is defined after all before it: `MasterBatchCoordinator` hands out the txids.
- R2  Its commit begins after the record of the batch before is durable.
- R3  Its failure ends its attempt and the attempts of all later batches; messages of such an attempt are ignored.
- R4  It is tried again, later each time, until its tries are used up; then the topology ends, and nothing is lost.
- R5  All that a restart needs is in the log before anything depends on it: first the definition, last the record.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from trident.channel import Channel, Clock
from trident.engine.fragment_runs import TaskOutput
from trident.errors import BatchFailedError, FencedError
from trident.log.log_interface import DurableLog
from trident.log.record_store import NotWrittenError
from trident.log.records import TIME, CommitRecord
from trident.observe.health import RunningBatch
from trident.run.batch import TIMERS, Batch, BatchTimes, Definitions, LoopMessage, Observer, Undecided
from trident.run.committer import Committed
from trident.run.coordinator import AttemptStatus, MasterBatchCoordinator, StartGate
from trident.run.execution import Attempts, LaneOf
from trident.run.opened_topology import OpenedTopology
from trident.run.progress import Progress
from trident.run.retrying import Capturing, RetryRule
from trident.run.sources import Sizes, Sources
from trident.state.kinds import LaterWrite
from trident.steps.failures import Failure, StepFailed, failure_of

logger = logging.getLogger(__name__)

_LOOK_AT_OWNER_S = 2.0
_SHORT_S = 1.0
_LATE_IN_A_ROW = 2
_COLD_S = 30.0  # at least, on Spark, which ends the Python workers of a failed job, and may have to start others


class BatchLoop:
    """Runs batches until it is asked to stop or has to."""

    def __init__(
        self,
        opened: OpenedTopology,
        lane_of: LaneOf,
        progress: Progress,
        clock: Clock,
        observe: Observer | None,
        active: bool,
    ) -> None:
        config, log = opened.config, opened.log
        self._opened, self._config, self._log, self._name = opened, config, log, opened.plan.topology
        self._progress, self._clock, self._observe = progress, clock, observe
        self._inbox = Channel[LoopMessage | None]()
        self._sources = Sources(opened, clock)
        self._attempts = Attempts(opened, self._sources, lane_of, observe, self._inbox)
        most, interval_s = config.max_spout_pending, config.batch_emit_interval_ms / 1000
        self._coordinator = MasterBatchCoordinator(log.state.txid, log.epoch, most, interval_s)
        repeats = opened.repeated == opened.spouts.keys()
        self._retrying = RetryRule(config, self._coordinator, clock, repeats, opened.letters.captures)
        self._capturing = Capturing(opened)
        self._batches: dict[int, Batch] = {}
        notified = [each for each in opened.spouts.values() if each.offers("activate")]
        poll_s = config.poll_interval_ms / 1000
        self.start_gate = StartGate(self._name, self._coordinator, self._batches, notified, poll_s, active)
        self._stopping, self._look_at = threading.Event(), float("-inf")
        self._late = 0  # attempts in a row that took too long
        self._cold = True  # no job on Spark has ended well since the start, or since one failed

    def stop(self) -> None:
        """Ask the loop to end after the running commit."""
        self._stopping.set()
        self._log.stop_waiting()
        self.wake()

    def wake(self) -> None:
        self._inbox.put(None)

    def set_active(self, active: bool) -> None:
        """Begin batches, or no more; those that have begun are finished in any case."""
        self.start_gate.order(active)
        self.wake()

    @property
    def waiting(self) -> str:
        """What does not answer, and since when; empty if that is nothing."""
        return str(self._retrying.waiting or self._sources.waiting() or "")

    def drain(self) -> threading.Event:
        """Return an event that is set once all that the spouts had at this moment is committed."""
        self._sources.refresh()
        done = self.start_gate.add()
        self.wake()
        return done

    def hanging(self) -> BatchFailedError | None:
        """Return the error of a batch that hangs in user code where the loop itself cannot notice or fail it."""
        limit_s = self._config.message_timeout_s
        overdue = self._attempts.overdue(limit_s, f"no end within message_timeout_s={limit_s:g} seconds")
        if overdue is None:
            return None
        txid, failure = overdue
        return BatchFailedError(txid, self._coordinator.failures(txid) + 1, failure.step, None, failure.cause)

    def at_work(self, moved: float) -> RunningBatch | None:
        """Return the batch that is to be committed next, or a later one that the spouts are being asked for; None: neither."""
        asked, now = self._attempts.asked_batch(), self._clock.monotonic()
        txid = self._log.state.txid + 1
        batch, tries = self._batches.get(txid), self._coordinator.failures(txid) + 1
        if asked is not None and (batch is None or asked.seconds > _SHORT_S):  # nothing else moves meanwhile
            return replace(asked, tries=tries) if asked.txid == txid else asked
        if batch is None:
            return RunningBatch(txid, "retry", now - moved, tries) if tries > 1 else None
        place = self._attempts.place_of(batch.attempt) if now - batch.times.defined > _SHORT_S else ("", "")
        return RunningBatch(txid, batch.times.phase, now - batch.times.defined, tries, *place)

    def run(self) -> None:
        """Run batches; returns after `stop`, raises what ended the topology otherwise."""
        while not self._stopping.is_set():
            self._handle_next(self._begin())
            while self._inbox.messages and not self._stopping.is_set():  # of this thread: that goes on at once
                self._handle_next()
        while self._is_committing():  # a clean stop leaves no half-done batch
            self._handle_next(1.0)
            self._fail_overdue(self._clock.monotonic())

    def _is_committing(self) -> bool:
        """Whether a batch is half done; one that a job has committed is recorded."""
        first = self._batches.get(self._log.state.txid + 1)
        by_job = first is not None and first.commits_now
        return by_job or AttemptStatus.COMMITTING in self._coordinator.active().values()

    def run_one(self) -> None:
        """In place of `run`, in the caller's thread: lead one batch to its record; raises what ends the topology."""
        before = self._log.state.txid
        self._sources.refresh()  # there may be no batch for a long time
        while self._log.state.txid == before:
            self._handle_next(self._begin())

    def turn(self) -> bool:
        """In place of `run`, one step: begin what may begin, handle one message; return whether there was one."""
        self._begin()
        self._start_commit()
        return self._handle_next(goes_on=False)  # the caller looks between a record and the next commit

    def _begin(self) -> float:
        """Begin what may begin; return how long nothing more can, unless a message comes."""
        now = self._clock.monotonic()
        if now >= self._look_at:  # an idle driver learns of its successor only here
            self._look_at = now + _LOOK_AT_OWNER_S
            self._log.check_owner()
        self._fail_overdue(now)
        wait_s = self._start_batches()
        if self.start_gate.fatal is not None:
            self.start_gate.raise_fatal()
        return wait_s

    def _handle_next(self, wait_s: float = 0.0, goes_on: bool = True) -> bool:
        """Handle the next message, and begin the commit that it permits if this `goes_on`; whether one came in this time."""
        messages = self._inbox.take(wait_s)  # at once, if there is one
        for message in messages:
            if message is not None:
                self._handle(message)
                if goes_on:
                    self._start_commit()
        return bool(messages)

    def _handle(self, message: LoopMessage) -> None:
        attempt, result = message
        batch = self._batches.get(attempt.txid)
        # A store fences the writers of a dead attempt when our later one begins.
        if batch is None or batch.attempt != attempt:
            logger.debug("topology %s: ignoring a result of dead attempt %s", self._name, attempt)
            return
        if isinstance(result, BaseException):
            raise result
        try:
            if isinstance(result, Failure):
                raise StepFailed(result)
            if isinstance(result, Committed):
                self._record(batch, result)
            else:
                self._finish_processing(batch, result)
        except StepFailed as error:  # of a worker, a state or a spout
            self._fail(batch, error.failure)

    def _start_batches(self) -> float:
        """Start as many batches as may be in flight; return how long no other can be, unless a message comes."""
        now = self._clock.monotonic()
        self.start_gate.look(now)
        while not (wait_s := self.start_gate.wait_s(now)):
            # Only while idle, because asking for the time of the processor costs as much as part of a small batch.
            before, txid = self._clock.cpu() if self.start_gate.is_idle else None, self._coordinator.next_txid
            asked = txid not in self._log.state.definitions
            try:
                defined = self._sources.define(txid, self._batches)
                if defined is None:
                    self.start_gate.had_nothing(txid, now, 0.0 if before is None else self._clock.cpu() - before)
                    if not self._batches:
                        self._tell_end()
                    return self.start_gate.wait_s(self._clock.monotonic())
                self._start(now, asked, *defined)
            except StepFailed as error:  # an attempt that fails at once
                self._fail(self._batches.get(txid) or self._new_batch(now, {}, None, {}), error.failure)
            now = self._clock.monotonic()
        return wait_s

    def _tell_end(self) -> None:
        """Note that the spouts have no more, unless one may have something soon."""
        if self.start_gate.awaited and not self._sources.are_preparing():
            self._log.check_owner()  # a replaced driver does not know what is committed
            self.start_gate.gave_all()

    def _start(
        self, now: float, asked: bool, definitions: Definitions, undecided: Undecided | None, sizes: Sizes
    ) -> None:
        batch = self._new_batch(now, definitions, undecided, sizes)
        if batch.capture:
            batch.written = self._capturing.states_written(batch.attempt.txid, self._log.state.txid)
        batch.times.started = self._clock.monotonic()
        batch.share = self._sources.pressure.share if asked else None
        if self._observe is not None:
            self._observe("defined", batch.attempt)
        alone = len(self._batches) == 1
        if alone and self._opened.executors:  # in the job that is about to start
            self._begin_writing(batch.attempt.txid)
        self._attempts.start(batch, alone)
        if batch.undecided is None:
            self.start_gate.note_started(batch, not batch.tasks, asked, self._clock.monotonic())

    def _new_batch(self, now: float, definitions: Definitions, undecided: Undecided | None, sizes: Sizes) -> Batch:
        attempt, runner, times = self._coordinator.start(now), self._opened.runner, BatchTimes(now)
        capture = self._opened.letters.captures and self._retrying.is_last_try(attempt.txid)
        tries = self._coordinator.failures(attempt.txid) + 1
        batch = Batch(attempt, definitions, runner, capture, undecided, times, tries, self._cold)
        batch.sizes, batch.size = sizes, None if None in sizes.values() else sum(filter(None, sizes.values()))
        self._batches[attempt.txid] = batch
        return batch

    def _finish_processing(self, batch: Batch, output: TaskOutput) -> None:
        batch.output, batch.times.processed = output, self._clock.monotonic()
        self._cold = self._cold and (batch.runner.here or not batch.tasks)
        if output.captured:
            self._capturing.check(batch, output.captured)
        if batch.checked is not None:
            self._progress.note_checked(batch.attempt, batch.checked)
        if batch.undecided:
            if not self._sources.complete(batch):
                # It read nothing, so nothing of it is logged or committed.
                self._coordinator.drop(batch.attempt)
                del self._batches[batch.attempt.txid]
                self._log.check_owner()
                self.start_gate.had_nothing(batch.attempt.txid, batch.times.processed, batch.cost_s)
                self._tell_end()
                return
            self.start_gate.note_started(batch, not output.tuples, True, batch.times.processed)
        self._coordinator.mark_processed(batch.attempt)
        if self._retrying.waiting is not None:
            self._retrying.has_answered(batch.attempt.txid, committed=False)
        if self._observe is not None:
            self._observe("processed", batch.attempt)

    def _start_commit(self) -> None:
        """Commit the next batch, if it is processed; after `stop` only one whose job has committed it."""
        batch = self._batches.get(self._coordinator.last_txid + 1)
        if batch is None or (self._stopping.is_set() and not batch.commits_now) or not self._coordinator.commit_next():
            return
        self._begin_writing(batch.attempt.txid)
        batch.times.committing = self._clock.monotonic()
        self._attempts.start_commit(batch)

    def _begin_writing(self, txid: int) -> None:
        if self._opened.gate.is_held():
            self._opened.gate.pass_through()
        if self._opened.carrier is None:
            self._log.check_owner()  # a fenced driver must not begin to write
        if self._opened.meaning.lasts:
            self._opened.meaning.record()
        self._capturing.began = txid

    def _record(self, batch: Batch, committed: Committed) -> None:
        batch.times.committed = self._clock.monotonic()
        attempt, captured = batch.attempt, [*batch.output.captured, *committed.captured]
        if captured:
            self._capturing.check(batch, captured)
        if self._opened.committing:
            self._sources.commit(batch, self._opened.committing)
        if captured:
            # Before the record: a dead letter that is written twice is found by its txid, a lost one is not.
            self._opened.letters.write(attempt, captured, self._log.state.incarnation)
        counts = {"tuples": sum(batch.output.rows.values()), "dead_letters": len(captured)}
        at_ms = self._clock.wall_ms()
        definitions, carrier = batch.definitions, self._opened.carrier
        if committed.timers:  # before these no window ends, and no timer is due
            definitions = {**definitions, TIME: {**definitions[TIME], TIMERS: min(committed.timers)}}
        record = CommitRecord(*attempt, definitions, committed.touched, counts, at_ms, self._opened.meaning.declares)
        if carrier is None:
            self._log.append(record)
        else:
            self._append_with_writes(carrier, record, committed.later)
        if record.declares:
            self._opened.meaning.mark_recorded()
        self._coordinator.mark_committed(attempt)
        self._late = 0
        if self._retrying.waiting is not None:
            self._retrying.has_answered(attempt.txid)
        if self._observe is not None:
            self._observe("recorded", attempt)
        if self._opened.publishing:
            self._opened.publish_recorded()
        batch.times.recorded = self._clock.monotonic()
        del self._batches[attempt.txid]
        sources = self._sources
        sources.report_success(batch)
        self._progress.note_committed(batch, committed, captured, at_ms, sources.lags, sources.pressure.share)
        if self._observe is not None:
            self._observe("succeeded", attempt)
        if self.start_gate.awaited:
            self.start_gate.release_waiting(attempt.txid)

    def _append_with_writes(self, carrier: DurableLog, record: CommitRecord, writes: Sequence[LaterWrite]) -> None:
        try:
            carrier.append(record, beside=writes)
        except NotWrittenError as refused:  # by a state, as its commit might have been; nothing was written
            if isinstance(refused.cause, FencedError):
                raise refused.cause from None
            raise StepFailed(failure_of("commit", refused.cause)) from refused.cause

    def _fail_overdue(self, now: float) -> None:
        limit = self._config.message_timeout_s
        oldest = next(iter(self._batches.values()), None)
        if oldest is None or now - oldest.times.defined <= limit:  # then no other has begun or commits for as long
            return
        for batch in self._batches.values():
            if not batch.times.processed and now - batch.times.defined > self._limit_s(batch):
                self._fail_late(batch, "processing", limit)
                return
        # That tasks commit; its writers are fenced by the next attempt's.
        if oldest.output.kept is not None and oldest.times.committing and now - oldest.times.committing > limit:
            self._fail_late(oldest, "commit", limit)

    def _fail_late(self, batch: Batch, where: str, limit: float) -> None:
        what = "committed" if where == "commit" else "processed and committed" if batch.commits_now else "processed"
        cause = f"not {what} within message_timeout_s={limit:g} seconds"
        if where == "processing" and limit < self._limit_s(batch):
            cause += f", nor within the {_COLD_S:g} seconds that an attempt on Spark has to start its Python workers"
        self._late += 1
        if self._late == _LATE_IN_A_ROW:  # each starts as cold as the one before
            logger.warning(
                "topology %s: %d attempts in a row took longer than message_timeout_s=%g, and no batch was committed in "
                "between. If their work is only slow, raise message_timeout_s: an attempt that is cancelled ends its Python "
                "workers, and the next attempt's prepare your operations again",
                self._name, self._late, limit,
            )  # fmt: skip
        self._attempts.cancel(batch)  # it may still use the cores that the next attempt needs
        self._sources.timed_out(batch)
        self._fail(batch, self._attempts.hanging(batch.attempt, cause) or Failure(where, None, cause))

    def _limit_s(self, batch: Batch) -> float:
        """Return how long an attempt may be processed: the start of Python workers is not held against it."""
        limit = self._config.message_timeout_s
        return max(limit, _COLD_S) if batch.cold and not batch.runner.here else limit

    def _fail(self, batch: Batch, failure: Failure) -> None:
        """End an attempt and all later ones (R3); they are tried again after a pause, or the topology ends (R4)."""
        self._log.check_owner()  # if this driver was replaced, that is the cause of any failure
        attempt = batch.attempt
        in_commit = self._coordinator.active().get(attempt) is AttemptStatus.COMMITTING
        retry_in_s: float | None = None
        try:
            retry_in_s = self._retrying.pause_after(attempt, failure, in_commit)
        except BatchFailedError as fatal:
            self.start_gate.fatal = fatal
        waiting = self._retrying.waiting
        self._cold = self._cold or not batch.runner.here
        waits = str(waiting) if waiting is not None and failure.waits_for else ""
        leaves_out = self._opened.letters.captures and failure.may_leave_out and retry_in_s is not None
        self._progress.note_failed(batch, failure, retry_in_s, waits, leaves_out)
        self._capturing.note_failed(batch, failure)
        for dead in self._coordinator.fail(attempt, self._clock.monotonic(), retry_in_s or 0.0):
            ended = self._batches.pop(dead.txid)
            if dead != attempt:
                self._attempts.cancel(ended)
        self.start_gate.note_failed(attempt.txid)
