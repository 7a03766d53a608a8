"""What the tests of the Cassandra state share: the server as tests use it, and the driver's side of commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from states._cassandra_map import CassandraBackingMap
from states.cassandra import CassandraOptions, CassandraState
from tests.servers import Server
from trident.state import Sentinel, StateConf, StateType, Txid, Winners
from trident.state.values import CombinerValueUpdater

EPOCH = 1 << 20
KINDS = {
    StateType.OPAQUE: CassandraState.opaque,
    StateType.TRANSACTIONAL: CassandraState.transactional,
    StateType.NON_TRANSACTIONAL: CassandraState.non_transactional,
}
names = count(1)


class Home:
    """The server as tests use it: one table for most states, told apart by their names."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.options = CassandraOptions(port=server.port, keyspace="tests", table="states", replication=1)
        self._opened: list[Any] = []

    def conf(self, name: str = "", read_only: bool = False) -> StateConf:
        return StateConf("topology", name or f"state{next(names)}", read_only=read_only)

    def state(self, conf: StateConf, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
        made = KINDS[kind](self.options, **options).factory.make_state(conf, 0, 1)
        self._opened.append(made)
        return made

    def map(self, conf: StateConf, partition: int = 0, **options: Any) -> CassandraBackingMap:
        self._opened.append(made := CassandraBackingMap(replace(self.options, **options), conf, partition))
        return made

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self._opened = []


class Log:
    """The driver's side of commits: winners, attempts and the sentinel that the partition must have."""

    def __init__(self, incarnation: str = "log") -> None:
        self.incarnation = incarnation
        self.winners, self.expected = Winners(), None

    winners: Winners
    expected: Sentinel | None

    def txid(self, number: int, attempt: int = 0) -> Txid:
        return Txid(number, EPOCH + attempt, self.winners, self.incarnation, self.expected)

    def record(self, txid: Txid) -> None:
        self.winners, self.expected = self.winners.with_winner(int(txid), txid.attempt), txid.sentinel


def add(left: int, right: int) -> int:
    return left + right


def update(state: Any, counts: Mapping[Any, int]) -> None:
    keys = [key if isinstance(key, tuple) else (key,) for key in counts]
    state.multi_update(keys, [CombinerValueUpdater(add, n) for n in counts.values()])


def commit(state: Any, log: Log, number: int, counts: Mapping[Any, int], attempt: int = 0, record: bool = True) -> None:
    txid = log.txid(number, attempt)
    state.begin_commit(txid)
    update(state, counts)
    state.commit(txid)
    if record:
        log.record(txid)


def values(state: Any, *words: str) -> list[Any]:
    return list(state.multi_get([(word,) for word in words]))


def claim(backing: CassandraBackingMap, number: int, attempt: int = 0, incarnation: str = "log") -> Txid:
    txid = Txid(number, EPOCH + attempt, incarnation=incarnation)
    assert txid.sentinel is not None
    backing.move_sentinel(txid.sentinel)
    backing.begin(txid)
    return txid
