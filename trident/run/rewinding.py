"""`state_recovery="rewind"`: states whose store was set back get the batches that they lack, from the history of the log.

A batch is processed by its recorded definitions, as in every replay, and committed to the stores with the attempt that won it.
So each value says what it said before, and a driver that is killed on the way goes on at the next start, by the sentinels.

- A partition gets the batches that its store lacks, and no other: what it has already goes nowhere.
- A key whose value is of a later batch, because it is on a node that was not set back, stays as it is.
- What a state reads of another one must be as it was then. So a state that is read, and is not behind, is computed aside, from
  the first batch on; or its last batch is committed once more, if it is one batch ahead (a copy from the middle of a commit).
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from trident.config import Config
from trident.engine.fragment_runs import TaskOutput
from trident.engine.worker import Order
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
from trident.graph import Graph, PersistNode, QueryNode
from trident.log.log_interface import TransactionLog
from trident.log.records import CommitRecord, ResetRecord, TopologyRecord
from trident.plan.evolution import MEMBERS
from trident.plan.meaning import Meaning
from trident.read.state_reader import log_place
from trident.run.accidents import Found
from trident.run.batch_replay import Replay, without_states
from trident.run.committer import Committed
from trident.run.engine_choice import is_given_up
from trident.run.missing_batches import Lacking, RecordedPast, check_states_fit, reached_batch, span_of
from trident.state.interfaces import Key
from trident.state.map_commits import CommittedMap
from trident.state.map_state import DEFAULT_SNAPSHOT_KEY, SnapshottableMap, committed_map
from trident.state.txid import Txid

logger = logging.getLogger(__name__)

_SAY_EVERY_S = 5.0


def rewind(
    graph: Graph, config: Config, log: TransactionLog, meaning: Meaning, founds: Sequence[Found], only_check: bool
) -> None:
    """Bring the states that do not match the log forward to its last batch; `RewindError` if it cannot be exact."""
    graph, past, lacking, span = _plan(graph, config, log, meaning, founds)
    if only_check:
        if span:  # whether the sources give recorded batches again
            _RewindReplay(graph, config, log, lacking, span[0]).close()
        return
    _record_removed(log, meaning, lacking)
    if span:
        _replay(graph, config, log, past, lacking, span)
    else:
        for one in lacking:
            one.begin(log, past)
    for one in lacking:
        one.end(log)
        if one.is_behind:
            logger.warning("state %s: rewound by %d batches, exact again", one.name, one.lacks)


def _record_removed(log: TransactionLog, meaning: Meaning, lacking: Sequence[Lacking]) -> None:
    """Let the log know which aggregates are gone: what is replayed has none of their values, should they come back."""
    known, own = log.state.declared.get("states", {}), meaning.states
    states = {
        name: own[name]
        for name in (one.name for one in lacking)
        for old in known.get(name, {}).get(MEMBERS, ())
        if {old, meaning.rename.get(old)}.isdisjoint(own[name].get(MEMBERS, ()))
    }
    if states:
        log.append(TopologyRecord(states, {}))


def _plan(
    graph: Graph, config: Config, log: TransactionLog, meaning: Meaning, founds: Sequence[Found]
) -> tuple[Graph, RecordedPast, list[Lacking], range]:
    """Find out what is lacking: the graph of the states that take part, what was recorded, these states, the batches."""
    behind = [found for found in founds if found.mismatches]
    if log.state.retention is None:
        why = "the topology keeps no history (history=), so nothing says what was in the batches that its store lacks"
        raise RewindError(behind[0].name, why, 0)
    graph, reach = graph.of_batches(), dict[str, list[int]]()
    for found in founds:
        reach[found.name] = [reached_batch(found, log.state, at) for at in range(len(found.instances))]
    try:
        past = RecordedPast(log_place(graph.name, config), reach)
    except HistoryGapError as error:
        raise RewindError(behind[0].name, str(error), 0) from error
    needed, read = _needed_states(graph, [found.name for found in behind])
    lacking = [
        Lacking(found, log.state, past, reach[found.name], found.name in read)
        for found in founds
        if found.name in needed
    ]
    check_states_fit(graph, log.state, meaning, lacking)
    span = span_of(past, lacking, [spout.id for spout in graph.spouts()])
    others = {state.name for state in graph.states if not state.static} - needed
    return without_states(graph, others), past, lacking, span


def _needed_states(graph: Graph, names: Sequence[str]) -> tuple[set[str], set[str]]:
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


def _replay(
    graph: Graph, config: Config, log: TransactionLog, past: RecordedPast, lacking: Sequence[Lacking], span: range
) -> None:
    name = next(one.name for one in lacking if one.is_behind)
    replayed, say_at = 0, time.monotonic()
    try:
        with _RewindReplay(graph, config, log, lacking, span[0]) as replay:
            for one in lacking:  # once it is known that the sources can be read again
                one.begin(log, past)
            for _ in replay.until(span[-1]):
                replayed += 1
                if time.monotonic() >= say_at or replayed == len(span):
                    logger.warning("topology %s: rewound %d of %d batches", graph.name, replayed, len(span))
                    say_at = time.monotonic() + _SAY_EVERY_S
                if replayed < len(span) and is_given_up():
                    raise RewindError(name, "it was asked to end", replayed)
    except ReplayFailedError as error:
        if isinstance(error.__cause__, (FencedError, SourceAwayError, StoreAwayError)):
            raise error.__cause__ from None  # a start waits for what is away, and goes on
        _, txid, step, cause, _ = error.args
        why = f"batch {txid} cannot be processed again as it was, at step {step!r}: {cause}"
        raise RewindError(name, why, replayed) from error
    except (HistoryStartError, HistoryGapError, UnsupportedOperation) as error:
        raise RewindError(name, str(error), replayed) from error


class _RewindReplay(Replay):
    """A replay that gives a store the batches that it lacks; what a store has is computed aside, where it is read."""

    def __init__(
        self, graph: Graph, config: Config, log: TransactionLog, lacking: Sequence[Lacking], first: int
    ) -> None:
        super().__init__(graph, config, first=first)
        self._log, self._lacking = log, lacking
        self._aside = {name: list(partitions) for name, partitions in self._opened.states.items()}
        for one in lacking:
            why = self.left_out.get(one.name, "")
            if not why and len(self._aside[one.name]) != len(one.done):
                why = "the number of its partitions follows from states that it does not depend on"
            if why:
                self.close()
                raise UnsupportedOperation(f"state {one.name!r}: {why}")

    def _commit(self, record: CommitRecord, output: TaskOutput, order: Order) -> Committed:
        self._log.check_owner()
        # They may have been put back since, by another batch.
        if len(output.captured) != record.counts.get("dead_letters", 0):
            raise self._other_count(record, "dead letters", len(output.captured))
        txids = self._txids(record)
        committed = self._opened.committer.commit(order._replace(txids=txids), output)
        for one, partition in self._written_partitions(record.txid):
            if partition in committed.touched.get(one.name, ()):
                if record.txid > one.laid_out_after and partition not in record.touched.get(one.name, ()):
                    raise self._error(record, one.name, f"it has rows for partition {partition} now, and had none")
                one.laid[partition] = txids[one.name][partition].sentinel or one.laid[partition]
        return committed

    def _txids(self, record: CommitRecord) -> dict[str, list[Txid]]:
        """Return the txids as the partitions must see them, and put the stores that lack the batch in place."""
        for one in self._lacking:
            if not one.is_read:
                self._empty(one.name)  # what was computed for nothing
        txids, log = super()._txids(record), self._log.state
        for one in self._lacking:  # winners of all batches, because a query has one snapshot for all partitions
            winners = log.winners_of(one.name)
            txids[one.name] = [
                Txid(int(txid), txid.attempt, winners, log.incarnation, txid.expected, log.epochs)
                for txid in txids[one.name]
            ]
        for one, partition in self._written_partitions(record.txid):
            store, partitions = one.found.instances[partition], self._opened.states[one.name]
            assert isinstance(partitions, list), partitions
            partitions[partition] = store if one.is_read else _by_key(store)
            txids[one.name][partition] = txids[one.name][partition].for_partition(
                one.take_part(self._log, partition, record.txid)
            )
        return txids

    def _written_partitions(self, txid: int) -> Iterator[tuple[Lacking, int]]:
        for one in self._lacking:
            for partition in range(len(one.done)):
                if one.is_written(partition, txid):
                    yield one, partition

    def _empty(self, state: str) -> None:
        """Empty what is aside. The store itself was emptied before the first batch, if it has to be."""
        for partition in self._aside.get(state, ()):
            partition.reset()
        self._opened.log.append(ResetRecord(state))


class _KeyByKey(SnapshottableMap):
    """A map of which some keys may have later batches already, because the server that they are on was not set back."""

    def __init__(self, inner: CommittedMap, total: Key) -> None:
        super().__init__(inner, total)
        self._map = inner

    def multi_combine(self, parts: Sequence[Sequence[Any]], values: Any, function: Any) -> Any | None:
        combine = self.inner.facts.multi_combine
        with suppress(StaleTransactionError):
            return None if combine is None else combine(parts, values, function)
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
    found = committed_map(state)
    total = state.snapshot_key if isinstance(state, SnapshottableMap) else (DEFAULT_SNAPSHOT_KEY,)
    return state if found is None else _KeyByKey(found, total)
