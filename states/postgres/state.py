"""A state in PostgreSQL: a table of its own, and each commit of a partition one transaction with its sentinel in it.

What is stored
    A table named after topology and state, `(key bytea PRIMARY KEY, value bytea)`. A key is the codec's encoding of the
    grouping values, a value is what the serializer makes of an `OpaqueValue`, a `TransactionalValue` or the bare value. The
    row `sentinel:P` is the sentinel of partition P. Keys do not move when the number of partitions changes.

What one commit guarantees
    Puts are collected and sent at the end of the commit, as one statement that replaces the sentinel if it is still what the
    writer read, and writes the rows only then; a commit of many rows is several statements in one transaction. So a commit
    is seen whole or not at all, and a writer that was replaced writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from states.postgres.options import PostgresOptions
from trident.errors import EnvironmentProblem
from trident.state.encoding.serializers import keeps_attempts, serializer_for
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.state.map_state import map_state
from trident.state.wrappers.serialized_map import SerializedMap

__all__ = ["PostgresOptions", "PostgresState"]


class PostgresState:
    """States in PostgreSQL; one method for each kind, as `StateSpec`s for `persistent_aggregate` and its like.

    Each takes a URL or a `PostgresOptions`; `options` are its fields.

    Examples
    --------
    >>> spec = PostgresState.opaque("postgresql://localhost/counts", num_partitions=2)
    >>> spec.required_num_partitions
    2
    """

    @staticmethod
    def opaque(url_or_options: str | PostgresOptions, **options: Any) -> StateSpec:
        """Exact with transactional and opaque spouts."""
        return _spec(StateType.OPAQUE, url_or_options, options)

    @staticmethod
    def transactional(url_or_options: str | PostgresOptions, **options: Any) -> StateSpec:
        """Exact with transactional spouts."""
        return _spec(StateType.TRANSACTIONAL, url_or_options, options)

    @staticmethod
    def non_transactional(url_or_options: str | PostgresOptions, **options: Any) -> StateSpec:
        """Bare values, where a replay counts twice."""
        return _spec(StateType.NON_TRANSACTIONAL, url_or_options, options)


@dataclass(frozen=True)
class _PostgresMapFactory:
    kind: StateType
    options: PostgresOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        try:
            from states.postgres.map import PostgresBackingMap
        except ImportError as error:
            raise EnvironmentProblem(
                f"a PostgreSQL state needs the package psycopg ({error}); pip install 'trident-spark[postgres]'"
            ) from error
        backing = PostgresBackingMap(self.options, conf, partition_index)
        return SerializedMap(backing, serializer_for(self.options.serializer, self.kind))

    @property
    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them."""
        return keeps_attempts(serializer_for(self.options.serializer, self.kind))


def _spec(kind: StateType, url_or_options: str | PostgresOptions, changes: dict[str, Any]) -> StateSpec:
    if isinstance(url_or_options, PostgresOptions):
        options = replace(url_or_options, **changes)
    else:
        options = PostgresOptions(url_or_options, **changes)
    serializer_for(options.serializer, kind)  # an unknown name is refused here, not where the state is opened
    factory = _PostgresMapFactory(kind, options)
    return map_state(factory, kind, options.cache, options.snapshot_key, options.num_partitions)
