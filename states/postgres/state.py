"""PostgresState: a table for each state, and each commit of a partition one transaction with its sentinel in it.

Declared fields that have plain forms are columns, and the sentinels are in `trident_sentinels`; else the table is `(key bytea
PRIMARY KEY, value bytea)`, with a row `sentinel:P` for each partition.

Puts are sent at the end of the commit, as one statement that replaces the sentinel if it is what the writer read, and writes
the rows only then; a commit of many rows is several statements in one transaction. So a commit is seen whole or not at all,
and a writer that was replaced writes nothing.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from states.postgres.options import PostgresOptions
from trident.servers.log_addresses import Database
from trident.state.interfaces import IBackingMap, StateConf, StoreFacts
from trident.storekit import StoreMapFactory, StoreState, called_as, driver_package, kinds

_driver = partial(driver_package, "PostgreSQL", "psycopg", "postgres")


@dataclass(frozen=True)
class PostgresMapFactory(StoreMapFactory):
    """Opens the map of one partition: over columns, if the fields of the state have plain forms."""

    options: PostgresOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        from states.postgres.columns import columns_of

        columns = columns_of(conf, self.kind, self.options)
        if isinstance(columns, str):
            return super().__call__(conf, partition_index, num_partitions)
        with _driver():
            from states.postgres.map import TypedMap
        return TypedMap(self.options, conf, partition_index, columns, self._database)

    @property
    def facts(self) -> StoreFacts:
        return replace(super().facts, layout=self._layout, database=self._database)

    @property
    def _database(self) -> Database:
        return Database.of(self.options.url, self.options.user, self.options.timeout_s)

    def _layout(self, conf: StateConf) -> str:
        from states.postgres.columns import columns_of

        columns = columns_of(conf, self.kind, self.options)
        if isinstance(columns, str):
            return f"binary columns key and value: {columns}"
        return "columns " + ", ".join(f"{column.name} {column.form.sql}" for column in columns.all)


class PostgresState(StoreState[str | PostgresOptions]):
    """States in PostgreSQL: opaque, or by one of the methods; each takes a URL or `PostgresOptions`, and its fields by name."""

    options = PostgresOptions
    opaque, transactional, non_transactional = kinds(PostgresOptions)
    map_factory = PostgresMapFactory

    @called_as(opaque)
    def __new__(cls, target: str | PostgresOptions, /) -> Any: ...

    @staticmethod
    def open_map(options: PostgresOptions, conf: StateConf, partition: int) -> IBackingMap[bytes]:
        with _driver():
            from states.postgres.map import byte_map
        return byte_map(options, conf, partition)
