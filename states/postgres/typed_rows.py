"""Reads and writes of a state whose fields are columns, and its sentinels (R8, R9).

A row of `trident_sentinels` has a witness: a key that the partition's last commit wrote, and its batch. A sentinel whose
witness is not in the table any more counts as none, so a table that was emptied, dropped or brought back from a backup is
found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from psycopg import Cursor, errors

from states.postgres.beside_table import ChangeTable, CommittedView
from states.postgres.columns import (
    AT,
    Columns,
    Packed,
    column_list,
    found_table,
    number_form,
    offsets_of,
    pack_array,
    select_list,
    value_arrays,
)
from states.postgres.connection import FencedWrite, Session
from states.postgres.options import PostgresOptions
from states.postgres.typed_table import TypedTable
from trident.errors import StateError
from trident.servers.postgres_connection import PostgresConnection
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key, StateConf
from trident.state.kinds import StateType
from trident.state.table import KeyColumns, OpaqueTable
from trident.storekit import InTransaction, Puts, StoredRows, by_count, by_size
from trident.storekit.plain_columns import TXID

LAYOUT = 1  # the version of the layout, in each row of `trident_sentinels`
_READ_SENTINEL = """
    SELECT layout, sentinel, witness, {is_there} FROM {sentinels} WHERE state = %(state)s AND partition = %(partition)s
"""
_FREE = "SELECT 1"
_FIRST = """
    INSERT INTO {sentinels} AS known VALUES (%(state)s, %(partition)s, %(layout)s, %(new)b, %(witness)b)
    ON CONFLICT (state, partition) DO UPDATE SET sentinel = excluded.sentinel, witness = excluded.witness
    WHERE known.sentinel = %(dead)b RETURNING 1
"""
_NEXT = """
    UPDATE {sentinels} SET sentinel = %(new)b, witness = %(witness)b
    WHERE state = %(state)s AND partition = %(partition)s AND sentinel = %(found)b AND {is_there} RETURNING 1
"""
# Rows are joined with the fence, so nothing is written if the fence found nothing to replace. In the order of the index,
# because neighbours share its pages.
_DELETE = ", deleted_{at} AS (DELETE FROM {table} AS own USING fence, {asked} WHERE {tests})"
_PUT = """,
    put AS (
        INSERT INTO {table} AS own ({names}) SELECT given.* FROM fence, unnest({arrays}) AS given ({names})
        ORDER BY {order}
        ON CONFLICT ({keys}) DO UPDATE SET {put}{returning}
    ){changed}
"""
_MANY_KEYS = 64  # from this many keys on arrays are faster than rows
Statement = tuple[str, dict[str, Any]]


class TypedRows(StoredRows):
    """One state's table, which the first write creates. A key is a tuple, a value is what the kind stores."""

    max_key_bytes = 2_600  # an entry of an index takes a third of a page at most
    emptied: ClassVar[tuple[str, ...]] = ("TRUNCATE {table}", "DELETE FROM {sentinels} WHERE state = %(state)s")

    def __init__(
        self, options: PostgresOptions, conf: StateConf, what: str, columns: Columns, view: CommittedView | None
    ) -> None:
        self._options, self._columns, self._what = options, columns, what
        self._session, kept = Session(options, what, conf.read_only), options.kept_changes
        self.changes = None if kept is None else ChangeTable(self._session, options, conf, columns, kept, what)
        self.form = number_form(columns, conf)  # without one `find` finds nothing
        self._names = options.names(conf)
        self._table = TypedTable(self._names, conf, columns, what, options.ttl_s is not None, view, self.changes)
        self.batch = -1  # the commit under way
        self._witness: bytes | None = None  # of the sentinel that was read or written last
        self._keeps_witness = True
        self._test: tuple[bytes, str, dict[str, Any]] | None = None  # the query for a witness
        self._dead: bytes | None = None  # the sentinel that was found without its witness

    def names(self, keys: Sequence[Key]) -> list[Any]:
        return self._columns.names(keys)

    def keys(self, names: Sequence[Any]) -> list[Key]:
        return list(names)

    def longest(self, names: Sequence[Any]) -> tuple[int, Any]:
        texts = [list(filter(None, part)) for part in zip(*names, strict=True) if {str, bytes} & set(map(type, part))]
        at_most = sum(4 * max(map(len, text), default=0) for text in texts)
        if at_most <= self.max_key_bytes:
            return at_most, None
        name = max(names, key=_size_of)
        return _size_of(name), name

    def read(self, keys: Sequence[Any]) -> dict[Any, Any]:
        found: dict[Key, Any] = {}
        for some in by_count(keys, self._options.max_keys_per_call):
            for nulls, alike in self._columns.by_nulls(some):
                query = self._select_query(
                    column_list(self._columns.read, "own."), nulls, self._columns.asked_keys(nulls, alike, "asked")
                )
                found.update(self._columns.values_by_key(self._rows(f"read {len(keys)} keys", *query)))
        return found

    def find(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Return what is stored for keys; None if rows are faster, or the keys do not fit arrays."""
        columns, rows = self._columns, len(keys)
        if rows < _MANY_KEYS or self.form is None:
            return None
        parts = keys.parts if isinstance(keys, KeyColumns) else list(zip(*self.names(keys), strict=True))
        if len(parts) != len(columns.keys):
            return None
        arrays = [column.array(part) for column, part in zip(columns.keys, parts, strict=True)]
        longest = sum(int(np.max(_sizes(array))) for array in arrays)
        if longest > self.max_key_bytes or any(array.null_count for array in arrays):
            return None
        nulls, answers, most = (False,) * len(arrays), [], self._options.max_keys_per_call
        what = select_list(columns)
        for start in range(0, rows, most):
            asked = columns.asked_arrays(nulls, [array.slice(start, most) for array in arrays], "asked")
            answers += self._rows(f"read {rows} keys", *self._select_query(what, nulls, asked), fetch=_cells)
        found = found_table(columns, self.form, arrays, answers)
        if found is not None:  # else the read of rows names the row
            found.place = keys, arrays
        return found

    def pages(self) -> Iterator[Sequence[Any]]:
        """Iterate over the keys page by page, those with nulls in the same fields together."""
        are_null = ", ".join(f"{column.quoted_name} IS NULL" for column in self._columns.keys)
        query = self._names.sql("SELECT DISTINCT {are_null} FROM {table}", are_null=are_null)
        for nulls in self._rows("list the keys", query, {}):
            last: Key | None = None
            while page := self._page(nulls, last):
                yield page
                last = page[-1]
                if all(nulls):
                    break

    def read_sentinel(self, key: bytes) -> bytes | None:
        """Return the sentinel, if its witness is in the table."""
        known, self._dead, self._witness = self._witness, None, None
        row = self._sentinel_row(key, known) or self._sentinel_row(key, None)
        if row is None:
            return None
        layout, sentinel, witness, is_there = row
        if layout != LAYOUT:
            raise StateError(f"{self._what} has layout {layout}, and this version knows {LAYOUT}; install a newer one")
        if is_there is None or witness != known:
            test, given = self._is_there(witness)
            is_there = bool(self._rows("look for the last commit", test, given))  # nothing is there without a table
        if not is_there:
            self._dead = sentinel
            return None
        self._witness = witness
        return bytes(sentinel)

    def last_txid(self) -> int:
        """Return the last batch of which the table has rows; 0 without any, and where rows do not say it."""
        if self._columns.kind is StateType.NON_TRANSACTIONAL:
            return 0
        ((last,),) = self._rows("look for rows", self._names.sql(f'SELECT max("{TXID}") FROM {{table}}'), {}) or [(0,)]
        return last or 0

    def write(self, puts: Puts, sentinel: bytes = b"", found: bytes | None = None, new: bytes = b"") -> bool:
        """Write all or nothing; return False if the sentinel is not `found`, or its witness is gone."""
        witness = self._next_witness(puts)
        doing, write = f"write {len(puts)} keys", self._fenced_write(puts, sentinel, found, new, witness)

        def send(connection: PostgresConnection) -> bool:
            self._table.prepare(connection)
            return write.send(connection)

        try:
            is_written = self._session.run(doing, send)
        except errors.UndefinedTable:
            if found is not None:
                return False
            self._session.run("make the table", self._table.create)
            is_written = self._session.run(doing, send)
        if is_written and sentinel:
            self._witness, self._keeps_witness = witness, True
        return is_written

    def write_later(self, puts: Puts, sentinel: bytes, found: bytes | None, new: bytes) -> InTransaction:
        if found is None:
            self._session.run("make the table", self._table.create)
        witness = self._next_witness(puts)
        write = self._fenced_write(puts, sentinel, found, new, witness)
        self._witness, self._keeps_witness = witness, True  # if it is not written, the next commit reads what is there
        return self._session.leave(f"write {len(puts)} keys", write)

    def _fenced_write(
        self, puts: Puts, sentinel: bytes, found: bytes | None, new: bytes, witness: bytes | None
    ) -> FencedWrite:
        fence, given = self._fence(sentinel, found, new, witness) if sentinel else (_FREE, {})
        clauses = [
            (f"fence AS ({_FREE if at else fence}){rows}".encode(), given | arguments)
            for at, (rows, arguments) in enumerate(self._statements(puts))
        ]
        return FencedWrite(clauses)

    def _fence(self, sentinel: bytes, found: bytes | None, new: bytes, witness: bytes | None) -> Statement:
        given = {"layout": LAYOUT, "found": found, "new": new, "dead": self._dead, "witness": witness}
        given |= self._place_of(sentinel)
        if found is None:
            return self._names.sql(_FIRST), given
        test, arguments = self._is_there(self._witness)
        return self._names.sql(_NEXT, is_there=f"EXISTS ({test})"), given | arguments

    def forget_witness(self) -> None:
        """Write no witness until rows come: the keys may be another partition's from now on, which may delete them."""
        self._keeps_witness = False

    def empty(self) -> None:
        self._witness = self._dead = None
        for statement in self.emptied:
            with suppress(errors.UndefinedTable):
                run = partial(self._execute, self._names.sql(statement), {"state": self._names.bare})
                self._session.run("empty the table", run)
        if self.changes is not None:
            self.changes.empty()

    def sweep(self, txid: int) -> None:
        """Delete the changes that need not be kept at batch `txid`, and the rows that have expired."""
        if self.changes is not None:
            self.changes.let_go(txid)
        if self._options.ttl_s is not None:
            self._session.run("delete what has expired", self._expire)

    def _expire(self, connection: PostgresConnection) -> None:
        """Delete the rows that were not written for so long, but for the witnesses of sentinels."""
        query = "SELECT witness FROM {sentinels} WHERE state = %(state)s AND witness IS NOT NULL"
        found = self._execute(self._names.sql(query), {"state": self._names.bare}, connection).fetchall()
        kept, given = "", dict[str, Any](ttl=self._options.ttl_s)
        for at, (nulls, alike) in enumerate(
            self._columns.by_nulls([tuple(decode(witness)[1:]) for (witness,) in found])
        ):
            asked, tests, arguments = self._columns.asked_keys(nulls, alike, f"kept{at}_")
            kept += f" AND NOT EXISTS (SELECT 1 FROM {asked} WHERE {tests})"
            given |= arguments
        statement = f'DELETE FROM {{table}} AS own WHERE "{AT}" < now() - make_interval(secs => %(ttl)s){{kept}}'
        self._execute(self._names.sql(statement, kept=kept), given, connection)

    def close(self) -> None:
        self._session.close()

    def _statements(self, puts: Any) -> list[Statement]:
        """Return the statements of a commit, without their fence."""
        deleted = [] if isinstance(puts, OpaqueTable) else [key for key, value in puts.items() if value is None]
        written = {key: value for key, value in puts.items() if value is not None} if deleted else puts
        statements: list[Statement] = []
        for at, (nulls, alike) in enumerate(self._columns.by_nulls(deleted)):
            asked, tests, given = self._columns.asked_keys(nulls, alike, "gone")
            statements.append((self._names.sql(_DELETE, at=str(at), asked=asked, tests=tests), given))
        return [*statements, *self._puts(written)] or [("", {})]

    def _puts(self, rows: Mapping[Key, Any] | OpaqueTable) -> Iterator[Statement]:
        columns, most = self._columns.read, self._options
        if isinstance(rows, OpaqueTable):
            arrays = [*rows.place[1], *value_arrays(rows)]
        else:
            arrays = self._columns.arrays_of(list(rows), list(rows.values())) if rows else []
        sizes = sum(map(_sizes, arrays), np.zeros(len(rows), np.int64)).tolist()
        for places in by_size(range(len(rows)), sizes, most.max_keys_per_call, most.max_bytes_per_call) if rows else ():
            some = (array.slice(places[0], len(places)) for array in arrays)
            sent = (pack_array(column.form, array) for column, array in zip(columns, some, strict=True))
            yield self._put, {f"c{at}": part for at, part in enumerate(sent)} | {"changes_of": self.batch}

    @cached_property
    def _put(self) -> str:
        columns = self._columns.read
        places = [f"c{at}" for at in range(len(columns))]
        arrays = ", ".join(column.parameter(place) for column, place in zip(columns, places, strict=True))
        changes = ", ".join(
            f"{column.quoted_name} = excluded.{column.quoted_name}" for column in columns if not column.is_key
        )
        changes += f', "{AT}" = now()' if self._options.ttl_s is not None else ""
        keys = self._columns.keys
        order = (f"given.{key.quoted_name}" + (' COLLATE "C"' if key.form.sql == "text" else "") for key in keys)
        kept = self.changes
        return self._names.sql(
            _PUT,
            names=column_list(columns),
            arrays=arrays,
            order=", ".join(order),
            keys=column_list(keys),
            put=changes,
            returning="" if kept is None else f" RETURNING {column_list(self._columns.all, 'own.')}",
            changed="" if kept is None else kept.clause,
        )

    def _next_witness(self, puts: Any) -> bytes | None:
        if isinstance(puts, OpaqueTable):
            last: Any = puts.place[0][-1], puts[-1]
        else:
            last = next(((key, puts[key]) for key in reversed(puts) if puts[key] is not None), None)
        if last is not None:
            key, value = last
            has_txid = self._columns.kind is not StateType.NON_TRANSACTIONAL
            return encode([value[0] if has_txid else None, *key])
        if self._witness is None or not self._keeps_witness or tuple(decode(self._witness)[1:]) in puts:
            return None
        return self._witness

    def _is_there(self, witness: bytes | None) -> tuple[str, dict[str, Any]]:
        """Return the query for a witness that is in the table, and its arguments."""
        if witness is None:  # of a start's claim: of the table it is only known that it was made before
            return "SELECT 1 WHERE to_regclass(%(table)s) IS NOT NULL", {"table": self._names.table}
        if self._test is None or self._test[0] != witness:
            txid, *key = decode(witness)
            ((nulls, alike),) = self._columns.by_nulls([tuple(key)])
            asked, tests, given = self._columns.asked_keys(nulls, alike, "witness")
            since = "" if txid is None else f' AND own."{TXID}" >= %(since)s'
            query = "SELECT 1 FROM {table} AS own, {asked} WHERE {tests}"
            self._test = witness, self._names.sql(query, asked=asked, tests=tests + since), {**given, "since": txid}
        return self._test[1:]

    def _sentinel_row(self, key: bytes, witness: bytes | None) -> Any:
        test, given = ("NULL", {}) if witness is None else self._is_there(witness)
        query = self._names.sql(_READ_SENTINEL, is_there=test if witness is None else f"EXISTS ({test})")
        rows = self._rows("read the sentinel", query, {**self._place_of(key), **given}, over_table=False)
        return rows[0] if rows else None

    def _select_query(self, what: str, nulls: Sequence[bool], asked: tuple[str, str, dict[str, Packed]]) -> Statement:
        """Return the query of `what` of the rows that are asked for, as `Columns.asked_keys` says."""
        table, tests, given = asked
        if nulls == (False,):  # faster than a join
            (key,) = self._columns.keys
            table, tests = "", f"{key.quoted_name} = ANY({key.parameter('asked0')})"
        query = "SELECT {what} FROM {asked}{table} AS own WHERE {tests}"
        return self._names.sql(query, what=what, asked=table and f"{table}, ", tests=tests), given

    def _page(self, nulls: Sequence[bool], last: Key | None, *more: str) -> list[Key]:
        keys = self._columns.keys
        tests = [
            f"{key.quoted_name} IS {'' if is_null else 'NOT '}NULL" for key, is_null in zip(keys, nulls, strict=True)
        ]
        tests += more
        there = [key for key, is_null in zip(keys, nulls, strict=True) if not is_null]
        given: dict[str, Any] = {"most": self._options.max_keys_per_call}
        if last is not None:
            given |= self._columns.asked_keys(nulls, [last], "last")[2]
            after = ", ".join(f"(SELECT * FROM unnest({key.parameter(f'last{at}')}))" for at, key in enumerate(there))
            tests.append(f"({column_list(there)}) > ({after})")
        order = f" ORDER BY {column_list(there)}" if there else ""
        query = "SELECT {keys} FROM {table} WHERE {tests} LIMIT %(most)s"
        query = self._names.sql(query, keys=column_list(keys), tests=" AND ".join(tests) + order)
        rows = self._rows("list the keys", query, given)
        parts = [key.from_driver(part) for key, part in zip(keys, zip(*rows, strict=True), strict=bool(rows))]
        return list(zip(*parts, strict=True))

    def _rows(
        self,
        doing: str,
        query: str,
        given: Mapping[str, Any],
        over_table: bool = True,
        fetch: Callable[[Any], list[Any]] = Cursor.fetchall,
    ) -> list[Any]:
        def read(connection: PostgresConnection) -> list[Any]:
            with nullcontext() if over_table else suppress(errors.UndefinedTable):
                self._table.prepare(connection)
            return fetch(self._execute(query, given, connection))

        try:
            return self._session.run(doing, read)
        except errors.UndefinedTable:
            return []

    def _execute(self, query: str, given: Mapping[str, Any], connection: PostgresConnection) -> Any:
        return connection.execute(query.encode(), given, binary=True)

    def _place_of(self, sentinel: bytes) -> dict[str, Any]:
        return {"state": self._names.bare, "partition": int(sentinel.removeprefix(b"sentinel:"))}


def _cells(cursor: Any) -> list[Any]:
    """Return the only row of an answer as the bytes that came."""
    result = cursor.pgresult
    return [[result.get_value(0, at) for at in range(result.nfields)]]


def _sizes(array: Any) -> Any:
    if array.type not in ("large_string", "large_binary"):
        return 0
    return np.diff(offsets_of(array))


def _size_of(key: Key) -> int:
    return sum(map(_size, key))


def _size(part: Any) -> int:
    return len(part.encode(errors="replace") if isinstance(part, str) else part) if isinstance(part, str | bytes) else 8
