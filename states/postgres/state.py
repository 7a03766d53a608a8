"""PostgresState: a table for each state, and each commit of a partition one transaction with its sentinel in it.

What is stored
    A table named after topology and state, `(key bytea PRIMARY KEY, value bytea)`. A key is the codec's encoding of the
    grouping values, a value is what the serializer writes. The row `sentinel:P` is the sentinel of partition P. Keys do
    not move when the number of partitions changes.

What one commit guarantees
    Puts are collected and sent at the end of the commit, as one statement that replaces the sentinel if it is what the
    writer read, and writes the rows only then; a commit of many rows is several statements in one transaction. So a commit
    is seen whole or not at all, and a writer that was replaced writes nothing.
"""

from __future__ import annotations

from states.postgres.options import PostgresOptions
from trident.redaction import redacted
from trident.state.interfaces import IBackingMap, StateConf
from trident.storekit import StoreState, WholeCommitMap, driver_package


class PostgresState(StoreState[str | PostgresOptions]):
    """States in PostgreSQL; each method takes a URL or a `PostgresOptions`, and its fields by name.

    Examples
    --------
    >>> spec = PostgresState.opaque("postgresql://localhost/counts", num_partitions=2)
    >>> spec.required_num_partitions
    2
    """

    options = PostgresOptions

    @staticmethod
    def open_map(options: PostgresOptions, conf: StateConf, partition: int) -> IBackingMap[bytes]:
        """Open the map of one partition; it connects when it is used."""
        with driver_package("PostgreSQL", "psycopg", "postgres"):
            from states.postgres.sql_rows import PostgresRows
        what = f"state {conf.prefix!r} partition {partition} in PostgreSQL at {redacted(options.url)}"
        return WholeCommitMap(PostgresRows(options, conf, what), conf, partition, what)
