"""What stands beside the table of a state: the changes that are kept of it, and the view of its committed values.

`<table>_changes` has the columns of the state's table and the time of the commit: a row for each row that a commit writes, in
the same statement. A row says what `OpaqueValue` says, so the log decides which rows count. `trident_changes_gone` has, by
the name of the state's table, the last batch that was deleted.

`<table>_committed` is made where the log is in the same database. It says of each row what a reader of Trident says: the
value, if its batch is recorded and its attempt won or counts as found, else the value before. One SELECT sees table and log
as of one moment. A view of that name which is not Trident's is left alone.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any

from psycopg import Error, errors
from psycopg.sql import Literal

from states.postgres.columns import AT, Columns, column_list, gives
from states.postgres.connection import Session
from states.postgres.options import PostgresOptions, identifier
from trident.errors import BackendError
from trident.retention import Retention
from trident.servers.log_addresses import Database, PostgresAddress, is_postgres
from trident.servers.postgres_connection import PostgresConnection, make, text_of
from trident.state.interfaces import Key, StateConf, StateType
from trident.storekit.plain_columns import ATTEMPT, BEFORE_NULL, NULL, TXID

_LOG = logging.getLogger(__name__)
_TABLES = (
    f'CREATE TABLE IF NOT EXISTS {{changes}} ({{columns}}, "{AT}" timestamp with time zone NOT NULL DEFAULT now())',
    f'CREATE INDEX IF NOT EXISTS {{changes_index}} ON {{changes}} ("{TXID}")',
    "CREATE TABLE IF NOT EXISTS {gone} (state text PRIMARY KEY, txid bigint NOT NULL)",
    # What a table of before had, if another program dropped it, is gone too.
    f"""INSERT INTO {{gone}} AS known SELECT %(state)s, max("{TXID}") FROM {{table}} HAVING max("{TXID}") IS NOT NULL
    ON CONFLICT (state) DO UPDATE SET txid = greatest(known.txid, excluded.txid)""",
)
_WRITTEN = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
)
_LET_GO = f"""
    WITH deleted AS (DELETE FROM {{changes}} WHERE "{TXID}" < {{end}} RETURNING "{TXID}" AS txid)
    INSERT INTO {{gone}} AS known SELECT %(state)s, max(txid) FROM deleted HAVING count(*) > 0
    ON CONFLICT (state) DO UPDATE SET txid = greatest(known.txid, excluded.txid)
"""
# Along the index, past those that go.
_FIRST_YOUNG = f"""
    coalesce((
        SELECT "{TXID}" FROM {{changes}} WHERE "{AT}" >= now() - make_interval(secs => %(s)s) ORDER BY "{TXID}" LIMIT 1
    ), %(txid)s)
"""
_ROWS = 10_000

_OURS = "Committed values, made by Trident for Spark; "
_FOUND = "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class WHERE oid = to_regclass(%s)"
# The rule of `OpaqueValue.stands_before`: -1 is the attempt of a value that was stored without one.
_STANDS = f"""own."{TXID}" <= log.txid AND (own."{ATTEMPT}" = -1
            OR own."{TXID}" <= coalesce(log.adopted_txids[array_position(log.adopted_states, {{state}})], 0)
            OR own."{ATTEMPT}" = log.winner_attempts[width_bucket(own."{TXID}", log.winner_txids)])"""
_OPAQUE = f"""
    SELECT {{keys}}, {{values}} FROM (
        SELECT own.*, {_STANDS} AS trident_stands
        FROM {{table}} AS own, trident_log_heads AS log WHERE log.topology = {{topology}} AND own."{TXID}" IS NOT NULL
    ) AS own WHERE {{is_there}}"""
# It keeps no value before. What a batch has begun to write is what it will be, however often it is replayed.
_TRANSACTIONAL = f' SELECT {{keys}}, {{values}} FROM {{table}} AS own WHERE {{is_there}} AND "{TXID}" IS NOT NULL'
_RULES = {StateType.OPAQUE: _OPAQUE, StateType.TRANSACTIONAL: _TRANSACTIONAL}


class ChangeTable:
    """The table of one state's changes, and how long rows stay (`kept`)."""

    def __init__(
        self, session: Session, options: PostgresOptions, conf: StateConf, columns: Columns, kept: Retention, what: str
    ) -> None:
        self._session, self._names, self._columns = session, options.names(conf), columns
        self._kept, self._what, self._evolves = kept, what, conf.evolves
        self._state = {"state": self._names.bare}

    def create(self, connection: PostgresConnection) -> None:
        """Make the tables, unless they are there: a statement that makes one waits for writers; refuse other columns."""
        found = self._read_columns(connection)
        columns = ", ".join(f"{column.quoted_name} {column.form.sql}" for column in self._columns.all)
        for statement in () if found else _TABLES:
            make(connection, self._sql(statement, columns=columns), self._state)
        found = found or self._read_columns(connection)
        lacking = self._columns.lacking(found) if self._evolves else []
        if lacking:  # made by a former declaration, as the table itself
            connection.execute(
                self._sql("ALTER TABLE {changes} {added}", added=self._columns.alterations(found, lacking)), ()
            )
            found = self._read_columns(connection)
        for column in self._columns.all:
            if not gives(found.get(column.name, ""), column.form.sql):
                there = found.get(column.name, "not there")
                raise BackendError(
                    f"keep the changes of {self._what} in {self._names.changes}: its column {column.name} is {there}, not "
                    f"{column.form.sql}; drop the table, and the changes of former columns with it",
                    retryable=False,
                )

    def _read_columns(self, connection: PostgresConnection) -> dict[str, str]:
        return dict(connection.execute(_WRITTEN, (self._names.changes,)).fetchall())

    @property
    def clause(self) -> str:
        """The expression that writes what the expression `put` returns, if batch %(changes_of)s wrote it."""
        names = column_list(self._columns.all)
        test = f'"{TXID}" = %(changes_of)s'
        statement = "INSERT INTO {changes} ({names}) SELECT {names} FROM put WHERE {test}"
        return f", changed AS ({self._names.sql(statement, names=names, test=test)})"

    def let_go(self, txid: int) -> None:
        by_number = "%(txid)s - %(batches)s + 1"
        end = by_number if self._kept.batches is not None else self._names.sql(_FIRST_YOUNG)
        given = {**self._state, "txid": txid, "batches": self._kept.batches, "s": (self._kept.ms or 0) / 1000}
        statement = self._sql(_LET_GO, end=end)
        self._session.run("delete old changes", lambda opened: opened.execute(statement, given))

    def last_gone(self) -> int:
        query = self._sql("SELECT txid FROM {gone} WHERE state = %(state)s")
        with suppress(errors.UndefinedTable):
            row = self._session.run("look for changes", lambda opened: opened.execute(query, self._state).fetchone())
            return 0 if row is None else int(row[0])
        return 0

    def read(self, after: int, until: int) -> Iterator[tuple[int, list[tuple[Key, Any]]]]:
        while some := self._session.run("read changes", partial(self._some, after=after, until=until)):
            yield from some
            after = some[-1][0]

    def _some(self, connection: PostgresConnection, after: int, until: int) -> list[tuple[int, list[tuple[Key, Any]]]]:
        """Return the batches after `after`, some thousand rows of them; `until` is the last that may come."""
        if not self._read_columns(connection):
            ((is_there,),) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (self._names.table,)).fetchall()
            if is_there:
                raise BackendError(
                    f"read changes of {self._what}: there is no table {self._names.changes}; another program dropped "
                    "it. Start the topology again, and begin with a snapshot",
                    retryable=False,
                )
            return []
        columns, place = self._columns.read, self._columns.read.index(self._columns.own[0])
        test = f'"{TXID}" > %(after)s AND "{TXID}" <= %(until)s ORDER BY "{TXID}"'
        query = self._sql("SELECT {names} FROM {changes} WHERE {test}", names=column_list(columns), test=test)
        given = {"after": after, "until": until}
        rows = connection.execute(query + b" LIMIT %d" % _ROWS, given, binary=True).fetchall()
        if len(rows) == _ROWS:
            last = rows[-1][place]
            whole = [row for row in rows if row[place] != last]  # of the last batch there may be more
            if not whole:
                rows = connection.execute(query, {"after": after, "until": last}, binary=True).fetchall()
            else:
                rows = whole
        return [(txid, self._entries_of(list(some))) for txid, some in groupby(rows, key=lambda row: row[place])]

    def forget(self, keys: Sequence[Key]) -> None:
        for nulls, alike in self._columns.by_nulls(self._columns.names(keys)):
            asked, tests, given = self._columns.asked_keys(nulls, alike, "gone")
            statement = self._sql("DELETE FROM {changes} AS own USING {asked} WHERE {tests}", asked=asked, tests=tests)
            self._delete(statement, given)

    def empty(self) -> None:
        for statement in ("TRUNCATE {changes}", "DELETE FROM {gone} WHERE state = %(state)s"):
            self._delete(self._sql(statement), self._state)

    def _delete(self, statement: bytes, given: Mapping[str, Any]) -> None:
        with suppress(errors.UndefinedTable):
            self._session.run("delete changes", lambda opened: opened.execute(statement, given))

    def _entries_of(self, rows: list[Any]) -> list[tuple[Key, Any]]:
        """Return the keys and values of the rows of one batch, those of each attempt for themselves."""
        place = self._columns.read.index(self._columns.own[1])
        rows.sort(key=lambda row: row[place])
        return [
            pair
            for _, some in groupby(rows, key=lambda row: row[place])
            for pair in self._columns.values_by_key(list(some)).items()
        ]

    def _sql(self, statement: str, **parts: str) -> bytes:
        return self._names.sql(statement, **parts).encode()


class CommittedView:
    """Makes the view of one state, whose table is in `database`, or removes it where the log is elsewhere."""

    def __init__(self, options: PostgresOptions, conf: StateConf, columns: Columns, database: Database) -> None:
        self._names = options.names(conf)
        self._columns, self._state = columns, conf.called or conf.state
        log_dir = str(conf.settings.get("log_dir") or "")
        log = PostgresAddress.of(log_dir) if is_postgres(log_dir) else None
        self._topology = None if log is None or database.differs_from(Database.of(log.url)) else log.name

    def put(self, connection: PostgresConnection) -> None:
        """Make the view what it has to be; a refusal is a warning, because the state can do without it."""
        if self._columns.kind not in _RULES:
            return
        try:
            with connection.transaction():
                self._put(connection)
        except Error as error:
            if connection.closed:
                raise
            _LOG.warning(
                "the view %s of committed values was not made: %s. Give the table's user CREATE on its schema and SELECT on "
                "trident_log_heads, or drop what is in the way; the state does without it",
                self._names.committed,
                text_of(error),
            )

    def _put(self, connection: PostgresConnection) -> None:
        name, sql = self._names.committed, self._names.sql
        found = connection.execute(_FOUND, (name,)).fetchone()
        if found is not None and not found[0].startswith(_OURS):
            if self._topology is not None:
                _LOG.warning(
                    "there is no view of the committed values of %s, because %s is not ours: rename that, and start again",
                    self._names.table,
                    name,
                )
        elif self._topology is not None:
            statement = self._statement(connection)
            comment = f"{_OURS}{blake2b(statement.encode(), digest_size=8).hexdigest()}"
            if found is None or found[0] != comment:
                connection.execute("SELECT pg_advisory_xact_lock(7526470313)")  # two topologies at once
                # A replaced one would keep the columns that it had.
                drop = [] if found is None else [sql("DROP VIEW {committed}")]
                for each in (*drop, statement, sql("COMMENT ON VIEW {committed} IS '{comment}'", comment=comment)):
                    connection.execute(each.encode(), ())
        elif found is not None:  # it would go on to say what that log says
            connection.execute(sql("DROP VIEW {committed}").encode(), ())

    def _statement(self, connection: PostgresConnection) -> str:
        columns, is_opaque = self._columns, self._columns.kind is StateType.OPAQUE

        def committed_value(name: str, before: str) -> str:
            return f"CASE WHEN trident_stands THEN own.{name} ELSE own.{before} END" if is_opaque else f"own.{name}"

        pairs = [
            (one.quoted_name, before.quoted_name) for one, before in zip(columns.values, columns.befores, strict=False)
        ]
        is_there = f"{committed_value(*pairs[0])} IS NOT NULL"
        if columns.shape.is_struct:
            is_there = f"{committed_value(identifier(NULL), identifier(BEFORE_NULL))} IS NOT TRUE"
        state, topology = (
            Literal(name).as_string(connection).replace("%", "%%") for name in (self._state, self._topology)
        )
        return self._names.sql(
            "CREATE OR REPLACE VIEW {committed} AS" + _RULES[columns.kind],
            keys=column_list(columns.keys, "own."),
            values=", ".join(f"{committed_value(*pair)} AS {pair[0]}" for pair in pairs),
            is_there=is_there,
            state=state,
            topology=topology,
        )
