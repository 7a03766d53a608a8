"""`forget_keys`: keys of a state, and what else says them, are removed for good, while no driver runs.

The rows are deleted, value and value before, by a commit that is fenced as a failed attempt of the next batch would be:
whether it was made or not, the next batch starts from what is there. Then the changes of these keys are deleted, and the dead
letters that name them. Killed at any point, the same call goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trident.config import Config
from trident.coordination.memory_log import TransactionLog
from trident.coordination.records import StartRecord
from trident.errors import UnsupportedOperation, WrongKeyError
from trident.graph import Graph
from trident.runtime.commit.dead_letters import dead_letters_of
from trident.runtime.reading.store_check import StoreCheck
from trident.runtime.start.moving import StatePlace, opened_place
from trident.state.encoding.declared_keys import declared_keys, keys_of_list
from trident.state.interfaces import Key
from trident.state.txid import RETRY_BITS, Txid

_UNKNOWN = "as the store keeps what was deleted"


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
    """Remove keys of a state for good.

    Raises
    ------
    LogHeldError
        A driver runs on the log.
    WrongKeyError
        One cannot be a key of the state.
    UnsupportedOperation
        The store cannot delete keys, or the state has none.
    StateError
        The store does not belong to the log.
    """
    node = graph.state(name)
    given = keys_of_list(keys, name)
    if not len(node.key_fields) and not node.free_keys:
        raise UnsupportedOperation(f"forget keys of state {name!r}: it holds a single value, and no keys")
    wanted = (
        [key for key in declared_keys(given, node.key_fields, name) if key is not None] if node.key_fields else given
    )
    if len(wanted) < len(given):
        raise WrongKeyError(
            f"forget {list(given)} of state {name!r}: not all of them can be its keys ({node.key_fields})"
        )
    with opened_place(graph, name, config, "forget keys of") as (log, place, _):
        if not place.maps[0].backing.offers("multi_delete"):
            raise UnsupportedOperation(f"forget keys of state {name!r}: its store cannot delete keys")
        StoreCheck(name, place.states, lambda: log.state).compare()
        log.append(StartRecord.now(log.epoch, log.state.executors))
        there = _delete(log, name, place, wanted)
    letters = dead_letters_of(config, graph.name).forget(wanted)
    return Forgotten(there, letters, node.spec.facts.remains or _UNKNOWN)


def _delete(log: TransactionLog, name: str, place: StatePlace, keys: Sequence[Key]) -> int:
    state, attempt, there = log.state, log.epoch << RETRY_BITS, 0
    for partition, some in place.by_partition(keys).items():
        attempt += 1
        expected = state.expected(name, partition)
        commit = Txid(state.txid + 1, attempt, state.winners_of(name), state.incarnation, expected, state.epochs)
        there += len(place.stored(some))
        one, backing = place.states[partition], place.maps[partition].backing
        one.begin_commit(commit)
        backing.multi_delete(some)
        one.commit(commit)
        if backing.kept_changes is not None:
            backing.kept_changes.forget(some)
    return there
