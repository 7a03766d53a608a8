"""The progress of the batches so far: the numbers of `status`, `last_progress`, and what each operation did, by window."""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import sub
from typing import Any

from trident.channel import Clock
from trident.counts import add_counts, take_remarks
from trident.engine.fragment_runs import EACH, HEAD, NS, ROWS, TaskOutput
from trident.engine.fragment_runs import Figures as Counts
from trident.engine.replay_check import Checked
from trident.graph import PersistNode
from trident.observe.batch_committed import BatchCommitted, Phases, Placement, Read, sum_lags
from trident.observe.component_statistics import TOPOLOGY, Key
from trident.observe.events import AttemptFailed, LastErrors, ReplayDiffered, TopologyEvent
from trident.observe.time_series import Difference, TimeSeries, TimeSpan, Windows
from trident.plan import Fragment, Plan
from trident.plan.plan import place
from trident.run.batch import Batch
from trident.run.committer import Committed
from trident.run.placements import EXECUTORS
from trident.spout.interfaces import Lag, TransactionAttempt
from trident.steps.failures import Failure

logger = logging.getLogger(__name__)

_TOLD_OF_BATCH = 10  # errors of tuples that one batch left out
_LONGEST_S = 1.0
# Adding up one batch after the other, by name, would take longer than some steps do.
_MOST_WAITING = 32  # more would be old objects for Python's cycle collector, which looks at them again and again
_MS_PER_S = 1000

_Waiting = tuple[bool, Counts, Counts, Mapping[str, int], BatchCommitted]
_Lists = dict[str, list[list[int]]]  # by entry, figures that are added up number by number


Meanings = tuple[tuple[tuple[Key, int], ...], ...]
"""For each number of a fragment's figures: the totals that it is added to, or subtracted from (1, -1)."""


class Progress:
    """Collects what the driver loop reports; any thread may read it."""

    def __init__(
        self,
        plan: Plan,
        kept: int,
        clock: Clock,
        run_id: str = "",
        placements: Mapping[str, Placement] | None = None,
        publish: Callable[[TopologyEvent], None] = lambda event: None,
    ) -> None:
        self._name, self._run_id, self._placements = plan.topology, run_id, placements or {}
        self._clock, self._publish = clock, publish
        in_executors = [name for name, where in self._placements.items() if where == EXECUTORS]
        self.totals = OperationTotals(plan, in_executors, clock.monotonic())
        self._lock = threading.Lock()
        self._recent: deque[BatchCommitted] = deque(maxlen=kept)
        self.errors = LastErrors()
        self.batches = 0
        self.failures = self.left_out = 0
        self._rows: dict[str, int] = {}
        self._lags: Mapping[str, Lag | None] = {}
        self._share = 1.0
        self._metrics: dict[str, int] = {}
        self.last_failure: Failure | None = None
        self.last_attempt: TransactionAttempt | None = None
        self.replays = {"checked": 0, "skipped": 0, "differed": 0}  # batches that were processed twice
        self._said: set[tuple[str, str]] = set()
        self._told_of: set[str] = set()  # steps that give other results at a replay
        self._first: float | None = None
        self.last_recorded = self._defined = 0.0  # on the clock of the topology

    def note_committed(
        self,
        batch: Batch,
        committed: Committed,
        left_out: Sequence[Failure],  # its tuples that are dead letters
        at_ms: int,  # since 1970
        lags: Mapping[str, Lag | None],
        share: float,
    ) -> None:
        output, times = batch.output, batch.times
        points = times.defined, times.started, times.processed, times.committing, times.committed, times.recorded
        came_in_s = None if self._first is None else times.defined - self._defined
        counters = self._counters(output.metrics, committed.metrics, at_ms)
        read = Read(output.rows, dict(lags), came_in_s, batch.size, batch.tasks, batch.sizes)
        share_of_batch = share if batch.share is None else batch.share
        event = BatchCommitted(
            self._name,
            self._run_id,
            at_ms,
            *batch.attempt,
            batch.tries,
            "in_process" if batch.runner.here else "spark",
            read,
            Phases(*map(sub, points[1:], points)),
            times.recorded,
            share_of_batch,
            self._placements,
            committed.keys,
            committed.key_counts,
            output.bytes_shuffled,
            output.bytes_collected,
            len(left_out),
            counters,
            output.bytes_spilled,
        )
        with self._lock:
            self._recent.append(event)
            self.batches += 1
            self.left_out += len(left_out)
            for name, rows in output.rows.items():
                self._rows[name] = self._rows.get(name, 0) + rows
            self._lags, self._share, self._defined = event.read.lags, share, times.defined
            if counters:
                add_counts(self._metrics, counters)
            self._first = times.defined if self._first is None else self._first
            self.last_recorded = times.recorded
        self.totals.add_batch(event, output, committed, bool(batch.runner.commits))
        if left_out:
            self.totals.count("dead_letters", (failure.step for failure in left_out), times.recorded)
            for failure in left_out[-_TOLD_OF_BATCH:]:
                self.errors.add(failure.step, f"left out {failure.row}: {_text(failure)}", at_ms / _MS_PER_S)
        self._publish(event)

    def _counters(self, processing: Mapping[str, int], commit: Mapping[str, int], at_ms: int) -> dict[str, int]:
        """Return what operations counted in a batch, and say what they remarked, once of each kind."""
        counters = dict(processing)
        if commit:
            add_counts(counters, commit)
        for step, kind, text in take_remarks(counters) if counters else ():
            if (step, kind) not in self._said:
                self._said.add((step, kind))
                logger.warning("topology %s: step %s: %s", self._name, step, text)
                self.errors.add(step, text, at_ms / _MS_PER_S)
        return counters

    def note_failed(
        self, batch: Batch, failure: Failure, retry_in_s: float | None, waits: str = "", leaves_out: bool = False
    ) -> None:
        """An attempt at a batch failed; it is tried again after some seconds, or not (None)."""
        at_ms = self._clock.wall_ms()
        with self._lock:
            self.failures += 1
            self.last_failure, self.last_attempt = failure, batch.attempt
        self.totals.add_failure(failure.step, self._clock.monotonic())
        on = "" if failure.row is None else f" on tuple {failure.row}"
        event = AttemptFailed(
            self._name, self._run_id, at_ms, *batch.attempt, batch.tries,
            failure.step, failure.row, failure.cause, retry_in_s, failure.details, waits, leaves_out,
        )  # fmt: skip
        text = f"attempt {batch.attempt} failed{on}: {_text(failure)}"
        self.errors.add(failure.step, text, at_ms / _MS_PER_S, event)
        self._publish(event)

    def note_checked(self, attempt: TransactionAttempt, checked: Checked) -> None:
        """A batch was processed twice. Tells once of each step that differs."""
        difference, at_ms = checked.difference, self._clock.wall_ms()
        counts = {"checked": checked.done, "skipped": not checked.done, "differed": difference is not None}
        with self._lock:
            self.replays = {name: count + counts[name] for name, count in self.replays.items()}
        if difference is None or difference.step in self._told_of:
            return
        self._told_of.add(difference.step)
        self.errors.add(difference.step, str(difference), at_ms / _MS_PER_S)
        step, row, first, second, reordered = difference
        self._publish(ReplayDiffered(self._name, self._run_id, at_ms, *attempt, step, row, first, second, reordered))

    def events(self) -> list[BatchCommitted]:
        with self._lock:
            return list(self._recent)

    @property
    def tuples(self) -> int:
        """How many tuples all sources gave in this run."""
        with self._lock:
            return sum(self._rows.values())

    def sources(self) -> tuple[list[dict[str, Any]], float]:
        """Return the rows of each source in this run with its lag, and which share of their limits they may use now."""
        with self._lock:
            sources = [
                {
                    "description": name,
                    "numInputRows": self._rows.get(name, 0),
                    "lag": None if lag is None else lag._asdict(),
                }
                for name, lag in self._lags.items()
            ]
            return sources, self._share

    def metrics(self) -> dict[str, int]:
        with self._lock:
            return dict(self._metrics)

    @property
    def seconds(self) -> float:
        with self._lock:
            return 0.0 if self._first is None else self.last_recorded - self._first


def _text(failure: Failure) -> str:
    return f"{failure.cause}\n{failure.details}" if failure.details else failure.cause


class OperationTotals:
    """Adds up what committed batches counted, and tells it to `series`; of attempts that failed only their failure."""

    def __init__(self, plan: Plan, in_executors: Collection[str], now: float) -> None:
        self._writers = {node.id: node for node in plan.commits if isinstance(node, PersistNode)}
        self._steps = {node.state: node.id for node in self._writers.values()}
        self._meanings = self._of(plan.fragments)
        self._placed = self._of(place(plan, in_executors).fragments) if in_executors else {}
        self._windows: Windows[Key] = Windows(now)
        self.series = TimeSeries(now)
        self._waiting: list[_Waiting] = []
        self._first = now
        self._lock = threading.Lock()

    def _of(self, fragments: Mapping[str, Fragment]) -> dict[str, Meanings]:
        return {entry: meanings_of(fragment, self._writers) for entry, fragment in fragments.items()}

    def add_batch(self, event: BatchCommitted, output: TaskOutput, committed: Committed, in_executors: bool) -> None:
        waiting, at = self._waiting, event.recorded_at
        if not waiting:
            self._first = at
        elif at - self._first > _LONGEST_S:
            with self._lock:  # before this one, which is of another time
                self._add_up()
            self._first = at
        waiting.append((in_executors, output.figures, committed.figures, committed.took_ns, event))
        rare = event.tries > 1 or output.put_back or committed.put_back
        if rare or len(waiting) >= _MOST_WAITING:
            with self._lock:
                self._add_up()
                if rare:
                    amounts: dict[Key, float] = {Key(TOPOLOGY, "retries"): event.tries - 1}
                    put_back = dict(output.put_back)
                    add_counts(put_back, committed.put_back)
                    amounts |= {Key(step, "executed"): rows for step, rows in put_back.items()}
                    self._windows.add(amounts, event.recorded_at)

    def add_failure(self, step: str, now: float) -> None:
        self.count("failed", (TOPOLOGY, step), now)
        self.series.add(TimeSpan(failed=1), now)

    def count(self, measure: str, operations: Iterable[str], now: float) -> None:
        amounts: dict[Key, float] = defaultdict(float)
        for operation in operations:
            amounts[Key(operation, measure)] += 1
        with self._lock:
            self._add_up()
            self._windows.add(amounts, now)

    def over_all(self, now: float) -> dict[int, Difference[Key]]:
        with self._lock:
            self._add_up()
            return self._windows.over_all(now)

    def _add_up(self) -> None:
        count = len(self._waiting)  # the loop may append meanwhile
        batches = self._waiting[:count]
        del self._waiting[:count]
        if not batches:
            return
        plan: _Lists = defaultdict(list)
        placed: _Lists = defaultdict(list)
        took: dict[str, int] = {}
        keys: dict[str, int] = {}
        for in_executors, processed, committed, took_ns, event in batches:
            here = placed if in_executors else plan
            for entry, figures in processed.items():
                here[entry].append(figures)
            for entry, figures in committed.items():
                plan[entry].append(figures)
            add_counts(took, took_ns)
            add_counts(keys, event.keys_updated)
        amounts = self._amounts_by_key(plan, placed, took, keys)
        events = [batch[-1] for batch in batches]
        amounts[Key(TOPOLOGY, "batches")] += len(events)
        for phase, seconds in zip(Phases._fields, _columns([event.phases for event in events]), strict=True):
            amounts[Key(TOPOLOGY, f"{phase}_s")] += seconds
        self._windows.add(amounts, events[-1].recorded_at)
        totals, lags = [event.phases.total for event in events], events[-1].read.lags.values()
        self.series.add(
            TimeSpan(
                tuples=sum(event.tuples for event in events),
                timed=len(events),
                took_s=sum(totals),
                longest_s=max(totals),
                lags={each.unit: each.amount for each in sum_lags(filter(None, lags))},
                is_whole=None not in lags,
            ),
            events[-1].recorded_at,
        )

    def _amounts_by_key(
        self, plan: _Lists, placed: _Lists, took: Mapping[str, int], keys: Mapping[str, int]
    ) -> dict[Key, float]:
        amounts: dict[Key, float] = defaultdict(float)
        for lists, meanings in ((plan, self._meanings), (placed, self._placed)):
            for entry, rows in lists.items():
                for total, meaning in zip(_columns(rows), meanings[entry], strict=True):
                    for key, sign in meaning if total else ():
                        amounts[key] += sign * total
        for node, nanoseconds in took.items():
            for key, _ in self._meanings[node][NS]:
                amounts[key] += nanoseconds
        for state, updated in keys.items():
            amounts[Key(self._steps[state], "keys")] += updated
        return amounts


def _columns(rows: Sequence[Sequence[float]]) -> Iterator[float]:
    return map(sum, zip(*rows, strict=False))  # all of one length; to count them would take as long as to add them up


def meanings_of(fragment: Fragment, states: Mapping[str, PersistNode]) -> Meanings:
    """Return what the figures of a fragment mean; `states` are the nodes that update one, by id."""
    found: list[list[tuple[Key, int]]] = [[] for _ in range(HEAD + EACH * (len(fragment.steps) + len(fragment.sinks)))]
    entry = fragment.entry
    own = ["busy_ns", "commit_ns"] if entry in states else ["busy_ns"]
    of_entry = [(Key(entry, measure), -1) for measure in own]  # the time of a step is part of the entry's
    found[ROWS] += _row_meanings(fragment, entry)
    found[NS] += [(Key(entry, measure), 1) for measure in own]
    for number, step in enumerate(fragment.steps):
        at = HEAD + EACH * number
        found[at] += _row_meanings(fragment, step.id)
        found[at + 1] += [(Key(step.id, "busy_ns"), 1), *of_entry]
    for number, sink in enumerate(fragment.sinks, len(fragment.steps)):
        at = HEAD + EACH * number
        found[at].append((Key(sink.source, "sent", sink.target), 1))
        found[at + 1] += [(Key(sink.target, "busy_ns"), 1), *of_entry]
    return tuple(map(tuple, found))


def _row_meanings(fragment: Fragment, source: str) -> Iterator[tuple[Key, int]]:
    yield Key(source, "emitted"), 1
    for step in fragment.steps:
        for each in step.sources:
            if each == source:
                yield Key(step.id, "executed"), 1
                yield Key(source, "sent", step.id), 1
    for sink in fragment.sinks:
        if sink.source == source:
            yield Key(sink.target, "executed"), 1
