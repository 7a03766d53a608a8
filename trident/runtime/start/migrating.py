"""`migrate_state`: all values of former types of a state become values of its declared type, while no driver runs.

A migrated value is written as a failed attempt of the next batch that changed nothing would write it: value and value before
are the same, so that it is right whichever of them counts, and its attempt says that it is of the declared type.
"""

from __future__ import annotations

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import StartRecord, TopologyRecord
from trident.graph import Graph
from trident.planner.evolution import REWRITTEN
from trident.planner.meaning import Meaning
from trident.runtime.reading.store_check import StoreCheck
from trident.runtime.start.changes import NewMeaning
from trident.runtime.start.moving import Moved, Progress, StatePlace, opened_place
from trident.state.txid import RETRY_BITS, Txid
from trident.state.winners import FORMER


def migrate_state(graph: Graph, name: str, config: Config, progress: Progress = lambda *_: None) -> Moved:
    """Migrate all values of a state that are of former types; return how many rows there are, and how many it wrote.

    Raises
    ------
    LogHeldError
        A driver runs on the log.
    TopologyChangedError
        The state means something else that its log does not go on with.
    StateError
        A value cannot be migrated: those before it are.
    """
    with opened_place(graph, name, config, "migrate") as (log, place, compared):
        if name not in compared.evolutions:
            return Moved(log.state.txid, 0, 0)
        StoreCheck(name, place.states, lambda: log.state).compare()
        log.append(StartRecord.now(log.epoch, log.state.executors))
        NewMeaning(log, Meaning({name: compared.recorded.states[name]}, {}), [name]).before_writing()
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
        log.append(TopologyRecord({name: {**facts, REWRITTEN: state.txid}}, {}))
    return Moved(state.txid, rows, written)
