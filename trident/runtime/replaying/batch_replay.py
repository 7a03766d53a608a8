"""Replay: processes recorded batches again, by their definitions, and commits them to states aside, as the loop does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from trident.config import Config
from trident.coordination.history import read_history
from trident.coordination.memory_log import MemoryLog
from trident.coordination.records import (
    LETTERS,
    TIME,
    AdoptRecord,
    CommitRecord,
    Record,
    ResetRecord,
    StartRecord,
    TopologyRecord,
    count_of,
)
from trident.errors import HistoryStartError, ReplayFailedError
from trident.graph import Graph
from trident.planner import make_plan
from trident.planner.evolution import MEMBERS, SINCE, goes_on
from trident.roles import Closes
from trident.runtime.commit.committer import Committed
from trident.runtime.engine.runners import processed
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order
from trident.runtime.loop.batch import Batch, Clock
from trident.runtime.loop.execution import txids_of
from trident.runtime.loop.sources import Sources
from trident.runtime.reading.state_reader import ForeignLog, log_place
from trident.runtime.replaying.replay_graph import Below, KeyWatch, replay_graph
from trident.runtime.start.opened_topology import OpenedTopology
from trident.runtime.steps.failures import StepFailed
from trident.spout.interfaces import TransactionAttempt
from trident.state.interfaces import Key
from trident.state.txid import Txid
from trident.state.values import OpaqueValue

_NOT_WHOLE = (
    "the log has no history of its first batches (history=), so it does not say whether the state was emptied since"
)


class Replay(Closes):
    """The batches of a topology's history, once more, in this process. A context manager, for one thread.

    Spouts are asked for the rows of recorded definitions only: they define nothing, and are not told of any commit.

    `watch`: a key whose rows and partial aggregates are kept, batch by batch.
    `below`, `first`: begin with batch `first`, over the values of stores, in place of the first batch over empty states.
    `left_out`: by state that is not aside, why not.
    `unsure`: by state, what the log says of it because of which it may differ.
    Raises `UnsupportedOperation`: a source does not give a batch again, or a state that cannot be aside is read by the
    topology.
    Raises `LogError`, `ForeignLogError`: there is no log, or it is of another topology.
    """

    def __init__(
        self, graph: Graph, config: Config, watch: KeyWatch | None = None, below: Below | None = None, first: int = 1
    ) -> None:
        self._place = log_place(graph.name, config)
        with closing(ForeignLog(graph.name, config, [], "")) as log:
            recorded = log.now()
        graph, self._values, self.left_out = replay_graph(graph, config, watch, below)
        self.unsure: dict[str, str] = {}
        self._begun: set[str] = set()  # states that a batch has written
        self._means: dict[str, Mapping[str, Any]] = {}
        self._declared: Mapping[str, Mapping[str, Any]] = recorded.declared.get("states", {})
        self._is_whole = False  # whether the history has what is between batches, from the first start on
        self._is_exact = below is None  # else neither the states nor the code are those of then
        memory = MemoryLog(graph.name)
        memory.state.incarnation = recorded.incarnation  # dead letters are known by it
        self._put_back = recorded.put_back
        self._fixed: set[int] = set()  # batches whose dead letters are none any more, because their cause was fixed
        memory.state.txid = first - 1
        self._opened = _opened(graph, config, memory)
        self._sources = Sources(self._opened, Clock(), {})

    @property
    def txid(self) -> int:
        """The last batch that was processed, 0 before the first."""
        return self._opened.log.state.txid

    def stored(self, state: str, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        """Return what a state aside has for keys; `()` is the key of a single value."""
        return self._values[state].get(keys)

    def keys(self, state: str) -> list[Key]:
        """Return the keys of a state aside, those of removed values too."""
        return self._values[state].keys()

    def until(self, last: int | None = None) -> Iterator[CommitRecord]:
        """Process the batches that are not processed yet, up to `last`, the last that is committed by default.

        Yields the record of each when it is processed.

        Raises `HistoryStartError`: the history does not begin with the first batch.
        Raises `HistoryGapError`: a piece of it is missing.
        Raises `ReplayFailedError`: a batch cannot be processed again.
        """
        for record in read_history(self._place, self.txid + 1, last, beside=self._beside):
            if record.txid != self.txid + 1:
                raise HistoryStartError(self._place, record.txid)
            self._process(record)
            yield record
        if not self.txid and last is None:
            raise HistoryStartError(self._place, None)

    def close(self) -> None:
        """Close sources and states."""
        self._opened.close()

    # ---- a batch --------------------------------------------------------------------------------------------------------

    def _process(self, record: CommitRecord) -> None:
        attempt = TransactionAttempt(record.txid, record.attempt)
        self._begin_aggregates(record.txid)
        try:
            committed = self._committed(attempt, record)
        except StepFailed as failed:
            failure = failed.failure
            cause = f"{failure.cause}{f' (tuple {failure.row})' if failure.row else ''}"
            raise self._failed(record, failure.step, cause) from failed.__cause__
        if self._is_exact:
            self._follow(record, committed)
        self._opened.log.append(CommitRecord(*attempt, record.spouts, committed.touched, {}, record.at_ms))

    def _begin_aggregates(self, txid: int) -> None:
        """Let aggregates begin with nothing that count only from a batch on."""
        for name, facts in self._declared.items():
            begun = [one for one, first in facts.get(SINCE, {}).items() if first == txid]
            if begun and name in self._values:
                fields = {field.rpartition(": ")[0]: None for one in begun for field in facts[MEMBERS][one][2]}
                values, keys = self._values[name], self._values[name].keys()
                there = [(key, one) for key, one in zip(keys, values.get(keys), strict=True) if one is not None]
                now = [one._replace(prev=_with(one.prev, fields), curr=_with(one.curr, fields)) for _, one in there]
                values.put([key for key, _ in there], now)

    def _committed(self, attempt: TransactionAttempt, record: CommitRecord) -> Committed:
        opened, definitions = self._opened, self._definitions(record)
        gone = [name for name in definitions if name not in opened.spouts and name not in (TIME, LETTERS)]
        if gone:
            raise self._failed(
                record, gone[0], "this topology has no such stream; give the declaration that ran the batch"
            )
        captures = bool(record.counts.get("dead_letters"))
        batch = Batch(attempt, definitions, opened.runner, captures)
        order = Order(attempt, captures, now=batch.now)
        output = processed(opened.runner, self._sources.cut(batch), order)
        if output.tuples != record.counts.get("tuples", output.tuples):
            raise self._other_count(record, "tuples", output.tuples)
        committed = self._commit(record, output, order)
        if self._is_exact:
            self._check_letters(record, len(output.captured) + len(committed.captured))
        return committed

    def _txids(self, record: CommitRecord) -> dict[str, list[Txid]]:
        """Return the txid of a batch, as each partition aside must see it."""
        attempt = TransactionAttempt(record.txid, record.attempt)
        return txids_of(attempt, self._opened.log.state, self._opened.plan.partitions)

    def _commit(self, record: CommitRecord, output: TaskOutput, order: Order) -> Committed:
        """Apply a processed batch to the states; `order` gets its txids."""
        return self._opened.committer.commit(replace(order, txids=self._txids(record)), output)

    def _definitions(self, record: CommitRecord) -> dict[str, Any]:
        """Return what the sources gave a batch; what was a dead letter, and is none in this replay, is not put back."""
        definitions = {name: one for name, one in record.spouts.items() if one is not None}
        letters = {txid: one for txid, one in definitions.pop(LETTERS, {}).items() if txid not in self._fixed}
        return {**definitions, LETTERS: letters} if letters else definitions

    def _check_letters(self, record: CommitRecord, found: int) -> None:
        """Compare the tuples that were left out with those that are; none is, if their cause was fixed and all are back."""
        recorded, txid = record.counts.get("dead_letters", found), record.txid
        if found != recorded:
            if found or count_of({txid: self._put_back.get(txid, ())}) != recorded:
                raise self._other_count(record, "dead letters", found)
            self._fixed.add(txid)

    def _other_count(self, record: CommitRecord, what: str, found: int) -> ReplayFailedError:
        recorded = record.counts[what.replace(" ", "_")]
        return self._failed(record, what, f"it has {found:,} {what} now, and had {recorded:,} when it was committed")

    def _failed(self, record: CommitRecord, step: str, cause: str) -> ReplayFailedError:
        return ReplayFailedError(self._opened.plan.topology, record.txid, step, cause)

    def _follow(self, record: CommitRecord, committed: Committed) -> None:
        """Keep a state empty until the batch that was the first to write it."""
        if not self._is_whole:  # the log had few batches, and remembers them without a history
            self.unsure.update(dict.fromkeys(self._values, _NOT_WHOLE))
            self._is_whole = True
        self._note_meanings(record.declares.get("states", {}), record.txid)
        self._begun.update(record.touched)
        for name in set(committed.touched) - self._begun:  # it was declared later, and began empty
            self._empty(name)
            del committed.touched[name]

    def _note_meanings(self, states: Mapping[str, Mapping[str, Any]], txid: int) -> None:
        """Note which states mean something else from a batch on."""
        for name, facts in states.items():
            if name in self._begun and not goes_on(self._means.get(name, facts), facts):
                self.unsure[name] = f"from batch {txid} on it means something else; the batches before ran other code"
            self._means[name] = facts

    def _beside(self, record: Record, txid: int) -> None:
        """Follow what the log says between two batches."""
        if txid < self.txid or not self._is_exact:  # of a piece that is read a second time
            return
        if isinstance(record, StartRecord):
            self._is_whole = True
        elif isinstance(record, ResetRecord):
            self._empty(record.state)
        elif isinstance(record, AdoptRecord):
            self.unsure[record.state] = f"after batch {txid} its totals were kept as they were found"
        elif isinstance(record, TopologyRecord):
            self._note_meanings(record.states, txid + 1)

    def _empty(self, state: str) -> None:
        for partition in self._opened.states.get(state, ()):
            partition.reset()
        self._opened.log.append(ResetRecord(state))


def _with(value: Any, fields: Mapping[str, None]) -> Any:
    """Return a struct with null for those of its fields."""
    if not isinstance(value, dict):
        return value
    return {name: fields.get(name, one) for name, one in value.items()}


def _opened(graph: Graph, config: Config, log: MemoryLog) -> OpenedTopology:
    settings: dict[str, Any] = {
        "engine": "in_process", "log_dir": None, "history": None, "state_placement": "auto", "workers": "jobs",
        "metrics_port": None,
        "dead_letter_dir": config.dead_letter_folder(graph.name),
        "allow_inexact": True,  # each batch is committed once here
    }  # fmt: skip
    return OpenedTopology(graph, make_plan(graph), replace(config, **settings), lambda states: log, in_threads=False)
