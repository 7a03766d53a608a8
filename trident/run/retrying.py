"""Decides what follows a failure: another attempt after a pause, one that leaves tuples out, or the end of the topology (R4).

A last try may leave out no tuple that an earlier attempt of the batch may have left in a state. An opaque state takes back
what a failed attempt wrote. A transactional one keeps it, and one that is neither, or does not keep the attempts, keeps some.
If such a state has the tuple already, its dead letter, put back, would count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from trident.channel import Clock
from trident.config import Config
from trident.errors import BatchFailedError, RetriesUsedUpError
from trident.graph import PersistNode
from trident.run.batch import Batch
from trident.run.coordinator import MasterBatchCoordinator
from trident.run.opened_topology import OpenedTopology
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import Failure, StepFailed, failing_at

logger = logging.getLogger(__name__)

_OF_THE_ENGINE = ("spark", "processing", "commit")  # after failures of these steps tasks of the attempt may still run


@dataclass(frozen=True)
class Waiting:
    """A store or a source that is away."""

    what: str  # its kind and address
    since: float  # when that was first seen, on the monotonic clock
    since_ms: int
    in_commit: bool = False  # whether a commit needs it, and not only the processing of the batch
    tries: int = 1

    @classmethod
    def after(cls, earlier: Waiting | None, what: str, clock: Clock, in_commit: bool = False) -> Waiting:
        """Return what is waited for now: what was waited for before, with one try more, or something else."""
        if earlier is not None and earlier.what == what:
            return replace(earlier, in_commit=in_commit, tries=earlier.tries + 1)
        return cls(what, clock.monotonic(), clock.wall_ms(), in_commit)

    def __str__(self) -> str:
        return f"waiting for {self.what} since {moment_text(self.since_ms)}"


def moment_text(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


class RetryRule:
    """What follows the failures of a topology's batches.

    `repeats`: a batch that is tried again has the same tuples, so that a mistake is made again.
    `captures`: a last try leaves out the tuples that raise.
    """

    def __init__(
        self, config: Config, coordinator: MasterBatchCoordinator, clock: Clock, repeats: bool, captures: bool
    ) -> None:
        self._config, self._coordinator, self._clock = config, coordinator, clock
        self._repeats, self._captures = repeats, captures
        self._mistaken = 0  # the last batch with a mistake, which its next try leaves out
        self.waiting: Waiting | None = None
        self._waits: dict[int, int] = {}  # how often a batch in flight failed because something was away
        self._away: dict[int, Waiting] = {}

    def is_last_try(self, txid: int) -> bool:
        """Whether another failure of this batch ends the topology."""
        return self._tries(txid) >= self._config.max_batch_attempts or txid == self._mistaken

    def _tries(self, txid: int) -> int:
        """Return how often a batch has failed with the failure that just came, other than because something was away."""
        return self._coordinator.failures(txid) + 1 - self._waits.get(txid, 0)

    def pause_after(self, attempt: TransactionAttempt, failure: Failure, in_commit: bool = False) -> float:
        """Return how many seconds pass before the next attempt; `BatchFailedError` if there is none."""
        tries, may_retry, txid = self._tries(attempt.txid), self._coordinator.retries_left > 0, attempt.txid
        earlier, waiting = self._away.pop(txid, None), None
        if failure.waits_for:
            what = f"{failure.waits_for} (step {failure.step!r})" if failure.is_source_away else failure.waits_for
            waiting = self._away[txid] = Waiting.after(earlier, what, self._clock, in_commit)
        self._show()
        failure = self._give_up_mistake(txid, failure)
        if waiting is not None and may_retry:
            waited_s = self._clock.monotonic() - waiting.since
            if failure.is_source_away or waited_s < self._config.store_wait_s:
                self._waits = {each: count for each, count in self._waits.items() if each > self._coordinator.last_txid}
                self._waits[txid] = self._waits.get(txid, 0) + 1
                return backoff_s(self._config, waiting.tries)
            limit = f"{self._config.store_wait_s:g} seconds, store_wait_s"
            failure = replace(failure, cause=f"{failure.cause} ({waiting}: longer than {limit})")
            may_retry, tries = True, max(tries, self._config.max_batch_attempts, waiting.tries)
        if may_retry and failure.retry and tries < self._config.max_batch_attempts:
            return backoff_s(self._config, tries)
        kind = BatchFailedError if may_retry else RetriesUsedUpError
        error = kind(txid, tries, failure.step, failure.row, failure.cause)
        error.writes_dead_letters, error.can_heal = self._config.on_poison == "dead_letter", failure.can_heal
        error.may_leave_out = failure.may_leave_out
        raise error

    def _give_up_mistake(self, txid: int, failure: Failure) -> Failure:
        """The same tuples would fail in the same way: they are left out at once, or the topology ends at once."""
        if failure.is_mistake and (self._repeats or not failure.retry):
            failure = replace(failure, retry=self._captures and txid != self._mistaken)
            self._mistaken = txid
        return failure

    def has_answered(self, txid: int, committed: bool = True) -> None:
        """Note that a batch got over what it waited for: it is committed, or only processed."""
        waiting = self._away.get(txid)
        if waiting is not None and (committed or not waiting.in_commit):
            del self._away[txid]
            logger.info("%s answers again, after %.0f s", waiting.what, self._clock.monotonic() - waiting.since)
            self._show()

    def _show(self) -> None:
        self.waiting = self._away[min(self._away)] if self._away else None


def backoff_s(config: Config, tries: int) -> float:
    """Return how many seconds pass after so many tries; they double with each, up to a maximum."""
    return float(min(config.retry_backoff_ms * 2 ** min(tries - 1, 30), config.retry_backoff_max_ms)) / 1000


class Capturing:
    """Knows what earlier attempts of a batch may have written, from the sentinels of the states; used by the loop's thread."""

    def __init__(self, opened: OpenedTopology) -> None:
        self._graph, self._plan = opened.graph, opened.plan
        self._in_tasks = frozenset(opened.lasting).intersection(opened.executors)
        self._states = {name: opened.states[name] for name in opened.lasting}
        self.began = self._cut_off = 0  # the last batch of which an attempt may have begun to write

    def note_failed(self, batch: Batch, failure: Failure) -> None:
        """Note an attempt that failed; its tasks may write on until a later attempt fences them."""
        if failure.step in _OF_THE_ENGINE and batch.attempt.txid == self.began:
            self._cut_off = batch.attempt.txid

    def states_written(self, txid: int, committed: int) -> frozenset[str]:
        """Return the states that may keep something of earlier attempts of a batch; `StepFailed` if a store does not say."""
        if txid != committed + 1:  # no attempt writes before the batch before is committed
            return frozenset()
        found = {name for name, partitions in self._states.items() if self._has_begun(name, partitions, txid)}
        return frozenset(found | (self._in_tasks if self._cut_off == txid else set()))

    def _has_begun(self, name: str, partitions: Sequence[Any], txid: int) -> bool:
        if not partitions[0].offers("read_sentinel"):
            return self.began == txid
        with failing_at(name):
            sentinels = [partition.read_sentinel() for partition in partitions]
        return any(sentinel is not None and sentinel.txid >= txid for sentinel in sentinels)

    def check(self, batch: Batch, captured: Iterable[Failure]) -> None:
        """Fail an attempt, for good, that left a tuple out which one of `Batch.written` may have."""
        for each in captured if batch.written else ():
            fragment = None if each.left_out is None else self._plan.fragments.get(each.left_out.entry)
            if fragment is None:
                continue
            behind = self._graph.behind(each.step if each.step in fragment.ids else fragment.entry)[1:]
            reached = {node.state for node in behind if isinstance(node, PersistNode)}
            if has := sorted(reached & batch.written):
                raise StepFailed(
                    Failure(
                        each.step,
                        each.row,
                        f"{each.cause}. It is not left out, because an earlier attempt of the batch, in which it may not have "
                        f"raised, has written to {', '.join(map(repr, has))}, which keeps that: put back, the tuple would "
                        "count twice. Fix the operation so that it raises at the same tuples each time, or not at all, and "
                        "start again",
                        retry=False,
                        details=each.details,
                    )
                )
