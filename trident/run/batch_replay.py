"""Replay: processes recorded batches again, by their definitions, and commits them to states aside, as the loop does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cloudpickle

from trident.channel import Clock
from trident.config import Config
from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import process_or_raise, without_peek
from trident.engine.worker import Order
from trident.errors import HistoryStartError, ReplayFailedError, UnsupportedOperation
from trident.graph import Graph, Node, PeekNode, PersistNode, QueryNode, SpoutNode
from trident.log.log_address import read_history
from trident.log.log_interface import MemoryLog
from trident.log.records import (
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
from trident.plan import make_plan
from trident.plan.evolution import MEMBERS, SINCE, goes_on
from trident.plan.plan import spout_type_of
from trident.read.open_partitions import make_state
from trident.read.state_reader import ForeignLog, log_place
from trident.roles import Closes
from trident.run.batch import Batch
from trident.run.committer import Committed
from trident.run.execution import order_of, txids_of
from trident.run.opened_topology import OpenedTopology
from trident.run.sources import Sources
from trident.spout.interfaces import IBatchSpout, SpoutType, TransactionAttempt
from trident.spout.partitioned import PartitionedSpout
from trident.spout.query_batches import QueryBatches
from trident.state.encoding.equal_keys import canonical_key
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_commits import CommittedMap
from trident.state.map_state import SnapshottableMap
from trident.state.maps import OpaqueMap
from trident.state.number_columns import NumberForm
from trident.state.number_table import KeptValues
from trident.state.txid import Txid
from trident.state.values import UNKNOWN_ATTEMPT, CombinerValueUpdater, OpaqueValue
from trident.steps.failures import StepFailed

TOTAL: Key = ()  # the key of a state that is a single value, aside
Below = Callable[[str, Sequence[Key]], Sequence[Any]]
"""Returns what a store has for keys of a state: a value per key, None for an absent one."""

_NOT_WHOLE = (
    "the log has no history of its first batches (history=), so it does not say whether the state was emptied since"
)
_OWN = "it is a state of a kind of its own, not a map"


class Replay(Closes):
    """The batches of a topology's history, once more, in this process. A context manager, for one thread.

    Spouts are asked for the rows of recorded definitions only: they define nothing, and are not told of any commit. With
    `below` it begins with batch `first`, over the values of stores, in place of the first batch over empty states.
    """

    def __init__(
        self, graph: Graph, config: Config, watch: KeyWatch | None = None, below: Below | None = None, first: int = 1
    ) -> None:
        self._place = log_place(graph.name, config)
        with closing(ForeignLog(graph.name, config, [], "")) as log:
            recorded = log.now()
        graph, self._values, self.left_out = replay_graph(graph, config, watch, below)  # by state, why it is not aside
        self.unsure: dict[str, str] = {}  # by state, what the log says because of which it may differ
        self._begun: set[str] = set()  # states that a batch has written
        self._means: dict[str, Mapping[str, Any]] = {}
        self._declared: Mapping[str, Mapping[str, Any]] = recorded.declared.get("states", {})
        self._is_whole = False  # whether the history has what is between batches, from the first start on
        self._is_exact = below is None  # else neither the states nor the code are those of then
        memory = MemoryLog(graph.name)
        memory.state.incarnation = recorded.incarnation  # dead letters are known by it
        memory.state.discarded = recorded.discarded  # a batch in flight left those out that were forgotten
        self._put_back = recorded.put_back
        self._fixed: set[int] = set()  # batches whose dead letters are none any more, because their cause was fixed
        memory.state.txid = first - 1
        settings: dict[str, Any] = {
            "engine": "in_process", "log_dir": None, "history": None, "state_placement": "auto", "workers": "jobs",
            "metrics_port": None,
            "dead_letter_dir": config.dead_letter_folder(graph.name),
            "allow_inexact": True,  # each batch is committed once here
        }  # fmt: skip
        config = replace(config, **settings)
        self._opened = OpenedTopology(graph, make_plan(graph), config, lambda states: memory, in_threads=False)
        self._sources = Sources(self._opened, Clock())

    @property
    def txid(self) -> int:
        """The last batch that was processed, 0 before the first."""
        return self._opened.log.state.txid

    def values_of(self, state: str, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        """Return what a state aside has for keys; `()` is the key of a single value."""
        return self._values[state].get(keys)

    def keys(self, state: str) -> list[Key]:
        return self._values[state].keys()

    def until(self, last: int | None = None) -> Iterator[CommitRecord]:
        """Process the batches that are not processed yet, up to `last`, by default all; yield the record of each."""
        for record in read_history(self._place, self.txid + 1, last, beside=self._beside):
            if record.txid != self.txid + 1:
                raise HistoryStartError(self._place, record.txid)
            self._process(record)
            yield record
        if not self.txid and last is None:
            raise HistoryStartError(self._place, None)

    def close(self) -> None:
        self._opened.close()

    def _process(self, record: CommitRecord) -> None:
        attempt = TransactionAttempt(record.txid, record.attempt)
        self._begin_aggregates(record.txid)
        try:
            committed = self._process_and_commit(attempt, record)
        except StepFailed as failed:
            failure = failed.failure
            cause = f"{failure.cause}{f' (tuple {failure.row})' if failure.row else ''}"
            raise self._error(record, failure.step, cause) from failed.__cause__
        if self._is_exact:
            self._follow(record, committed)
        self._opened.log.append(CommitRecord(*attempt, record.spouts, committed.touched, {}, record.at_ms))

    def _begin_aggregates(self, txid: int) -> None:
        for name, facts in self._declared.items():
            begun = [one for one, first in facts.get(SINCE, {}).items() if first == txid]
            if begun and name in self._values:
                fields = {field.rpartition(": ")[0]: None for one in begun for field in facts[MEMBERS][one][2]}
                values, keys = self._values[name], self._values[name].keys()
                there = [(key, one) for key, one in zip(keys, values.get(keys), strict=True) if one is not None]
                now = [one._replace(prev=_with(one.prev, fields), curr=_with(one.curr, fields)) for _, one in there]
                values.put([key for key, _ in there], now)

    def _process_and_commit(self, attempt: TransactionAttempt, record: CommitRecord) -> Committed:
        opened, definitions = self._opened, {name: one for name, one in record.spouts.items() if one is not None}
        # What was a dead letter, and is none in this replay, is not put back.
        letters = {txid: one for txid, one in definitions.pop(LETTERS, {}).items() if txid not in self._fixed}
        if letters:
            definitions[LETTERS] = letters
        gone = [name for name in definitions if name not in opened.spouts and name not in (TIME, LETTERS)]
        if gone:
            raise self._error(
                record, gone[0], "this topology has no such stream; give the declaration that ran the batch"
            )
        batch = Batch(attempt, definitions, opened.runner, capture=bool(record.counts.get("dead_letters")))
        order = order_of(batch)
        output = process_or_raise(opened.runner, self._sources.cut(batch), order)
        if output.tuples != record.counts.get("tuples", output.tuples):
            raise self._other_count(record, "tuples", output.tuples)
        committed = self._commit(record, output, order)
        left_out, txid = len(output.captured) + len(committed.captured), record.txid
        recorded = record.counts.get("dead_letters", left_out)
        if self._is_exact and left_out != recorded:
            # None is, if their cause was fixed and all are back.
            if left_out or count_of({txid: self._put_back.get(txid, ())}) != recorded:
                raise self._other_count(record, "dead letters", left_out)
            self._fixed.add(txid)
        return committed

    def _txids(self, record: CommitRecord) -> dict[str, list[Txid]]:
        attempt = TransactionAttempt(record.txid, record.attempt)
        return txids_of(attempt, self._opened.log.state, self._opened.plan.partitions)

    def _commit(self, record: CommitRecord, output: TaskOutput, order: Order) -> Committed:
        return self._opened.committer.commit(order._replace(txids=self._txids(record)), output)

    def _other_count(self, record: CommitRecord, what: str, found: int) -> ReplayFailedError:
        recorded = record.counts[what.replace(" ", "_")]
        return self._error(record, what, f"it has {found:,} {what} now, and had {recorded:,} when it was committed")

    def _error(self, record: CommitRecord, step: str, cause: str) -> ReplayFailedError:
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
        for name, facts in states.items():
            if name in self._begun and not goes_on(self._means.get(name, facts), facts):
                self.unsure[name] = f"from batch {txid} on it means something else; the batches before ran other code"
            self._means[name] = facts

    def _beside(self, record: Record, txid: int) -> None:
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
    return {name: fields.get(name, one) for name, one in value.items()} if isinstance(value, dict) else value


class OverlayValues(KeptValues):
    """Values over those of a store, which is only read: what was not written here is as it is there."""

    def __init__(self, state: str, below: Below) -> None:
        super().__init__()
        self._state, self._below = state, below

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key: what was written here, else what the store has, as of before all batches."""
        missing = [key for key in keys if key not in self.entries]
        below = dict(zip(missing, self._below(self._state, missing), strict=True)) if missing else {}
        found = {key: OpaqueValue(0, UNKNOWN_ATTEMPT, None, value) for key, value in below.items() if value is not None}
        return [self.entries.get(key) or found.get(key) for key in keys]

    def delete(self, keys: Sequence[Key]) -> None:
        """Keep keys as removed: what the store has for them must not come back."""


class KeyWatch:
    """What a batch gives one key of a state: rows, and what their aggregate comes to."""

    def __init__(self, state: str, key: Key, fields: Sequence[str], most: int) -> None:
        self.state, self.key, self._fields, self._most = state, key, fields, most
        self.begin()

    def begin(self) -> None:
        self.count = 0  # how many rows have the key, in front of the state
        self.rows: list[dict[str, Any]] = []  # the first of them
        self.partials: list[Any] = []  # what a combiner made of them, to be combined with the value

    def accept(self, row: Any) -> None:
        """Keep a row that has the key, as the consumer of a `PeekNode`."""
        if not self._fields or canonical_key(tuple(row[name] for name in self._fields)) == self.key:
            self.count += 1
            if self.count <= self._most:
                self.rows.append({name: row[name] for name in row.fields})

    def note(self, keys: Sequence[Key], updaters: Sequence[Any]) -> None:
        for at, key in enumerate(keys):
            if key == self.key and isinstance(updater := updaters[at], CombinerValueUpdater):
                self.partials.append(updater.arg)


class _WatchedMap(OpaqueMap):
    def __init__(self, backing: IBackingMap[Any], name: str, partition: int, watch: KeyWatch) -> None:
        super().__init__(backing, name, partition)
        self._watch = watch

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        self._watch.note(keys, updaters)
        return super().multi_update(keys, updaters)


@dataclass(frozen=True)
class ScratchState:
    """The `StateFactory` of a state aside: opaque, as each batch is committed once and in order here."""

    values: KeptValues
    watch: KeyWatch | None = None
    kind: StateType = StateType.OPAQUE
    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True, keeps_attempts=True)

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> SnapshottableMap:
        from states.memory.state import ColumnarMemoryMap, MemoryData

        data = MemoryData()
        data.values = self.values
        backing = ColumnarMemoryMap(data)
        backing.facts = replace(backing.facts, shares_keys=True, keeps_columns=self.values.form is not None)
        of = backing, conf.prefix, partition_index
        return SnapshottableMap(OpaqueMap(*of) if self.watch is None else _WatchedMap(*of, self.watch), TOTAL)


def replay_graph(
    graph: Graph, config: Config, watch: KeyWatch | None = None, below: Below | None = None
) -> tuple[Graph, dict[str, KeptValues], dict[str, str]]:
    """Return the graph with all that its batches update aside; by state, the values there, or why it is not aside."""
    graph = graph.of_batches()
    # Copies: a topology of this process may be running with the same objects, which a replay prepares and closes.
    with suppress(Exception):  # pickling runs user code; what cannot be pickled is used as it is
        graph = replace(graph, nodes=cloudpickle.loads(cloudpickle.dumps(graph.nodes)))
    for spout in graph.spouts():
        _check_repeats(graph.name, spout)
    left_out = _left_out(graph, config)
    graph = without_states(graph, left_out)
    written = {state.name: state.conf(graph.name).value_type for state in graph.states if not state.static}
    values = {
        name: KeptValues(NumberForm.of(type_)) if below is None else OverlayValues(name, below)
        for name, type_ in written.items()
    }
    if watch is not None and watch.state in values:
        values[watch.state] = KeptValues()  # updated key by key
    states = []
    for state in graph.states:
        if not state.static:
            factory = ScratchState(values[state.name], watch if watch and watch.state == state.name else None)
            spec = StateSpec(factory, state.spec.required_num_partitions)
            state = replace(state, spec=spec, migrate=None)
        states.append(state)
    nodes = (*map(without_peek, graph.nodes), *_watching(graph, watch))
    return replace(graph, nodes=nodes, states=tuple(states), placements={}), values, left_out


def without_states(graph: Graph, names: Collection[str]) -> Graph:
    dropped: set[str] = set()
    for node in graph.nodes:
        uses = isinstance(node, PersistNode | QueryNode) and node.state in names
        if uses or dropped.intersection(node.parents):
            dropped.add(node.id)
    nodes = tuple(node for node in graph.nodes if node.id not in dropped)
    return replace(graph, nodes=nodes, states=tuple(state for state in graph.states if state.name not in names))


def _left_out(graph: Graph, config: Config) -> dict[str, str]:
    """Return the states that cannot be kept aside, and why not; refuse a topology that needs one, or has no other."""
    left_out: dict[str, str] = {}
    for writer in (node for node in graph.nodes if isinstance(node, PersistNode) and node.updater is not None):
        name, plan = writer.state, make_plan(graph)
        # Whether an updater gets a map only opening the state shows, which writes nothing.
        with closing(make_state(plan, config, name, 0, 1, read_only=True)) as state:
            if isinstance(state, SnapshottableMap | CommittedMap):
                continue
        left_out[name] = _OWN
        readers = [node.id for node in graph.nodes if isinstance(node, QueryNode) and node.state == name]
        readers += [node.id for node in graph.children(writer.id)]
        if readers:
            raise UnsupportedOperation(
                f"run the batches of topology {graph.name!r} again: {', '.join(map(repr, readers))} read state {name!r}, and "
                f"{_OWN}, so that it cannot be kept aside"
            )
    if all(state.static or state.name in left_out for state in graph.states):
        raise UnsupportedOperation(
            f"run the batches of topology {graph.name!r} again: of its states none can be kept aside. "
            + "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        )
    return left_out


def _check_repeats(topology: str, node: SpoutNode) -> None:
    promise, spout = spout_type_of(node.spout), node.spout
    asks_user = isinstance(spout, IBatchSpout) and not isinstance(spout, PartitionedSpout)
    is_query = isinstance(spout, QueryBatches)  # whose batches are Spark's
    if promise is SpoutType.NON_TRANSACTIONAL or (promise is SpoutType.OPAQUE and asks_user) or is_query:
        raise UnsupportedOperation(
            f"run the batches of topology {topology!r} again: the spout of stream {node.id!r}, a {type(spout).__name__}, is "
            f"{promise.value} and does not give the rows of a recorded batch again. Nothing was read. What it feeds cannot be "
            "compared or explained; sources that can be read again are files, tables, topics of Kafka and Redis Streams as logs"
        )


def _watching(graph: Graph, watch: KeyWatch | None) -> Iterator[Node]:
    if watch is None:
        return
    for writer in graph.nodes:
        if isinstance(writer, PersistNode) and writer.state == watch.state:
            parent = writer.parents[0]  # any other one only names keys
            fields = graph.node(parent).fields
            yield PeekNode(f"{parent}/watched", (parent,), fields, fields, watch)
