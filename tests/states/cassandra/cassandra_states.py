"""What the tests of the Cassandra state share: the server as tests use it, and the driver's side of commits."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from states.cassandra import CassandraOptions, CassandraState
from states.cassandra.map import CassandraBackingMap
from tests.harness import store_commits
from tests.harness.servers import Server
from trident.state import StateConf, StateType, Txid

EPOCH = 1 << 20
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
        made = CassandraState.of_kind(kind, self.options, options).factory.make_state(conf, 0, 1)
        self._opened.append(made)
        return made

    def map(self, conf: StateConf, partition: int = 0, **options: Any) -> CassandraBackingMap:
        self._opened.append(made := CassandraBackingMap(replace(self.options, **options), conf, partition))
        return made

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self._opened = []


class Log(store_commits.Log):
    """Attempts are counted from that of the first epoch."""

    def __init__(self, incarnation: str = "log") -> None:
        super().__init__(incarnation, EPOCH)


def commit(state: Any, log: Log, number: int, counts: Mapping[Any, int], attempt: int = 0, record: bool = True) -> None:
    store_commits.commit(state, log, number, attempt, counts, record)


def claim(backing: CassandraBackingMap, number: int, attempt: int = 0, incarnation: str = "log") -> Txid:
    txid = Txid(number, EPOCH + attempt, incarnation=incarnation)
    assert txid.sentinel is not None
    backing.read_sentinel()  # as every commit does first
    backing.move_sentinel(txid.sentinel)
    backing.begin(txid)
    return txid
