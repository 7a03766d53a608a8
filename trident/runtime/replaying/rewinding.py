"""`state_recovery="rewind"`: states whose store was set back get the batches that they lack, from the history of the log.

A batch is processed by its recorded definitions, as in every replay, and committed to the stores with the attempt that won it.
So each value says what it said before, and a driver that is killed on the way goes on at the next start, by the sentinels.

- A partition gets the batches that its store lacks, and no other: what it has already goes nowhere.
- A key whose value is of a later batch, because it is on a node that was not set back, stays as it is.
- What a state reads of another one must be as it was then. So a state that is read, and is not behind, is computed aside, from
  the first batch on; or its last batch is committed once more, if it is one batch ahead (a copy from the middle of a commit).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import CommitRecord, ResetRecord
from trident.errors import (
    FencedError,
    HistoryGapError,
    HistoryStartError,
    ReplayFailedError,
    RewindError,
    SourceAwayError,
    StaleTransactionError,
    StoreAwayError,
    UnsupportedOperation,
)
from trident.graph import Graph, Node, PersistNode, QueryNode
from trident.planner import make_plan
from trident.planner.meaning import Meaning, changes
from trident.runtime.commit.committed import Committed
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.reading.state_reader import log_place
from trident.runtime.replaying.batch_replay import Replay
from trident.runtime.replaying.recorded_past import Mark, RecordedPast
from trident.runtime.start.recovery import Found
from trident.runtime.windows.shares import Now
from trident.state.interfaces import Key, StateType, kind_of
from trident.state.map_commits import CommittedMap
from trident.state.snapshottable import DEFAULT_SNAPSHOT_KEY, SnapshottableMap
from trident.state.txid import Sentinel, Txid, epoch_of

logger = logging.getLogger(__name__)

_SAY_EVERY_S = 5.0


def rewind(graph: Graph, config: Config, log: TransactionLog, meaning: Meaning, founds: Sequence[Found]) -> None:
    """Bring the states that do not match the log forward to its last batch.

    Parameters
    ----------
    meaning
        What the topology means as it is declared now.
    founds
        All states that keep sentinels, as the start has found them.

    Raises
    ------
    RewindError
        A state cannot be brought forward exactly; says why.
    """
    behind = [found for found in founds if found.mismatches]
    if config.history is None:
        why = "the topology keeps no history (history=), so nothing says what the batches were that its store lacks"
        raise RewindError(behind[0].name, why, 0)
    try:
        past = RecordedPast(log_place(graph.name, config))
    except HistoryGapError as error:
        raise RewindError(behind[0].name, str(error), 0) from error
    graph = graph.of_batches()
    needed, read = _needed(graph, [found.name for found in behind])
    rewound = {
        found.name: _Rewound.of(found, log, past, found.name in read) for found in founds if found.name in needed
    }
    _check(graph, log, meaning, past, rewound)
    span = _span(past, rewound)
    for one in rewound.values():
        one.begin(log, past)
    if span:
        _replay(_pruned(graph, needed), config, log, rewound, span)
    for one in rewound.values():
        one.end(log)
        if one.found.mismatches:
            logger.warning("state %s: rewound by %d batches, exact again", one.found.name, len(span))


# ---- which states, and which batches -----------------------------------------------------------------------------------


def _needed(graph: Graph, names: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return these states with those that they depend on, and which of them must be as of the batch before each batch."""
    writers = {node.state: node for node in graph.nodes if isinstance(node, PersistNode)}
    static = {state.name for state in graph.states if state.static}
    needed, waiting, read = set[str](), list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        above = [graph.node(id_) for id_ in graph.above(writers[name].id)]
        asked = {node.state for node in above if isinstance(node, (PersistNode, QueryNode))} - static
        read |= asked if writers[name].updater is None else {*asked, name}
        waiting += asked
    return needed, read


def _pruned(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph without the other states, and without what depends on them."""
    others = {state.name for state in graph.states if not state.static and state.name not in names}
    dropped: set[str] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        uses = isinstance(node, (PersistNode, QueryNode)) and node.state in others
        if uses or dropped.intersection(node.parents):
            dropped.add(node.id)
        else:
            nodes.append(node)
    states = tuple(state for state in graph.states if state.name not in others)
    return replace(graph, nodes=tuple(nodes), states=states)


@dataclass
class _Rewound:
    """A state that takes part.

    Attributes
    ----------
    found
        How the start has found it.
    is_read
        Whether a state that is behind depends on what it was before each batch.
    expected
        By partition, the sentinel that the log expects; None: no batch has written the partition.
    done
        By partition, the batch up to which its store has all.
    goal
        The last batch that one of its partitions lacks; 0: none lacks any.
    writes
        By partition, whether batches behind `done` go to its store.
    empties
        Whether the store is of before it was emptied.
    laid
        By partition, the sentinel in the store.
    """

    found: Found
    is_read: bool
    expected: list[Sentinel | None]
    done: list[int] = field(default_factory=list)
    goal: int = 0
    writes: list[bool] = field(default_factory=list)
    empties: bool = False
    laid: list[Sentinel] = field(default_factory=list)

    @classmethod
    def of(cls, found: Found, log: TransactionLog, past: RecordedPast, is_read: bool) -> _Rewound:
        """Find out which batches the store lacks."""
        partitions = range(len(found.instances))
        one = cls(found, is_read, [log.state.expected(found.name, partition) for partition in partitions])
        one.writes = [partition in found.mismatches for partition in partitions]
        last = log.state.txid
        one.done = [one._done(log, past, partition) if one.writes[partition] else last for partition in partitions]
        if one.empties:
            one.lower_to(past.emptied[found.name])
        behind = (each for each, is_written in zip(one.expected, one.writes, strict=True) if is_written)
        one.goal = max((0 if each is None else each.txid for each in behind), default=0)
        if is_read and found.mismatches:
            one.lower_to(min(one.done))
        return one

    def lower_to(self, txid: int) -> None:
        """Let all partitions take part from a batch on."""
        for partition, expected in enumerate(self.expected):
            if expected is not None:  # else no batch has written it
                self.done[partition], self.writes[partition] = txid, True

    def _done(self, log: TransactionLog, past: RecordedPast, partition: int) -> int:
        """Return the batch up to which the store of a partition has all."""
        name, sentinel = self.found.name, self.found.sentinels[partition]
        self._refuse_foreign(log, partition)
        self._refuse_changed_places(past, sentinel)
        begins = past.begun[name] - 1 if name in past.begun and past.knows_first_batch_of(name) else 0
        if sentinel is None:
            self.empties = self.empties or name in past.emptied
            return begins
        self.empties = self.empties or sentinel.txid <= past.emptied.get(name, -1)
        winner = log.state.winners_of(name).winner(sentinel.txid) or 0
        # A start lays its claim at a batch that an earlier driver has committed; a failed attempt is of the winner's driver.
        is_whole = sentinel.attempt == winner or epoch_of(sentinel.attempt) > epoch_of(winner) or not sentinel.txid
        return max(begins, sentinel.txid if is_whole and sentinel.sealed else sentinel.txid - 1)

    def _refuse_foreign(self, log: TransactionLog, partition: int) -> None:
        name, state = self.found.name, log.state
        sentinel, expected = self.found.sentinels[partition], self.expected[partition]
        if sentinel is None:
            return
        what = f"partition {partition} has {sentinel}"
        known = sentinel.incarnation == state.incarnation and (
            epoch_of(sentinel.attempt) in state.epochs or not sentinel.attempt
        )
        if not known:
            raise RewindError(
                name, f"{what}, which this log does not know: the store is of another log, or of a lost one", 0
            )
        if expected is None or (sentinel.txid, sentinel.attempt) > (expected.txid, expected.attempt):
            last = "no commit there" if expected is None else expected
            raise RewindError(name, f"{what}, so the store is ahead of the log, which ends with {last}", 0)

    def _refuse_changed_places(self, past: RecordedPast, sentinel: Sentinel | None) -> None:
        name, at = self.found.name, Mark(0, 0) if sentinel is None else Mark(sentinel.txid, sentinel.attempt)
        if name in past.adopted and at < past.adopted[name]:
            why = (
                f"after batch {past.adopted[name].txid} it was taken over as it was found (adopt), which is in no batch"
            )
            raise RewindError(name, why, 0)
        if name in past.laid_out and sentinel is not None and at < past.laid_out[name]:
            why = f"after batch {past.laid_out[name].txid} it got another number of partitions, and its store is of before"
            raise RewindError(name, why, 0)

    def is_written(self, partition: int, txid: int) -> bool:
        """Whether a batch goes to the store."""
        return self.writes[partition] and txid > self.done[partition]

    def begin(self, log: TransactionLog, past: RecordedPast) -> None:
        """Lay the sentinels of what the stores have whole; from here on a kill leaves what the next start goes on with."""
        name, winners = self.found.name, log.state.winners_of(self.found.name)
        self.laid = []
        for instance, done, is_written in zip(self.found.instances, self.done, self.writes, strict=True):
            attempt = max(winners.winner(done) or 0, past.attempt_at(name, done)) if done else 0
            self.laid.append(Sentinel(log.state.incarnation, done, attempt))
            if is_written:
                log.check_owner()
                if self.empties:
                    instance.reset()
                instance.move_sentinel(self.laid[-1], force=True)

    def end(self, log: TransactionLog) -> None:
        """Lay what the log expects, where the last batches had no rows."""
        for instance, expected, is_written in zip(self.found.instances, self.expected, self.writes, strict=True):
            if is_written and expected is not None:
                log.check_owner()
                found = instance.read_sentinel()
                if found != expected or not found.sealed:
                    instance.move_sentinel(expected, force=True)


def _span(past: RecordedPast, rewound: Mapping[str, _Rewound]) -> range:
    """Return the batches to replay; lower what a state that is read must give once more."""
    behind = [one for one in rewound.values() if one.found.mismatches]
    first = min(min(one.done) for one in behind) + 1
    last = max(one.goal for one in behind)
    if first > last:
        return range(0)
    for name, one in rewound.items():
        reached = min(one.done)
        if not one.is_read or reached < first:
            continue
        if reached == first and kind_of(one.found.instances[0]) is StateType.OPAQUE:
            one.lower_to(first - 1)
        elif past.whole_after == 0 and name not in past.adopted:
            first = 1
        else:
            why = (
                f"what a state behind it needs is its value after batch {first - 1}, its store has batch {reached}, and the "
                "history does not begin with the first batch, from which on it could be computed"
            )
            raise RewindError(name, why, 0)
    _check_history(past, rewound, behind[0].found.name, first)
    return range(first, last + 1)


def _check_history(past: RecordedPast, rewound: Collection[str], name: str, first: int) -> None:
    if past.whole_after is None or past.whole_after >= first or past.first is None or past.first > first:
        kept = max(past.first or 1, (past.whole_after or 0) + 1)
        raise RewindError(name, f"its store lacks batch {first}, and the history begins with batch {kept}", 0)
    for state, after in past.changed.items():
        if after >= first and state in rewound:
            why = f"from batch {after + 1} on it means something else; the batches from {first} on ran other code"
            raise RewindError(state, why, 0)


def _check(
    graph: Graph, log: TransactionLog, meaning: Meaning, past: RecordedPast, rewound: Mapping[str, _Rewound]
) -> None:
    """Refuse what cannot be exact, whatever the batches are."""
    recorded = log.state.declared
    before = Meaning(
        {name: facts for name, facts in recorded.get("states", {}).items() if name in rewound},
        recorded.get("streams", {}),
    )
    changed = changes(before, meaning)
    partitions = make_plan(graph).partitions
    for name, one in rewound.items():
        facts, kind = graph.state(name).spec.facts, kind_of(one.found.instances[0])
        why = ""
        if kind not in (StateType.OPAQUE, StateType.TRANSACTIONAL):
            why = "its values do not say which batch wrote them, as those of opaque and transactional states do"
        elif kind is StateType.TRANSACTIONAL and one.is_read:
            why = "a state behind it needs what it was before each batch, which only an opaque state knows"
        elif facts.forgets or facts.expires_after_s is not None:
            why = "its store forgets or expires values, which is in no batch"
        elif not one.found.known == len(one.found.instances) == partitions[name]:
            why = f"it has {one.found.known} partitions and is declared with {partitions[name]}: rewind first"
        elif changed:
            why = f"the topology is declared with another meaning than its batches had ({'; '.join(changed)})"
        if why:
            raise RewindError(name, why, 0)


# ---- the batches -------------------------------------------------------------------------------------------------------


def _replay(graph: Graph, config: Config, log: TransactionLog, rewound: Mapping[str, _Rewound], span: range) -> None:
    name = next(name for name, one in rewound.items() if one.found.mismatches)
    replayed, say_at = 0, time.monotonic()
    try:
        with _RewindReplay(graph, config, log, rewound, span[0]) as replay:
            for name in rewound:
                if name in replay.left_out:
                    raise UnsupportedOperation(replay.left_out[name])
            for _ in replay.until(span[-1]):
                replayed += 1
                if time.monotonic() >= say_at or replayed == len(span):
                    logger.warning("topology %s: rewound %d of %d batches", graph.name, replayed, len(span))
                    say_at = time.monotonic() + _SAY_EVERY_S
    except ReplayFailedError as error:
        if isinstance(error.__cause__, (FencedError, SourceAwayError, StoreAwayError)):
            raise error.__cause__ from None  # a start waits for what is away, and goes on
        _, txid, step, cause = error.args
        why = f"batch {txid} cannot be processed again as it was, at step {step!r}: {cause}"
        raise RewindError(name, why, replayed) from error
    except (HistoryStartError, HistoryGapError, UnsupportedOperation) as error:
        raise RewindError(name, str(error), replayed) from error


class _RewindReplay(Replay):
    """A replay that gives a store the batches that it lacks; what a store has is computed aside, where it is read."""

    def __init__(
        self, graph: Graph, config: Config, log: TransactionLog, rewound: Mapping[str, _Rewound], first: int
    ) -> None:
        super().__init__(graph, config, first=first)
        self._log, self._rewound = log, rewound
        self._aside = {name: list(partitions) for name, partitions in self._opened.states.items()}

    def _commit(self, record: CommitRecord, output: TaskOutput, now: Now | None, captures: bool) -> Committed:
        self._log.check_owner()
        for name, one in self._rewound.items():
            if not one.is_read:  # what is computed for nothing is forgotten
                self._empty(name)
        txids = self._txids(record)
        for one, partition in self._written(record.txid):
            name = one.found.name
            self._states(name)[partition] = (
                one.found.instances[partition] if one.is_read else _by_key(one.found.instances[partition])
            )
            txids[name][partition] = Txid(
                record.txid, record.attempt, self._log.state.winners_of(name), one.laid[partition].incarnation,
                one.laid[partition], self._log.state.epochs,
            )  # fmt: skip
        committed = self._opened.committer.commit(txids, output, now, captures)
        self._note(record, committed)
        return committed

    def _note(self, record: CommitRecord, committed: Committed) -> None:
        """Follow the sentinels; refuse a batch that writes other partitions than it did."""
        for one, partition in self._written(record.txid):
            name = one.found.name
            if partition in committed.touched.get(name, ()):
                if partition not in record.touched.get(name, ()):
                    raise self._failed(record, name, f"it has rows for partition {partition} now, and had none")
                one.laid[partition] = Sentinel(one.laid[partition].incarnation, record.txid, record.attempt)

    def _written(self, txid: int) -> Iterator[tuple[_Rewound, int]]:
        for one in self._rewound.values():
            for partition in range(len(one.done)):
                if one.is_written(partition, txid):
                    yield one, partition

    def _states(self, name: str) -> list[Any]:
        states = self._opened.states[name]
        assert isinstance(states, list), states
        return states

    def _empty(self, state: str) -> None:
        """Empty what is aside; a store was emptied before, if it has to be."""
        for partition in self._aside.get(state, ()):
            partition.reset()
        self._opened.log.append(ResetRecord(state))


class _KeyByKey(SnapshottableMap):
    """A map of which some keys may have later batches already, because the server that they are on was not set back."""

    def __init__(self, inner: CommittedMap, total: Key) -> None:
        super().__init__(inner, total)
        self._map = inner

    def multi_combine(self, parts: Sequence[Sequence[Any]], values: Any, function: Any) -> Any | None:
        with suppress(StaleTransactionError):
            return self._map.multi_combine(parts, values, function)
        return None

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        return self._update(self._map.multi_update, keys, updaters)

    def multi_update_once(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        return self._update(self._map.multi_update_once, keys, updaters)

    def update(self, updater: Any) -> Any:
        return self.multi_update([self.snapshot_key], [updater])[0]

    def _update(self, update: Any, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        try:
            return list(update(keys, updaters))
        except StaleTransactionError as stale:  # it has written nothing
            stored = self._map.backing.multi_get(keys)
            lacking = [at for at, one in enumerate(stored) if one is None or one.txid <= stale.txid]
        if lacking:
            update([keys[at] for at in lacking], [updaters[at] for at in lacking])
        return [None] * len(keys)


def _by_key(state: Any) -> Any:
    total = (DEFAULT_SNAPSHOT_KEY,)
    if isinstance(state, SnapshottableMap):
        state, total = state.inner, state.snapshot_key
    return _KeyByKey(state, total) if isinstance(state, CommittedMap) else state
