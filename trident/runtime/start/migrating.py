"""`migrate_state`: all values of former types of a state become values of its declared type, while no driver runs.

A migrated value is written as a failed attempt of the next batch that changed nothing would write it: value and value before
are the same, so that it is right whichever of them counts, and its attempt says that it is of the declared type.
"""

from __future__ import annotations

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import StartRecord, TopologyRecord
from trident.errors import TopologyError
from trident.graph import Graph
from trident.planner.meaning import Meaning, meaning_of
from trident.runtime.reading.store_check import StoreCheck
from trident.runtime.start.changes import NewMeaning, check_meaning, migrations
from trident.runtime.start.moving import Moved, Progress, StatePlace, opened_place
from trident.state.txid import RETRY_BITS, Txid
from trident.state.winners import FORMER


def migrate_state(graph: Graph, name: str, config: Config, progress: Progress = lambda *_: None) -> Moved:
    """Migrate all values of a state that are of former types; return how many rows there are, and how many it wrote.

    Raises
    ------
    LogHeldError
        A driver runs on the log.
    TopologyError
        The state has no `migrate=`, or means something else that this does not cover.
    StateError
        A value cannot be migrated: those before it are.
    """
    node = graph.state(name)
    if node.migrate is None:
        raise TopologyError(f"migrate state {name!r}: it is declared without migrate=")
    with opened_place(graph, name, config, "migrate") as (log, place):
        meaning, migrating = (
            meaning_of(graph),
            {one.name: one.migrate for one in graph.states if one.migrate is not None},
        )
        check_meaning(graph.name, log, meaning, config.allow_changed_topology, migrating)
        recorded = migrations(graph, log, Meaning({name: meaning.states[name]}, {}), migrating, {name: place.states})
        StoreCheck(name, place.states, lambda: log.state).compare()
        log.append(StartRecord.now(log.epoch, log.state.executors))
        NewMeaning(log, recorded, [name]).before_writing()
        return _migrate(log, name, place, progress)


def _migrate(log: TransactionLog, name: str, place: StatePlace, progress: Progress) -> Moved:
    state, rows, attempt, written = log.state, 0, log.epoch << RETRY_BITS, 0
    winners = state.winners_of(name)
    for keys in place.pages() if winners.types else ():
        stored = place.stored(keys)
        former = [key for key, one in stored.items() if one.attempt < winners.types[-1][0]]
        for partition, some in place.by_partition(former).items() if former else ():
            attempt += 1
            expected = state.expected(name, partition)
            commit = Txid(state.txid + 1, attempt, winners, state.incarnation, expected, state.epochs)
            place.states[partition].begin_commit(commit)
            place.states[partition].multi_put(some, place.states[partition].multi_get(some))
            place.states[partition].commit(commit)
        rows, written = rows + len(stored), written + len(former)
        progress("migrate", rows, 0)
    facts = dict(state.declared["states"][name])
    if facts.pop(FORMER, None):
        log.append(TopologyRecord({name: facts}, {}))
    return Moved(state.txid, rows, written)
