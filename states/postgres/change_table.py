"""The changes of a state, kept beside its table: a row for each row that a commit writes, in the same statement.

`<table>_changes` has the columns of the state's table and the time of the commit. A row says what `OpaqueValue` says, so the
log decides which rows count. `trident_changes_gone` has, by the name of the state's table, the last batch that was
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from psycopg import errors

from states.postgres.columns import AT, Columns, gives, listed
from states.postgres.connection import Session
from states.postgres.options import PostgresOptions, identifier, table_name
from trident.errors import BackendError
from trident.retention import Retention
from trident.servers.postgres_connection import PostgresConnection, make
from trident.state.interfaces import Key, StateConf
from trident.storekit.plain_columns import OWN, TXID

_TABLES = (
    "CREATE TABLE IF NOT EXISTS {changes} ({columns}, {at} timestamp with time zone NOT NULL DEFAULT now())",
    "CREATE INDEX IF NOT EXISTS {index} ON {changes} ({txid})",
    "CREATE TABLE IF NOT EXISTS {gone} (state text PRIMARY KEY, txid bigint NOT NULL)",
    # What a table of before had, if another program dropped it, is gone too.
    """INSERT INTO {gone} AS known SELECT %(state)s, max({txid}) FROM {table} HAVING max({txid}) IS NOT NULL
    ON CONFLICT (state) DO UPDATE SET txid = greatest(known.txid, excluded.txid)""",
)
_WRITTEN = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
)
_LET_GO = """
    WITH deleted AS (DELETE FROM {changes} WHERE {txid} < {end} RETURNING {txid} AS txid)
    INSERT INTO {gone} AS known SELECT %(state)s, max(txid) FROM deleted HAVING count(*) > 0
    ON CONFLICT (state) DO UPDATE SET txid = greatest(known.txid, excluded.txid)
"""
# Along the index, past those that go.
_FIRST_YOUNG = """
    coalesce((
        SELECT {txid} FROM {changes} WHERE {at} >= now() - make_interval(secs => %(s)s) ORDER BY {txid} LIMIT 1
    ), %(txid)s)
"""
_ROWS = 10_000


class ChangeTable:
    """The table of one state's changes.

    `kept`: how long rows stay.
    """

    def __init__(
        self, session: Session, options: PostgresOptions, conf: StateConf, columns: Columns, kept: Retention, what: str
    ) -> None:
        at, table = options.place(conf)
        self._session, self._state, self._columns = session, table, columns
        self._kept, self._what, self._evolves = kept, what, conf.evolves
        self._texts = {
            "changes": identifier(*at, table_name(f"{table}_changes")),
            "table": identifier(*at, table),
            "gone": identifier(*at, f"{OWN}changes_gone"),
            "index": identifier(table_name(f"{table}_changes_txid")),
            "txid": identifier(TXID),
            "at": identifier(AT),
        }

    def create(self, connection: PostgresConnection) -> None:
        """Make the tables, unless they are there: a statement that makes one waits for writers; refuse other columns."""
        found = self._found(connection)
        columns = ", ".join(f"{column.quoted} {column.form.sql}" for column in self._columns.all)
        for statement in () if found else _TABLES:
            make(connection, self._sql(statement.replace("{columns}", columns)), {"state": self._state})
        found = found or self._found(connection)
        lacking = self._columns.lacking(found) if self._evolves else []
        if lacking:  # made by a former declaration, as the table itself
            connection.execute(self._sql(f"ALTER TABLE {{changes}} {self._columns.added(found, lacking)}"))
            found = self._found(connection)
        for column in self._columns.all:
            if not gives(found.get(column.name, ""), column.form.sql):
                there = found.get(column.name, "not there")
                raise BackendError(
                    f"keep the changes of {self._what} in {self._texts['changes']}: its column {column.name} is {there}, not "
                    f"{column.form.sql}; drop the table, and the changes of former columns with it",
                    retryable=False,
                )

    def _found(self, connection: PostgresConnection) -> dict[str, str]:
        return dict(connection.execute(_WRITTEN, (self._texts["changes"],)).fetchall())

    @property
    def clause(self) -> str:
        """The expression that writes what the expression `put` returns, if batch %(changes_of)s wrote it."""
        names = listed(self._columns.all)
        changes = self._texts["changes"].replace("%", "%%")
        return f', changed AS (INSERT INTO {changes} ({names}) SELECT {names} FROM put WHERE "{TXID}" = %(changes_of)s)'

    def let_go(self, txid: int) -> None:
        """Delete what need not be kept at batch `txid`."""
        end = "%(txid)s - %(batches)s + 1" if self._kept.batches is not None else _FIRST_YOUNG
        given = {"state": self._state, "txid": txid, "batches": self._kept.batches, "s": (self._kept.ms or 0) / 1000}
        statement = self._sql(_LET_GO.replace("{end}", end))
        self._session.run("delete old changes", lambda opened: opened.execute(statement, given))

    def gone(self) -> int:
        """Return the last batch of which rows were deleted."""
        query = self._sql("SELECT txid FROM {gone} WHERE state = %s")
        with suppress(errors.UndefinedTable):
            row = self._session.run("look for changes", lambda opened: opened.execute(query, (self._state,)).fetchone())
            return 0 if row is None else int(row[0])
        return 0

    def read(self, after: int, until: int) -> Iterator[tuple[int, list[tuple[Key, Any]]]]:
        """Iterate over what batches changed; see `KeptChanges.read`."""
        while some := self._session.run("read changes", partial(self._some, after=after, until=until)):
            yield from some
            after = some[-1][0]

    def _some(self, connection: PostgresConnection, after: int, until: int) -> list[tuple[int, list[tuple[Key, Any]]]]:
        """Return the batches after `after`, some thousand rows of them; `until` is the last that may come.

        Raises `BackendError`: the state has a table, and none with its changes.
        """
        if not self._found(connection):
            ((is_there,),) = connection.execute(
                "SELECT to_regclass(%s) IS NOT NULL", (self._texts["table"],)
            ).fetchall()
            if is_there:
                raise BackendError(
                    f"read changes of {self._what}: there is no table {self._texts['changes']}; another program dropped "
                    "it. Start the topology again, and begin with a snapshot",
                    retryable=False,
                )
            return []
        columns, place = self._columns.read, self._columns.read.index(self._columns.own[0])
        test = "{txid} > %(after)s AND {txid} <= %(until)s"
        query = f"SELECT {listed(columns)} FROM {{changes}} WHERE {test} ORDER BY {{txid}}"
        given = {"after": after, "until": until}
        rows = connection.execute(self._sql(f"{query} LIMIT {_ROWS}"), given, binary=True).fetchall()
        if len(rows) == _ROWS:
            last = rows[-1][place]
            whole = [row for row in rows if row[place] != last]  # of the last batch there may be more
            if not whole:
                rows = connection.execute(self._sql(query), {"after": after, "until": last}, binary=True).fetchall()
            else:
                rows = whole
        return [(txid, self._stored(list(some))) for txid, some in groupby(rows, key=lambda row: row[place])]

    def forget(self, keys: Sequence[Key]) -> None:
        for nulls, alike in self._columns.by_nulls(self._columns.names(keys)):
            asked, tests, given = self._columns.asked(nulls, alike, "gone")
            self._delete(f"DELETE FROM {{changes}} AS own USING {asked} WHERE {tests}", given)

    def empty(self) -> None:
        for statement in ("TRUNCATE {changes}", "DELETE FROM {gone} WHERE state = %(state)s"):
            self._delete(statement, {"state": self._state})

    def _delete(self, statement: str, given: dict[str, Any]) -> None:
        with suppress(errors.UndefinedTable):
            self._session.run("delete changes", lambda opened: opened.execute(self._sql(statement), given))

    def _stored(self, rows: list[Any]) -> list[tuple[Key, Any]]:
        """Return the keys and values of the rows of one batch, those of each attempt for themselves."""
        place = self._columns.read.index(self._columns.own[1])
        rows.sort(key=lambda row: row[place])
        return [
            pair
            for _, some in groupby(rows, key=lambda row: row[place])
            for pair in self._columns.stored(list(some)).items()
        ]

    def _sql(self, statement: str) -> bytes:
        for place, text in self._texts.items():
            statement = statement.replace(f"{{{place}}}", text.replace("%", "%%"))
        return statement.encode()
