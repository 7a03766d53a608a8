"""States in Apache Cassandra: exact at QUORUM, and safe to repeat after a timeout.

One row per key in a table `((trident_state, trident_bucket), key columns) -> value columns`. `trident_state` is the key
prefix, so states can share a table; `trident_bucket` is the CRC-32 of the key's bytes modulo `buckets`. A bucket below zero
has no rows but a record of the state itself, in the static column `trident_record`: the floor of its timestamps (-1) or the
sentinel of partition p (-2 - p).

Reads ask for up to 100 keys of one bucket at once; writes are unlogged batches of up to 100 rows of one bucket and 40 KiB, so
each is one mutation of one replica set.

The sentinel is replaced by a lightweight transaction, forward only, if it is what was read. It is read again before each
window of writes and at the end of a commit, and then sealed by another one. Every write carries a timestamp made of the
sentinel it was written under, so later writes of a replaced writer lose against its successor's in the storage engine
(`fence.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from states.cassandra.options import CassandraOptions
from trident.state.interfaces import IBackingMap, StateConf, StoreFacts
from trident.storekit import StoreMapFactory, StoreState, called_as, driver_package, kinds

if TYPE_CHECKING:
    from states.cassandra.cql_columns import CqlColumns
    from states.cassandra.map import CassandraBackingMap

__all__ = ["CassandraOptions", "CassandraState"]

_driver = partial(driver_package, "Cassandra", "cassandra-driver", "cassandra", module="cassandra")


@dataclass(frozen=True)
class CassandraMapFactory(StoreMapFactory):
    """Opens the map of one partition: over columns, if that is asked for."""

    options: CassandraOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        if self.options.layout == "binary":
            return super().__call__(conf, partition_index, num_partitions)
        columns = self._columns(conf)
        with _driver():
            from states.cassandra.map import CassandraBackingMap
        return CassandraBackingMap(self.options, conf, partition_index, columns)

    @property
    def facts(self) -> StoreFacts:
        return replace(super().facts, layout=self._layout)

    def _layout(self, conf: StateConf) -> str:
        if self.options.layout == "binary":
            return "binary columns key and value"
        return "columns " + ", ".join(f"{column.name} {column.form.cql}" for column in self._columns(conf).all)

    def _columns(self, conf: StateConf) -> CqlColumns:
        from states.cassandra.cql_columns import columns_of

        return columns_of(conf, self.kind, self.options)


class CassandraState(StoreState[str | Sequence[str] | CassandraOptions]):
    """States in Cassandra, as `StateSpec`s for `persistent_aggregate` and the like: opaque, or by one of the methods.

    Each takes contact points (one as text, or several) or a `CassandraOptions`; `options` are its fields.
    """

    options = CassandraOptions
    opaque, transactional, non_transactional = kinds(CassandraOptions)
    map_factory = CassandraMapFactory

    @called_as(opaque)
    def __new__(cls, target: str | Sequence[str] | CassandraOptions, /) -> Any: ...

    @staticmethod
    def open_map(options: CassandraOptions, conf: StateConf, partition: int) -> CassandraBackingMap:
        with _driver():
            from states.cassandra.map import CassandraBackingMap
        return CassandraBackingMap(options, conf, partition)
