"""Keeps the log of a topology in PostgreSQL (`record_store.py`): a row for its head, and a row for each chunk.

An append is one statement, in one transaction with the writes of states in the same database. The writer's session holds an
advisory lock, which tells others that it runs; only the refusal of a second driver without `takeover` depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trident.errors import LogError, TridentError
from trident.extras import needs_package
from trident.log.log_state import CommittedUpTo
from trident.log.record_store import HEAD, Chunks, Head, LaterWrites, NotWrittenError, RecordStore
from trident.nodes.interface import StoredNode
from trident.servers.log_addresses import PostgresAddress
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

if TYPE_CHECKING:
    from trident.servers.postgres_connection import PostgresConnection

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
_CREATE = (  # trident_log_chunks last: where it is, both are
    b"CREATE TABLE IF NOT EXISTS trident_log_heads (topology text PRIMARY KEY, id text NOT NULL, turn bigint NOT NULL, "
    b"head bytea NOT NULL, txid bigint NOT NULL DEFAULT 0, "
    b"winner_txids bigint[] NOT NULL DEFAULT '{}', winner_attempts bigint[] NOT NULL DEFAULT '{}', "
    b"adopted_states text[] NOT NULL DEFAULT '{}', adopted_txids bigint[] NOT NULL DEFAULT '{}')",
    b'CREATE TABLE IF NOT EXISTS trident_log_chunks (topology text, name text COLLATE "C", data bytea NOT NULL, '
    b"PRIMARY KEY (topology, name))",
)
_LOOK = "SELECT head FROM trident_log_heads WHERE topology = %(topology)s"
_READ = "SELECT name, data FROM trident_log_chunks WHERE topology = %(topology)s AND name = ANY(%(names)s)"
_ELSEWHERE = """
    SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace AS own ON own.oid = relnamespace
    WHERE relname = 'trident_log_heads' AND pg_class.oid <> 'trident_log_heads'::regclass
        AND has_schema_privilege(own.oid, 'USAGE') AND has_table_privilege(pg_class.oid, 'SELECT')
"""
_HELD = """
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = %(key)s
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# A claim whose answer was lost is the same one again.
_FIRST_CLAIM = """
    INSERT INTO trident_log_heads AS own (topology, id, turn, head) VALUES (%(topology)s, %(id)s, %(turn)s, %(head)s)
    ON CONFLICT (topology) DO UPDATE SET turn = EXCLUDED.turn WHERE own.id = EXCLUDED.id RETURNING 1
"""
_CLAIM = """
    UPDATE trident_log_heads SET id = %(id)s, turn = %(turn)s, head = %(head)s
    WHERE topology = %(topology)s AND (id, turn) IN ((%(old_id)s, %(old_turn)s), (%(id)s, %(turn)s)) RETURNING 1
"""
_WITH_ALL = """
    WITH head AS (
        UPDATE trident_log_heads SET turn = %(turn)s, head = %(head)s, txid = %(txid)s,
            winner_txids = %(winner_txids)s::bigint[], winner_attempts = %(winner_attempts)s::bigint[],
            adopted_states = %(adopted_states)s::text[], adopted_txids = %(adopted_txids)s::bigint[]
        WHERE topology = %(topology)s AND id = %(id)s AND turn = %(old_turn)s
        RETURNING 1
    ), chunks AS (
        INSERT INTO trident_log_chunks SELECT %(topology)s, name, data
        FROM head, unnest(%(names)s::text[], %(data)s::bytea[]) AS new(name, data) ON CONFLICT DO NOTHING
    )
"""
_WRITE = _WITH_ALL + " SELECT 1 FROM head"
_IS_DONE = "SELECT 1 FROM trident_log_heads WHERE topology = %(topology)s AND id = %(id)s AND turn = %(turn)s"
# An error, so that nothing is written. It is no constant, which would be computed in any case.
_UNLESS_REFUSED = """
    SELECT CASE WHEN (SELECT count(*) FROM head) > 0 AND (SELECT count(*) FROM fence) > 0 THEN 1
        ELSE ('nothing was written: another claim or sentinel is there' || (SELECT count(*) FROM head))::int END
"""
_NAMES = "SELECT name FROM trident_log_chunks WHERE topology = %(topology)s ORDER BY name LIMIT %(most)s"
_REMOVE = "DELETE FROM trident_log_chunks WHERE topology = %(topology)s AND name = ANY(%(names)s) RETURNING 1"


class PostgresRecords(RecordStore):
    """The log at an address, on one connection that is opened again when it breaks."""

    head_bytes = 4 << 10

    def __init__(self, address: PostgresAddress) -> None:
        with needs_package("a log in PostgreSQL", "postgres", "psycopg"):
            import psycopg

            from trident.servers import postgres_connection
        self._psycopg, self._make_tables = psycopg, postgres_connection.make_tables
        self.patience, self._address, self.place = Patience("PostgreSQL", address), address, str(address)
        self._session = postgres_connection.PostgresSession(
            address.url, address, "log_dir", self.patience, LogError, (NotWrittenError,), _ANSWER_S
        )

    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        if list(names) == [HEAD]:
            return [StoredNode(data, "") for (data,) in self._ask(_LOOK)] or [None]
        found = dict(self._ask(_READ, {"names": list(names)})) if names else {}
        return [StoredNode(found[name], "") if name in found else None for name in names]

    def claim(self, head: Head, before: Head) -> str | None:
        self._session.run(lambda connection: self._make_tables(connection, "trident_log_chunks", _CREATE))
        if not before.id:
            self._warn_of_others()
        self._session.hold(_key(head.id))  # before the claim, which is never found without
        if self._ask("SHOW fsync") == [("off",)]:
            logger.warning(
                "PostgreSQL at %s has fsync=off: a crash of its machine may lose or damage the log", self._address
            )
        given = {"id": head.id, "turn": head.turn, "head": head.data, "old_id": before.id, "old_turn": before.turn}
        return "" if self._ask(_CLAIM if before.id else _FIRST_CLAIM, given) else None

    def replace(self, head: Head, chunks: Chunks, committed: CommittedUpTo, beside: LaterWrites = ()) -> str | None:
        ranges, adopted = committed.winners.ranges, committed.adopted
        given: dict[str, Any] = {
            "id": head.id, "turn": head.turn, "old_turn": head.turn - 1, "head": head.data,
            "names": _array(chunks), "data": list(chunks.values()) or "{}", "txid": committed.txid,
            "winner_txids": _array(first for first, _ in ranges), "winner_attempts": _array(won for _, won in ranges),
            "adopted_states": list(adopted) or "{}", "adopted_txids": _array(adopted.values()),
        }  # fmt: skip
        if not beside:
            return "" if self._ask(_WRITE, given) or self._ask(_IS_DONE, given) else None
        given["topology"] = self._address.name
        if not self._session.run(
            lambda on: self._write_at_once(given, beside, on) or self._write_all(given, beside, on)
        ):
            return None
        for one in beside:
            one.written()
        return ""

    def names(self, most: int | None = None) -> list[str]:
        return [name for (name,) in self._ask(_NAMES, {"most": most})]

    def remove(self, names: Sequence[str]) -> None:
        self._ask(_REMOVE, {"names": list(names)})

    def is_held(self, head: Head, wait: bool) -> bool:
        return bool(self._ask(_HELD, {"key": _key(head.id)}))

    def carry(self, timeout_s: float) -> None:
        self._session.wait_longer(timeout_s)

    def stop(self) -> None:
        self.patience.stop()
        self._session.stop()

    def close(self) -> None:
        self._session.close()

    def abandon(self) -> None:
        self._session.abandon()

    def _warn_of_others(self) -> None:
        """Warn of logs of this topology in other schemas: with another search_path it begins with nothing."""
        there: list[str] = []
        for (schema,) in self._ask(_ELSEWHERE):
            with suppress(LogError):  # another program's table
                there += [schema] if self._ask(_LOOK.replace("FROM ", f"FROM {schema.replace('%', '%%')}.")) else []
        if there:
            logger.warning(
                "topology %s begins a new log at %s, and schema %s of that database has one of it: if it is to go on with "
                "that, end it, and set the search_path back, for example with options=-csearch_path%%3D%s in the address",
                self._address.name, self._address, ", ".join(there), there[0],
            )  # fmt: skip

    def _write_at_once(self, given: Mapping[str, Any], beside: LaterWrites, connection: PostgresConnection) -> bool:
        """Write a record and what is beside it as one statement, if there is one; False: nothing was written."""
        clause = beside[0].clause() if len(beside) == 1 else None
        if clause is None:
            return False
        statement, arguments = clause
        try:
            connection.execute(f"{_WITH_ALL}, {statement.decode()} {_UNLESS_REFUSED}", {**given, **arguments})
        except self._psycopg.Error:
            if connection.closed:
                raise
            return False
        return True

    def _write_all(self, given: Mapping[str, Any], beside: LaterWrites, connection: PostgresConnection) -> bool:
        """Write records and what is beside them in one transaction, if no earlier try has done so."""
        # That one may not even have ended: the row of the head, which is taken first, is locked until it has.
        refused: LaterWrite | None = None
        with connection.transaction():
            is_new = connection.execute(_WRITE, given).fetchone() is not None
            if is_new:
                try:  # one after the other, up to the first whose store has another sentinel
                    refused = next((one for one in beside if not one.write(connection)), None)
                except TridentError as error:
                    raise NotWrittenError(error) from error
            if refused is not None:
                raise self._psycopg.Rollback
        if refused is not None:
            raise NotWrittenError(refused.refused())
        return is_new or connection.execute(_IS_DONE, given).fetchone() is not None

    def _ask(self, query: str, given: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the rows of an answer; none if the tables are not there."""
        try:
            return self._session.ask(query, {"topology": self._address.name, **(given or {})})
        except LogError as error:
            if not isinstance(error.__cause__, self._psycopg.errors.UndefinedColumn):
                raise
            raise LogError(
                f"the table trident_log_heads at {self._address} is of another format version; use the version that made it, "
                "or another schema"
            ) from error


def _array(values: Iterable[object]) -> str:
    """Return an array as text; psycopg would take as long for a list as for all the rest of a statement."""
    return "{" + ",".join(map(str, values)) + "}"


def _key(id: str) -> int:
    return int.from_bytes(bytes.fromhex(id), signed=True)
