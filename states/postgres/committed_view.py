"""The view of a state's committed values, beside its table, where the log is in the same database.

`<table>_committed` has the columns of the key and of the value, and says of each row what a reader of Trident says: the
value, if its batch is recorded and its attempt won or counts as found, else the value before. One SELECT sees table and log as
of one moment. A view of that name which this module did not make is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, LiteralString

from psycopg import Error
from psycopg.sql import SQL, Composed, Identifier, Literal

from states.postgres.columns import Columns
from states.postgres.options import PostgresOptions, identifier, table_name
from trident.servers.log_addresses import Database, PostgresAddress, is_postgres
from trident.servers.postgres_connection import PostgresConnection, text_of
from trident.state.interfaces import StateConf, StateType
from trident.storekit.plain_columns import ATTEMPT, BEFORE_NULL, NULL, TXID

_LOG = logging.getLogger(__name__)
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
_TRANSACTIONAL = f'SELECT {{keys}}, {{values}} FROM {{table}} AS own WHERE {{is_there}} AND "{TXID}" IS NOT NULL'
_RULES: dict[StateType, LiteralString] = {StateType.OPAQUE: _OPAQUE, StateType.TRANSACTIONAL: _TRANSACTIONAL}


class CommittedView:
    """Makes the view of one state, or removes it where the log is elsewhere.

    `database`: where the state's table is.
    """

    def __init__(self, options: PostgresOptions, conf: StateConf, columns: Columns, database: Database) -> None:
        at, table = options.place(conf)
        self._name, self._table = (*at, table_name(f"{table}_committed")), (*at, table)
        self._columns, self._state = columns, conf.called or conf.state
        self._topology = _log_here(conf.settings, database)

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
                identifier(*self._name),
                text_of(error),
            )

    def _put(self, connection: PostgresConnection) -> None:
        name = identifier(*self._name)
        found = connection.execute(_FOUND, (name,)).fetchone()
        if found is not None and not found[0].startswith(_OURS):
            if self._topology is not None:
                _LOG.warning(
                    "there is no view of the committed values of %s, because %s is not ours: rename that, and start again",
                    identifier(*self._table), name,
                )  # fmt: skip
        elif self._topology is not None:
            statement = self._statement(connection)
            comment = f"{_OURS}{blake2b(statement.encode(), digest_size=8).hexdigest()}"
            if found is None or found[0] != comment:
                connection.execute("SELECT pg_advisory_xact_lock(7526470313)")  # two topologies at once
                if found is not None:
                    connection.execute(f"DROP VIEW {name}".encode())  # a replaced one keeps the columns that it had
                connection.execute(statement.encode())
                connection.execute(f"COMMENT ON VIEW {name} IS '{comment}'".encode())
        elif found is not None:  # it would go on to say what that log says
            connection.execute(f"DROP VIEW {name}".encode())

    def _statement(self, connection: PostgresConnection) -> str:
        columns, is_opaque = self._columns, self._columns.kind is StateType.OPAQUE
        choice = SQL("CASE WHEN trident_stands THEN own.{} ELSE own.{} END" if is_opaque else "own.{}")
        names = [column.name for column in columns.values]
        befores = [column.name for column in columns.befores]

        def chosen(name: str, before: str) -> Composed:
            return choice.format(*map(Identifier, (name, before) if is_opaque else (name,)))

        values = [SQL("{} AS {}").format(chosen(*one), Identifier(one[0])) for one in zip(names, befores, strict=False)]
        is_there = SQL("{} IS NOT NULL").format(chosen(names[0], befores[0]))
        if columns.shape.is_struct:
            is_null = choice.format(*map(Identifier, (NULL, BEFORE_NULL) if is_opaque else (NULL,)))
            is_there = SQL("{} IS NOT TRUE").format(is_null)
        query = SQL(_RULES[columns.kind]).format(
            keys=SQL(", ").join(SQL("own.{}").format(Identifier(key.name)) for key in columns.keys),
            values=SQL(", ").join(values),
            is_there=is_there,
            table=Identifier(*self._table),
            state=Literal(self._state),
            topology=Literal(self._topology),
        )
        return SQL("CREATE OR REPLACE VIEW {} AS {}").format(Identifier(*self._name), query).as_string(connection)


def _log_here(settings: Mapping[str, Any], database: Database) -> str | None:
    """Return the name of the log in this database; None: it is elsewhere."""
    log_dir = str(settings.get("log_dir") or "")
    if not is_postgres(log_dir):
        return None
    address = PostgresAddress.of(log_dir)
    return None if database.differs_from(Database.of(address.url)) else address.topology
