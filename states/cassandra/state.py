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
    of the sentinel it was written under, so what a replaced writer sends in spite of that loses against its successor's
    writes in the storage engine, in whichever order they arrive (`states/cassandra/stamps.py`).

The driver is imported when a state is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from states.cassandra.options import CassandraOptions
from trident.errors import EnvironmentProblem
from trident.state.encoding.serializers import keeps_attempts, serializer_for
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.state.map_state import map_state
from trident.state.wrappers.serialized_map import SerializedMap

__all__ = ["CassandraMapFactory", "CassandraOptions", "CassandraState"]


class CassandraState:
    """States in Cassandra; one method for each kind, as `StateSpec`s for `persistent_aggregate` and its like.

    Each takes contact points (one as text, or several) or a `CassandraOptions`; `options` are its fields.

    Examples
    --------
    >>> spec = CassandraState.opaque(["cassandra-1", "cassandra-2"], keyspace="counts", cache=10_000)
    >>> spec.factory.cache
    10000
    """

    @staticmethod
    def opaque(target: str | Sequence[str] | CassandraOptions, **options: Any) -> StateSpec:
        """Exact with transactional and opaque spouts."""
        return _spec(StateType.OPAQUE, target, options)

    @staticmethod
    def transactional(target: str | Sequence[str] | CassandraOptions, **options: Any) -> StateSpec:
        """Exact with transactional spouts."""
        return _spec(StateType.TRANSACTIONAL, target, options)

    @staticmethod
    def non_transactional(target: str | Sequence[str] | CassandraOptions, **options: Any) -> StateSpec:
        """Bare values, where a replay counts twice."""
        return _spec(StateType.NON_TRANSACTIONAL, target, options)


@dataclass(frozen=True)
class CassandraMapFactory:
    """Opens the backing map of one partition; connects, and makes the table if need be.

    Attributes
    ----------
    options
        See `CassandraOptions`.
    kind
        What the values are.
    """

    options: CassandraOptions
    kind: StateType = StateType.OPAQUE

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        """Open partition `partition_index`."""
        try:
            from states.cassandra.map import CassandraBackingMap
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "cassandra":
                raise
            raise EnvironmentProblem(
                f"a Cassandra state needs the package cassandra-driver ({error}); pip install 'trident-spark[cassandra]'"
            ) from error
        backing = CassandraBackingMap(self.options, conf, partition_index)
        return SerializedMap(backing, serializer_for(self.options.serializer, self.kind))

    @property
    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them."""
        return keeps_attempts(serializer_for(self.options.serializer, self.kind))


def _spec(kind: StateType, target: str | Sequence[str] | CassandraOptions, given: dict[str, Any]) -> StateSpec:
    options = CassandraOptions.of(target, given)
    serializer_for(options.serializer, kind)  # an unknown one is refused here, not where the state is opened
    factory = CassandraMapFactory(options, kind)
    return map_state(factory, kind, options.cache, options.snapshot_key, options.num_partitions)
