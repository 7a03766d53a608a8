"""The table of a state whose fields are columns, and that of the sentinels beside it: made, completed, or refused by name."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from psycopg import errors

from states.postgres.beside_table import ChangeTable, CommittedView
from states.postgres.columns import AT, Column, Columns, column_list, gives, holds
from states.postgres.options import TableNames
from trident.errors import BackendError, TopologyError
from trident.servers.postgres_connection import PostgresConnection, make
from trident.state.interfaces import StateConf
from trident.storekit import warn_once
from trident.storekit.plain_columns import BEFORE, BEFORE_NULL, OWN

_CREATE = "CREATE TABLE IF NOT EXISTS {table} ({columns}, {unique} ({keys})) WITH (fillfactor = 70)"
_SENTINELS = """
    CREATE TABLE IF NOT EXISTS {sentinels} (
        state text, partition int, layout int NOT NULL, sentinel bytea NOT NULL, witness bytea, PRIMARY KEY (state, partition)
    )
"""
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '',
        coalesce(collisdeterministic, true)
    FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE = """
    SELECT (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY(indkey)),
        coalesce((to_jsonb(pg_index) ->> 'indnullsnotdistinct')::boolean, false)
    FROM pg_index
    WHERE indrelid = to_regclass(%s) AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL
"""
_TRIGGERS = """
    SELECT tgname FROM pg_trigger
    WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3
"""  # BEFORE, FOR EACH ROW
_LOG = logging.getLogger(__name__)
_EQUAL_NULLS = 150_000  # the version from which an index may take nulls for equal; before, no key may be null


class TypedTable:
    """Makes sure of a state's table, and of what is to be beside it; `expires`: rows say when they were written."""

    def __init__(
        self,
        names: TableNames,
        conf: StateConf,
        columns: Columns,
        what: str,
        expires: bool,
        view: CommittedView | None,
        changes: ChangeTable | None,
    ) -> None:
        self._names, self._columns, self._what, self._read_only = names, columns, what, conf.read_only
        self._view, self._changes, self._expires, self._is_known = view, changes, expires, False
        self._changed, self._evolves = conf.evolves, conf.evolves and not columns.is_bytes

    def prepare(self, connection: PostgresConnection) -> None:
        """Make sure that the table is one for this state; add the columns that a table of the user's lacks.

        Raises `BackendError`: it is another one: nothing was written. `psycopg.errors.UndefinedTable`: there is none yet.
        """
        if self._is_known:
            return
        found = {row[0]: row[1:] for row in connection.execute(_COLUMNS, (self._names.table,)).fetchall()}
        if not found:
            raise errors.UndefinedTable(self._names.table)
        missing = [column for column in self._columns.all if column.name not in found]
        self._refuse_columns(found)
        if self._evolves:
            missing = self._add_missing(connection, {name: type_ for name, (type_, *_) in found.items()}, missing)
        self._refuse_missing(connection, found, [column.name for column in missing])
        self._refuse_keys(connection, found)
        if self._read_only and missing:
            raise errors.UndefinedTable(self._names.table)
        if not self._read_only:
            self._complete(connection, found, missing)
        self._is_known = True

    def _complete(self, connection: PostgresConnection, found: Mapping[str, Any], missing: Sequence[Column]) -> None:
        """Add what the table lacks, and make what is beside it; warn of what is between a commit and its rows."""
        for (trigger,) in connection.execute(_TRIGGERS, (self._names.table,)).fetchall():
            warn_once(
                _LOG,
                f"table {self._names.table}",
                f"trigger {trigger} runs before each row is written. No commit sees a row that it leaves out, or a value that "
                "it changes, and the totals are wrong then: let it change columns of your own alone, or run AFTER",
            )
        if missing:
            self._add(connection, {}, missing)
        if self._expires and AT not in found:
            added = f'ADD COLUMN IF NOT EXISTS "{AT}" timestamp with time zone DEFAULT now()'
            self._alter(connection, added, f"it has no column {AT}", "add it")
        elif not self._expires and AT in found:
            # Without it no driver notes when it writes, and a later ttl_s would go by old times.
            self._alter(connection, f'DROP COLUMN IF EXISTS "{AT}"', f"it has {AT}, and no ttl_s", "drop the column")
        if self._changes is not None:
            self._changes.create(connection)
        if self._view is not None:
            self._view.put(connection)

    def create(self, connection: PostgresConnection) -> None:
        """Make the table, and that of the sentinels unless they are among its rows."""
        is_old, keys = connection.info.server_version < _EQUAL_NULLS, self._columns.keys
        rest, unique = (" NOT NULL", "UNIQUE") if is_old else ("", "UNIQUE NULLS NOT DISTINCT")
        if is_bytes := self._columns.is_bytes:
            rest, unique = " NOT NULL", "PRIMARY KEY"  # by which a subscription of PostgreSQL's knows the rows
        # A collation that no upgrade of the system changes.
        texts = {column: ' COLLATE "C"' for column in keys if column.form.sql == "text"}
        types = [f"{column.quoted_name} {column.form.sql}{texts.get(column, '')}{rest}" for column in keys]
        value_rest = rest if is_bytes else ""
        types += [f"{column.quoted_name} {column.form.sql}{value_rest}" for column in self._columns.all[len(keys) :]]
        table = self._names.sql(_CREATE, columns=", ".join(types), unique=unique, keys=column_list(keys))
        for statement in (table, *(() if is_bytes else (self._names.sql(_SENTINELS),))):
            make(connection, statement.encode())
        self._is_known = False
        self.prepare(connection)

    def _refuse_columns(self, found: Mapping[str, Any]) -> None:
        known = {column.name: column for column in self._columns.all}
        if found.keys() == {"key", "value"} and not known.keys() <= found.keys():
            raise self._table_error("it has the binary layout (key, value)", "give layout='binary', or another table")
        if self._columns.is_bytes and {f"{OWN}txid", f"{OWN}attempt"} <= found.keys():
            there = (
                "it has columns, and what is declared now is kept as key and value, because that is asked for "
                "(layout='binary') or a type has no column"
            )
            advice = (
                "declare former layout and types; or give the new declaration another table, and move the state there with "
                "`trident state move`"
            )
            if self._changed:
                raise TopologyError(f"open {self._what}: {there}; {advice}")
            raise self._table_error(there, advice)
        for name, (type_, _, _, is_deterministic) in found.items():
            column = known.get(name)
            if column is None and self._is_of_another_kind(name):
                raise self._table_error(
                    f"it has {name}, of a state of another kind", "give the kind that it was written with"
                )
            wanted = type_ if column is None else column.form.sql
            self._refuse_type(name, type_, wanted)
            if column is not None and not is_deterministic:
                raise self._table_error(f"{name} has a collation in which other texts are equal", 'give it COLLATE "C"')

    def _refuse_type(self, name: str, type_: str, wanted: str) -> None:
        if gives(type_, wanted) or (self._evolves and holds(wanted, type_)):  # or can be made to
            return
        if not self._evolves:
            raise self._table_error(f"{name} is {type_}, not {wanted}", "give another table, or change the type")
        raise TopologyError(
            f"open {self._what}: column {name} is {type_}, for what had this name before, and {wanted} as it is "
            "declared now, which does not hold the former values. Nothing was written. Give it another name"
        )

    def _is_of_another_kind(self, name: str) -> bool:
        """Whether a column that no field needs is one of the framework's; those of fields of former declarations stay."""
        is_former = name.startswith(f"{BEFORE}_") and any(column.name == BEFORE_NULL for column in self._columns.all)
        return name.startswith(OWN) and name != AT and not is_former and not self._columns.is_bytes

    def _refuse_missing(self, connection: PostgresConnection, found: Mapping[str, Any], missing: Sequence[str]) -> None:
        own, keys = self._columns.ours, {column.name for column in self._columns.keys}
        is_completed = own and own.isdisjoint(found) and keys.isdisjoint(missing) and not self._was_written(connection)
        if missing and not is_completed:
            there = f"its columns are {', '.join(found)}"
            raise self._table_error(
                f"it has no column {', '.join(missing)}", f"{there}; give another table, or restore what is missing"
            )
        for name, (_, is_not_null, is_filled, _) in found.items():
            if (
                name not in own | keys | {column.name for column in self._columns.values}
                and is_not_null
                and not is_filled
            ):
                raise self._table_error(f"it has {name} NOT NULL without a default", "give the column a default")

    def _add_missing(
        self, connection: PostgresConnection, found: Mapping[str, str], missing: Sequence[Column]
    ) -> list[Column]:
        """Add what the values of this declaration need beside those of former ones; return what is missing then."""
        lacking = self._columns.lacking(found)
        if lacking and self._read_only:
            names = ", ".join(column.name for column in lacking)
            raise self._table_error(
                f"it has no column {names} as declared now", "start the topology with this declaration first"
            )
        if lacking:
            self._add(connection, found, lacking)
        return [column for column in missing if column not in lacking]

    def _add(self, connection: PostgresConnection, found: Mapping[str, str], lacking: Sequence[Column]) -> None:
        names = ", ".join(column.name for column in lacking)
        self._alter(connection, self._columns.alterations(found, lacking), f"it has no column {names}", "add them")

    def _alter(self, connection: PostgresConnection, change: str, found: str, advice: str) -> None:
        try:
            connection.execute(self._names.sql("ALTER TABLE {table} {change}", change=change).encode(), ())
        except errors.InsufficientPrivilege as error:
            raise self._table_error(found, f"{advice}, or let its owner run this topology once") from error

    def _was_written(self, connection: PostgresConnection) -> bool:
        with suppress(errors.UndefinedTable):
            query = self._names.sql("SELECT 1 FROM {sentinels} WHERE state = %s LIMIT 1").encode()
            return connection.execute(query, (self._names.bare,)).fetchone() is not None
        return False

    def _refuse_keys(self, connection: PostgresConnection, found: Mapping[str, Any]) -> None:
        keys = [column.name for column in self._columns.keys]
        takes_null = any(not found[name][1] for name in keys)
        for names, nulls_are_equal in connection.execute(_UNIQUE, (self._names.table,)).fetchall():
            if sorted(names or ()) == sorted(keys) and (nulls_are_equal or not takes_null):
                return
        nulls = " NULLS NOT DISTINCT" if takes_null else ""
        raise self._table_error(f"it has no UNIQUE{nulls} ({', '.join(keys)})", "add this constraint")

    def _table_error(self, found: str, advice: str) -> BackendError:
        return BackendError(f"open the table {self._names.table} of {self._what}: {found}; {advice}", retryable=False)
