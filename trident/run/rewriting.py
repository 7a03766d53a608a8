"""Rows of a state are rewritten, or removed for good, while no driver runs.

Both are commits of the next batch that are fenced as failed attempts of it would be: whether one was made or not, the next
batch starts from what is there. Killed at any point, the same call goes on.

`migrate_state`: all values of former types become values of the declared type. Value and value before are the same, so that
it is right whichever of them counts, and the attempt says that it is of the declared type.

`forget_keys`: the rows of keys are deleted, value and value before; then the changes of these keys, and the dead letters that
name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trident.config import Config
from trident.errors import UnsupportedOperation, WrongKeyError
from trident.graph import Graph
from trident.log.log_interface import TransactionLog
from trident.log.records import StartRecord, TopologyRecord
from trident.plan.evolution import REWRITTEN
from trident.plan.meaning import Meaning
from trident.run.dead_letters import dead_letters_of
from trident.run.moving import Moved, Progress, StatePlace, opened_place
from trident.run.recovery import NewMeaning
from trident.state.encoding.equal_keys import declared_keys, keys_of_list
from trident.state.interfaces import Key
from trident.state.sentinel import compare_stores
from trident.state.txid import RETRY_BITS
from trident.state.winners import FORMER

_UNKNOWN = "as the store keeps what was deleted"


def migrate_state(graph: Graph, name: str, config: Config, progress: Progress = lambda *_: None) -> Moved:
    """Migrate all values of a state that are of former types; see `trident.migrate_state`."""
    with opened_place(graph, name, config, "migrate") as (log, place, compared):
        if name not in compared.evolutions:
            return Moved(log.state.txid, 0, 0)
        compare_stores(name, place.states, lambda: log.state)
        log.append(StartRecord.now(log.epoch, log.state.executors))
        meaning = NewMeaning(log, Meaning({name: compared.recorded.states[name]}, {}), [name])
        if meaning.lasts:
            meaning.record()
        state, rows, attempt, written = log.state, 0, log.epoch << RETRY_BITS, 0
        winners = state.winners_of(name)
        for keys in place.pages() if winners.types else ():
            stored = place.stored_rows(keys)
            former = [key for key, one in stored.items() if one.attempt < winners.types[-1][0]]
            for partition, some in place.by_partition(former).items() if former else ():
                attempt += 1
                commit = state.commits(name, len(place.states), attempt=attempt)[partition]
                place.states[partition].begin_commit(commit)
                place.states[partition].multi_put(some, place.states[partition].multi_get(some))
                place.states[partition].commit(commit)
            rows, written = rows + len(stored), written + len(former)
            progress("migrate", rows, 0)
        facts = dict(state.declared["states"][name])
        if facts.pop(FORMER, None):
            log.append(TopologyRecord({name: {**facts, REWRITTEN: state.txid}}, {}))
        return Moved(state.txid, rows, written)


@dataclass(frozen=True)
class Forgotten:
    """What `forget_keys` has done.

    `keys`: how many of the keys had a row.
    `letters`: how many dead letters named one of them, and are gone.
    `remains`: where the store itself still has what was deleted, and until when.
    """

    keys: int
    letters: int
    remains: str


def forget_keys(graph: Graph, name: str, keys: Sequence[object], config: Config) -> Forgotten:
    """Remove keys of a state for good; see `trident.forget_keys`."""
    node = graph.state(name)
    given = keys_of_list(keys, name)
    if not len(node.key_fields) and not node.free_keys:
        raise UnsupportedOperation(f"forget keys of state {name!r}: it holds a single value, and no keys")
    wanted = [key for key in declared_keys(given, node.key_fields, name) if key is not None]
    if len(wanted) < len(given):
        raise WrongKeyError(
            f"forget {list(given)} of state {name!r}: not all of them can be its keys ({node.key_fields})"
        )
    with opened_place(graph, name, config, "forget keys of") as (log, place, _):
        if not place.maps[0].backing.offers("multi_delete"):
            raise UnsupportedOperation(f"forget keys of state {name!r}: its store cannot delete keys")
        compare_stores(name, place.states, lambda: log.state)
        log.append(StartRecord.now(log.epoch, log.state.executors))
        there = _delete(log, name, place, wanted)
    letters = dead_letters_of(config, graph.name).forget(wanted)
    return Forgotten(there, letters, node.spec.facts.remains or _UNKNOWN)


def _delete(log: TransactionLog, name: str, place: StatePlace, keys: Sequence[Key]) -> int:
    state, attempt, there = log.state, log.epoch << RETRY_BITS, 0
    for partition, some in place.by_partition(keys).items():
        attempt += 1
        commit = state.commits(name, len(place.states), attempt=attempt)[partition]
        there += len(place.stored_rows(some))
        one, backing = place.states[partition], place.maps[partition].backing
        one.begin_commit(commit)
        backing.multi_delete(some)
        one.commit(commit)
        if backing.facts.kept_changes is not None:
            backing.facts.kept_changes.forget(some)
    return there
