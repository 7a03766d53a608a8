"""States in Apache Cassandra: exact at QUORUM, and safe to repeat after a timeout.

What is stored
    One row per key in a table `((state, bucket), key) -> value`. `state` is the key prefix (topology and state name), so
    states can share a table; `bucket` is the CRC-32 of the encoded key modulo `buckets`. Rows of buckets below zero are
    the records of the state itself: the floor of its timestamps (-1) and the sentinel of partition p (-2 - p).

How it is read and written
    Reads ask for up to 100 keys of one bucket at once; writes are unlogged batches of up to 100 rows of one bucket and
    40 KiB, so each is one mutation of one replica set. All are prepared, and sent in windows of `max_concurrency`.

Fencing
    The sentinel is replaced by a lightweight transaction, forward only, if it is what was read. It is read again before
    each window of writes and at the end of a commit, and then sealed by another one. Every write carries a timestamp made
    of the sentinel it was written under, so later writes of a replaced writer lose against its successor's writes in
    the storage engine, in whichever order they arrive (`states/cassandra/stamps.py`).

The driver is imported when a state is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from states.cassandra.options import CassandraOptions
from trident.state.interfaces import StateConf
from trident.storekit import StoreState, driver_package

if TYPE_CHECKING:
    from states.cassandra.map import CassandraBackingMap

__all__ = ["CassandraOptions", "CassandraState"]


class CassandraState(StoreState[str | Sequence[str] | CassandraOptions]):
    """States in Cassandra; one method for each kind, as `StateSpec`s for `persistent_aggregate` and the like.

    Each takes contact points (one as text, or several) or a `CassandraOptions`; `options` are its fields.

    Examples
    --------
    >>> spec = CassandraState.opaque(["cassandra-1", "cassandra-2"], keyspace="counts", cache=10_000)
    >>> spec.factory.cache
    10000
    """

    options = CassandraOptions

    @staticmethod
    def open_map(options: CassandraOptions, conf: StateConf, partition: int) -> CassandraBackingMap:
        """Open the map of one partition: connect, and create the table if necessary."""
        with driver_package("Cassandra", "cassandra-driver", "cassandra", module="cassandra"):
            from states.cassandra.map import CassandraBackingMap
        return CassandraBackingMap(options, conf, partition)
