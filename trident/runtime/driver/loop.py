"""The driver loop: defines batches, has them processed, commits them in order, records them (design: life of a batch).

One thread owns the coordinator, the log and the spouts' coordinators. Processing runs in a pool (several attempts may be
in work), committing in a thread of its own (one at a time); both report back through a queue.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from trident.config import Config
from trident.coordination.coordinator import MasterBatchCoordinator
from trident.coordination.letter_records import LETTERS
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import CommitRecord, DefineRecord
from trident.errors import BatchFailedError, FencedError, RetriesUsedUpError, describe
from trident.operations.metrics import add_counts
from trident.planner import Plan
from trident.runtime.commit.committer import Committed, Committer
from trident.runtime.driver.batch_time import TIME, BatchTime, now_of
from trident.runtime.driver.hanging import Work
from trident.runtime.driver.progress import BatchTimes, Progress
from trident.runtime.engine.runners import Part, Runner
from trident.runtime.engine.worker import TaskOutput
from trident.runtime.letters.dead_letters import DeadLetters
from trident.runtime.letters.replays import Replays
from trident.runtime.reading.commit_gate import CommitGate
from trident.runtime.steps.rows import Failure, StepFailed, failing_at, failure_of
from trident.spout.interfaces import BatchCoordinator, Definition, SpoutType, TransactionAttempt
from trident.state.txid import Txid

__all__ = ["BatchLoop", "Clock", "SpoutHandle"]

logger = logging.getLogger(__name__)

_LOOK_AT_OWNER_S = 2.0
_EMPTY_IS_ALL = 10
"""After so many empty batches in a row the spouts are taken to have no more: they cannot say so, and may go on for ever."""


class Clock:
    """The time, as the loop sees it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)


@dataclass
class SpoutHandle:
    """A spout of the running topology, in the driver."""

    name: str
    coordinator: BatchCoordinator
    spout_type: SpoutType


@dataclass
class _Batch:
    """What the loop knows of a live attempt."""

    attempt: TransactionAttempt
    definitions: dict[str, Definition]
    times: BatchTimes
    runner: Runner
    output: TaskOutput = field(default_factory=TaskOutput)
    small: bool = False  # may the loop's own thread do all of it?
    inline: bool = False  # does it?
    empty: bool = False  # are there no parts to process?
    capture: bool = False  # are tuples that raise left out?
    drains: list[threading.Event] = field(default_factory=list)  # who waits for this batch and no later one


@dataclass(frozen=True)
class _Event:
    attempt: TransactionAttempt | None = None
    output: TaskOutput | None = None
    committed: Committed | None = None
    failure: Failure | None = None
    error: BaseException | None = None


class BatchLoop:
    """Runs batches until told to stop or until it must stop.

    Parameters
    ----------
    pool, commit_thread
        Where attempts are processed and committed.
    gate
        Passed through before each commit.
    inline_bytes
        Up to which size a batch that is processed in this process is processed and committed in the loop's own thread:
        nothing is handed over, but nothing else is seen to meanwhile, not even that the batch is overdue. The next one
        begins after it; behind a larger one it is handed over. 0: none. Infinite: of any size, also an unknown one, and
        `max_spout_pending` says when the next one begins.
    observer
        Called with the name of each point of a batch's life and its attempt, in the thread that reaches it:
        `defined`, `processed`, `committing`, `committed` (states), `recorded`, `succeeded`. For progress and tests.
    beside
        Gives the threads that partitions of a state are committed in, beside `commit_thread`.
    """

    def __init__(
        self,
        plan: Plan,
        config: Config,
        log: TransactionLog,
        runner: Runner,
        committer: Committer,
        spouts: Mapping[str, SpoutHandle],
        pool: Executor,
        commit_thread: Executor,
        progress: Progress,
        clock: Clock,
        dead_letters: DeadLetters | None = None,
        observer: Callable[[str, TransactionAttempt], None] | None = None,
        inline_bytes: float = 0,
        gate: CommitGate | None = None,
        beside: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._gate = gate or CommitGate()
        self._inline_bytes = inline_bytes
        self._one_by_one = inline_bytes < math.inf
        self._plan, self._config, self._log, self._runner = plan, config, log, runner
        self._committer, self._spouts = committer, spouts
        self._pool, self._commit_thread = pool, commit_thread
        self._progress, self._clock, self._dead_letters = progress, clock, dead_letters
        self._observe = observer or (lambda point, attempt: None)
        self._replays = None if dead_letters is None else Replays(plan, dead_letters)
        self._time = BatchTime.of(plan)
        self._sync_definitions = committer.needs_identical_replay
        self._sizes = {name: getattr(spout.coordinator, "size", None) for name, spout in spouts.items()}
        self._hints = {name: _largest_hint(plan, name) for name in spouts}
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._batches: dict[int, _Batch] = {}
        self._coordinator = MasterBatchCoordinator(
            log.state.txid, log.epoch, config.max_spout_pending, config.batch_emit_interval_ms / 1000
        )
        self._stopping = threading.Event()
        self._drains: list[threading.Event] = []
        self._drain_lock = threading.Lock()
        self._poll_at = self._look_at = float("-inf")
        self._counted_from = log.state.txid  # the batch after which empty ones are counted, while somebody waits
        self._fatal: BatchFailedError | None = None
        self._work = Work(beside)

    # ---- from other threads -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end after the commit that is under way."""
        self._stopping.set()
        self._events.put(_Event())

    def drain(self) -> threading.Event:
        """Return an event that is set once all that the spouts had at this moment is committed."""
        done = threading.Event()
        if self._replays is not None:
            self._replays.look_now()
        with self._drain_lock:
            self._drains.append(done)
        self._events.put(_Event())
        return done

    def hanging(self) -> BatchFailedError | None:
        """Return the error of a batch that hangs in code of the user's where the loop itself cannot notice or fail it."""
        limit = self._config.message_timeout_s
        found = self._work.overdue(limit, f"no end within message_timeout_s={limit:g} seconds")
        if found is None:
            return None
        txid, failure = found
        return BatchFailedError(txid, self._coordinator.failures(txid) + 1, failure.step, None, failure.cause)

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run batches; returns after `stop`, raises what ended the topology otherwise."""
        while not self._stopping.is_set():
            self._begin()
            self._handle(self._next_event())
        self._finish_commit()

    def turn(self) -> bool:
        """Begin what may begin now and take up one piece of news, without waiting; returns whether there was one.

        For a caller that runs the loop by hand, `inline`, in place of `run`.
        """
        self._begin()
        try:
            event = self._events.get_nowait()
        except queue.Empty:
            return False
        self._handle(event)
        return True

    def _begin(self) -> None:
        now = self._clock.monotonic()
        if now >= self._look_at:  # a driver that has nothing to commit is told of its successor by nothing else
            self._look_at = now + _LOOK_AT_OWNER_S
            self._log.check_owner()
        self._fail_overdue(now)
        self._start_batches()
        self._start_commit()
        self.raise_fatal()

    def raise_fatal(self) -> None:
        """Raise what ends the topology: a batch failed for good and all before it are committed."""
        if self._fatal is not None and self._log.state.txid + 1 == self._fatal.txid:
            raise self._fatal

    def _next_event(self) -> _Event | None:
        try:
            return self._events.get(timeout=self._wait_s())
        except queue.Empty:
            return None

    def _wait_s(self) -> float:
        now = self._clock.monotonic()
        wait = 1.0  # an upper bound, so that overdue attempts and a successor are seen
        held = self._is_held()  # until there is news of a batch
        if not held and (self._coordinator.may_start(now) or self._coordinator.start_time() > now):
            wait = min(wait, max(self._poll_at, self._coordinator.start_time()) - now)
        return max(0.0, wait)

    def _handle(self, event: _Event | None) -> None:
        if event is None or event.attempt is None:
            return
        if event.error is not None:
            raise event.error
        if not self._coordinator.is_live(event.attempt):
            logger.debug("topology %s: ignoring news of dead attempt %s", self._plan.topology, event.attempt)
        elif event.failure is not None:
            self._fail(event.attempt, event.failure)
        elif event.committed is not None:
            self._record(event.attempt, event.committed)
        elif event.output is not None:
            self._processed(event.attempt, event.output)

    # ---- 1 define, 2 process ----------------------------------------------------------------------------------------

    def _start_batches(self) -> None:
        with self._drain_lock:
            drains = list(self._drains)
        now = self._clock.monotonic()
        if drains:
            self._poll_at = now
        while self._poll_at <= now and self._coordinator.may_start(now) and not self._is_held():
            txid = self._coordinator.next_txid
            # Of a logged batch the log may say "nothing" for a spout that has more by now.
            asked = txid not in self._log.state.definitions
            try:
                definitions = self._define(txid)
            except StepFailed as error:
                self._fail_undefined(error.failure, now)
                continue
            if definitions is None:
                self._poll_at = now + self._config.poll_interval_ms / 1000
                break
            self._start(definitions, now)
            self._look_for_end(self._batches[txid], asked, drains)
            now = self._clock.monotonic()
        else:
            return
        if drains and not self._coordinator.active():
            self._log.check_owner()  # a driver that was replaced knows nothing of what is committed
            self._drained(drains)

    def _look_for_end(self, batch: _Batch, asked: bool, drains: list[threading.Event]) -> None:
        """See whether a batch that was just begun tells that the spouts have nothing (more) now."""
        if not batch.empty:
            self._counted_from = batch.attempt.txid
        elif asked and not any(_of_spouts(batch.definitions)):  # of a window alone
            batch.drains = drains
        elif asked:
            # A spout that has empty batches always has one more.
            self._poll_at = self._clock.monotonic() + self._config.poll_interval_ms / 1000
            is_end = batch.attempt.txid - self._counted_from >= _EMPTY_IS_ALL
            if is_end:
                batch.drains = drains
            if is_end or not drains:
                self._counted_from = batch.attempt.txid

    def _drained(self, drains: list[threading.Event]) -> None:
        with self._drain_lock:
            for done in drains:
                done.set()
            self._drains = [one for one in self._drains if not one.is_set()]

    def _is_held(self) -> bool:
        """Whether the next batch has to wait: it has failed for good, or all in work are small and so done in no time."""
        if self._fatal is not None and self._coordinator.next_txid >= self._fatal.txid:
            return True
        return self._one_by_one and bool(self._batches) and all(batch.small for batch in self._batches.values())

    def _define(self, txid: int) -> dict[str, Definition] | None:
        """Fix what batch `txid` contains; None if no spout has anything and no window is due.

        The definitions of transactional spouts are logged before anything reads the source, those that say "nothing"
        included, so that a replay is identical; the others are asked anew for every attempt. They become durable here
        if a state counts on that, else with the commit of the batch: of the two syncs of a batch one is saved.
        """
        logged = self._log.state.definitions.get(txid, {})
        definitions: dict[str, Definition | None] = {}
        for name, spout in self._spouts.items():
            if name in logged:
                definitions[name] = logged[name]
            else:
                with failing_at(name):
                    earlier, define = self._previous(name, txid), spout.coordinator.initialize_transaction
                    definitions[name] = self._work.ask(txid, name, define, txid, earlier)
        given = {name: definition for name, definition in definitions.items() if definition is not None}
        letters = logged.get(LETTERS) if logged else self._letters_wanted()
        if letters is not None:
            given[LETTERS] = letters
        time = None
        if self._time is not None:
            earlier = self._previous(TIME, txid)
            clock_ms = self._clock.wall_ms()
            time = self._time.define(clock_ms, logged.get(TIME), earlier, bool(given), is_begun=bool(logged))
        if not given and time is None and not logged:  # what is logged is run, also as an empty batch, and so forgotten
            return None
        for name, definition in definitions.items():
            if name not in logged and self._spouts[name].spout_type is SpoutType.TRANSACTIONAL:
                self._log.append(DefineRecord(txid, name, definition), self._sync_definitions)
        if letters is not None and LETTERS not in logged:
            self._log.append(DefineRecord(txid, LETTERS, letters), self._sync_definitions)
        if time is None:
            return given
        if TIME not in logged:
            self._log.append(DefineRecord(txid, TIME, {"now": time["now"]}), self._sync_definitions)
        return {**given, TIME: time}

    def _letters_wanted(self) -> Definition | None:
        """The dead letters that a batch which is not yet begun puts back."""
        return None if self._replays is None else self._replays.next(self._log.state, self._clock.monotonic())

    def _previous(self, spout: str, txid: int) -> Definition | None:
        """The spout's last definition before batch `txid`: of a batch in flight, else the last committed one."""
        for earlier in range(txid - 1, self._log.state.txid, -1):
            batch = self._batches.get(earlier)
            if batch is not None and spout in batch.definitions:
                return batch.definitions[spout]
        return self._log.state.spouts.get(spout)

    def _start(self, definitions: dict[str, Definition], now: float) -> None:
        attempt = self._coordinator.start(now)
        batch = self._batches[attempt.txid] = _Batch(attempt, definitions, BatchTimes(defined=now), self._runner)
        self._observe("defined", attempt)
        try:
            size = self._size_of(definitions)
            batch.runner = self._runner.of_size(size)
            parts = self._cut(batch)
        except StepFailed as error:  # as in a worker: a source that cannot be read fails the attempt
            self._events.put(_Event(attempt, failure=error.failure))
            return
        batch.empty = not parts
        small = (math.inf if size is None else size) <= self._inline_bytes
        batch.small = small and self._inline_bytes > 0 and batch.runner.here  # without tuples it has no bytes
        # Behind a large one it would wait for its commit, and keep those after it waiting.
        batch.inline = batch.small and (len(self._batches) == 1 or not self._one_by_one)
        if batch.inline:
            self._process(batch, parts)
        else:
            self._pool.submit(self._process, batch, parts)

    def _cut(self, batch: _Batch) -> list[Part]:
        last_try = self._coordinator.failures(batch.attempt.txid) + 1 >= self._config.max_batch_attempts
        letters = self._dead_letters
        batch.capture = capture = letters is not None and letters.captures and last_try
        parts: list[Part] = []
        for name, definition in _of_spouts(batch.definitions):
            with failing_at(name):
                parallelism = self._hints[name] or batch.runner.parallelism
                cut_into = self._spouts[name].coordinator.parts
                cut = self._work.ask(batch.attempt.txid, name, cut_into, batch.attempt, definition, parallelism)
            parts.extend((name, part, capture) for part in cut)
        if self._replays is not None and LETTERS in batch.definitions:
            with failing_at("dead letters"):
                put_back = self._replays.parts(batch.definitions[LETTERS], self._log.state, batch.runner.program)
                parts.extend((entry, part, capture) for entry, part in put_back)
        return parts

    def _size_of(self, definitions: dict[str, Definition]) -> int | None:
        """About how many bytes a batch has; None if one of its spouts does not say."""
        total = 0
        for name, definition in _of_spouts(definitions):
            size_of = self._sizes[name]
            with failing_at(name):
                size = None if size_of is None else size_of(definition)
            if size is None:
                return None
            total += size
        if self._replays is not None and LETTERS in definitions:
            with failing_at("dead letters"):
                total += self._replays.size_of(definitions[LETTERS], self._log.state)
        return total

    def _process(self, batch: _Batch, parts: list[Part]) -> None:
        attempt = batch.attempt
        if batch.runner.here:
            self._work.begin(attempt, watched=batch.inline)
        try:
            output = batch.runner.process(attempt, parts)
        except Exception as error:  # noqa: BLE001  a lost worker or executor fails the attempt
            self._events.put(_Event(attempt, failure=failure_of("spark", error)))
            return
        except BaseException as error:  # noqa: BLE001  SystemExit and its like end the topology, not this thread alone
            self._events.put(_Event(attempt, error=error))
            return
        finally:
            self._work.end(attempt)
        if output.failure is not None:
            self._events.put(_Event(attempt, failure=output.failure))
        else:
            self._events.put(_Event(attempt, output=output))

    def _processed(self, attempt: TransactionAttempt, output: TaskOutput) -> None:
        self._coordinator.processed(attempt)
        batch = self._batches[attempt.txid]
        batch.output, batch.times.processed = output, self._clock.monotonic()
        self._observe("processed", attempt)

    # ---- 3 commit, 4 record, 5 succeed ------------------------------------------------------------------------------

    def _start_commit(self) -> None:
        attempt = self._coordinator.commit_next()
        if attempt is None:
            return
        self._gate.pass_through()
        self._log.check_owner()  # a fenced driver must not begin to write
        batch = self._batches[attempt.txid]
        batch.times.committing = self._clock.monotonic()
        if batch.inline:
            self._commit(batch, self._txids(attempt))
        else:
            self._commit_thread.submit(self._commit, batch, self._txids(attempt))

    def _txids(self, attempt: TransactionAttempt) -> dict[str, list[Txid]]:
        """The batch's txid as each state partition must see it."""
        state = self._log.state
        return {
            name: [
                Txid(*attempt, state.winners_of(name), state.incarnation, state.expected(name, partition), state.epochs)
                for partition in range(count)
            ]
            for name, count in self._plan.partitions.items()
        }

    def _commit(self, batch: _Batch, txids: dict[str, list[Txid]]) -> None:
        self._work.begin(batch.attempt, watched=True, commits=True)
        try:
            self._observe("committing", batch.attempt)
            committed = self._committer.commit(txids, batch.output, now_of(batch.definitions), batch.capture)
            self._observe("committed", batch.attempt)
            self._events.put(_Event(batch.attempt, committed=committed))
        except StepFailed as error:
            cause = error.__cause__
            fenced = cause if isinstance(cause, FencedError) else None
            self._events.put(_Event(batch.attempt, failure=error.failure, error=fenced))
        except Exception as error:  # noqa: BLE001  an error of ours is no reason to lose the batch
            self._events.put(_Event(batch.attempt, failure=failure_of("commit", error)))
        except BaseException as error:  # noqa: BLE001  as above; unsaid, the loop would wait for this commit for ever
            self._events.put(_Event(batch.attempt, error=error))
        finally:
            self._work.end(batch.attempt)

    def _record(self, attempt: TransactionAttempt, committed: Committed) -> None:
        batch = self._batches[attempt.txid]
        captured = [*batch.output.captured, *committed.captured]
        if captured and self._dead_letters is not None:
            # Before the record: a dead letter that is written twice is found by its txid, a lost one is not.
            self._dead_letters.write(attempt, captured, self._log.state.incarnation)
        counts = {"tuples": batch.output.tuples, "dead_letters": len(captured)}
        record = CommitRecord(
            attempt.txid, attempt.attempt, batch.definitions, committed.touched, counts, self._clock.wall_ms()
        )
        self._log.append(record)
        self._coordinator.committed(attempt)
        self._observe("recorded", attempt)
        batch.times.recorded = self._clock.monotonic()
        del self._batches[attempt.txid]
        for name, definition in _of_spouts(batch.definitions):
            # What it would keep waiting is the next batch: this one is committed.
            self._work.ask(attempt.txid + 1, name, self._spouts[name].coordinator.success, attempt.txid, definition)
        self._observe("succeeded", attempt)
        metrics = dict(batch.output.metrics)
        add_counts(metrics, committed.metrics)
        self._drained(batch.drains)
        self._progress.committed(
            attempt, batch.times, batch.output.tuples, committed.keys, record.at_ms, metrics, len(captured)
        )

    def _finish_commit(self) -> None:
        """Wait for the commit that is under way, if any, and record it: a clean stop leaves no half batch behind."""
        while any(status.value == "committing" for status in self._coordinator.active().values()):
            self._handle(self._events.get())

    # ---- failure ----------------------------------------------------------------------------------------------------

    def _fail_overdue(self, now: float) -> None:
        limit = self._config.message_timeout_s
        for attempt in self._coordinator.overdue(now, limit)[:1]:
            cause = f"not processed within message_timeout_s={limit:g} seconds"
            self._cancel(self._batches[attempt.txid])  # it may still hold the cores that the next attempt needs
            self._fail(attempt, self._work.hanging(attempt, cause) or Failure("processing", None, cause))

    def _fail_undefined(self, failure: Failure, now: float) -> None:
        """A spout cannot say what the next batch is: an attempt that fails at once."""
        attempt = self._coordinator.start(now)
        self._batches[attempt.txid] = _Batch(attempt, {}, BatchTimes(defined=now), self._runner)
        self._fail(attempt, failure)

    def _fail(self, attempt: TransactionAttempt, failure: Failure) -> None:
        self._log.check_owner()  # of a driver that was replaced every failure is news of that, whatever it looks like
        tries = self._coordinator.failures(attempt.txid) + 1
        self._progress.failed(attempt, failure)
        used_up = not self._coordinator.retries_left
        if used_up or not failure.retry or tries >= self._config.max_batch_attempts:
            # The batches before it may well be committed; then a restart goes on from this one, as the error says.
            error = RetriesUsedUpError if used_up else BatchFailedError
            self._fatal = error(attempt.txid, tries, failure.step, failure.row, failure.cause)
            self._fatal.writes_dead_letters = self._config.on_poison == "dead_letter"
            backoff = 0.0
        else:
            backoff = min(self._config.retry_backoff_ms * 2 ** (tries - 1), self._config.retry_backoff_max_ms) / 1000
            logger.warning(
                "topology %s: batch %s failed in step %r (%s); trying again in %.1f s",
                self._plan.topology, attempt, failure.step, failure.cause, backoff,
            )  # fmt: skip
        for dead in self._coordinator.failed(attempt, self._clock.monotonic(), backoff):
            batch = self._batches.pop(dead.txid)
            if dead != attempt:
                self._cancel(batch)
        self._poll_at = float("-inf")

    def _cancel(self, batch: _Batch) -> None:
        try:
            batch.runner.cancel(batch.attempt)
        except Exception as error:  # noqa: BLE001  its result is ignored anyhow
            name = self._plan.topology
            logger.warning("topology %s: attempt %s was not cancelled: %s", name, batch.attempt, describe(error))


def _of_spouts(definitions: Mapping[str, Definition]) -> Iterator[tuple[str, Definition]]:
    """The definitions without the time of the batch and the dead letters that it puts back, which no spout reads."""
    return ((name, definition) for name, definition in definitions.items() if name not in (TIME, LETTERS))


def _largest_hint(plan: Plan, spout: str) -> int:
    """The largest hint of the spout's stage, 0 if there is none; what a state is told is the number of its partitions."""
    stage = plan.fragments[spout].ids
    return max((hint for node, hint in plan.hints.items() if node in stage), default=0)
