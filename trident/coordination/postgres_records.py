"""Keeps the log of a topology in PostgreSQL: a row for its head, and a row for each record.

::

    trident_log_heads   topology, the claim (epoch, id, about), the position (segment_epoch, segment, count), and what is
                        committed, for SQL (txid, the winners and adopted batches, each as two arrays)
    trident_log         topology, epoch, segment, number, record

An append is one statement: it moves the position in the head, if the claim and the position are those that the writer
knows, and inserts the records only then. It does nothing new where it was carried out before, so it is sent again when its
answer was lost. Where states are in the same database, a record and their writes are one transaction.

The writer's session holds an advisory lock as long as it is open, which tells others that the writer runs. Nothing depends
on it but the refusal to start a second driver without `takeover`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from trident.coordination.lock import SegmentName
from trident.coordination.log_state import CommittedUpTo
from trident.coordination.record_store import Head, LogEnd, NotWrittenError, RecordStore
from trident.errors import CorruptLogError, LogError, TridentError
from trident.extras import needs_package
from trident.servers.log_addresses import PostgresAddress
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

if TYPE_CHECKING:
    from trident.servers.postgres_connection import PostgresConnection

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
_CREATE = (  # trident_log last: where it is, both are
    b"CREATE TABLE IF NOT EXISTS trident_log_heads (topology text PRIMARY KEY, epoch bigint NOT NULL, id text NOT NULL, "
    b"about text NOT NULL, segment_epoch bigint NOT NULL, segment bigint NOT NULL, count bigint NOT NULL, "
    b"txid bigint NOT NULL DEFAULT 0, "
    b"winner_txids bigint[] NOT NULL DEFAULT '{}', winner_attempts bigint[] NOT NULL DEFAULT '{}', "
    b"adopted_states text[] NOT NULL DEFAULT '{}', adopted_txids bigint[] NOT NULL DEFAULT '{}')",
    b"CREATE TABLE IF NOT EXISTS trident_log (topology text, epoch bigint, segment bigint, number bigint, "
    b"record bytea NOT NULL, PRIMARY KEY (topology, epoch, segment, number))",
)
_LOOK = "SELECT epoch, id, about, segment_epoch, segment, count FROM trident_log_heads WHERE topology = %(topology)s"
_HAS = "SELECT 1 FROM trident_log_heads WHERE topology = %(topology)s AND id = %(id)s"
_HELD = """
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = %(key)s
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_CLAIM = """
    INSERT INTO trident_log_heads AS head VALUES (%(topology)s, %(epoch)s, %(id)s, %(about)s, 0, 0, 0)
    ON CONFLICT (topology) DO UPDATE SET epoch = EXCLUDED.epoch, id = EXCLUDED.id, about = EXCLUDED.about
        WHERE head.id IN (%(before)s, EXCLUDED.id)
    RETURNING segment_epoch, segment, count
"""
_WITH_ALL = """
    WITH head AS (
        UPDATE trident_log_heads SET segment_epoch = %(epoch)s, segment = %(segment)s, count = %(count)s, txid = %(txid)s,
            winner_txids = %(winner_txids)s::bigint[], winner_attempts = %(winner_attempts)s::bigint[],
            adopted_states = %(adopted_states)s::text[], adopted_txids = %(adopted_txids)s::bigint[]
        WHERE topology = %(topology)s AND id = %(id)s AND (segment_epoch, segment, count) IN (
            (%(epoch)s, %(segment)s, %(count)s), (%(old_epoch)s, %(old_segment)s, %(old_count)s))
        RETURNING 1
    ), records AS (
        INSERT INTO trident_log SELECT %(topology)s, %(epoch)s, %(segment)s, %(first)s + place - 1, record
        FROM head, unnest(%(payloads)s::bytea[]) WITH ORDINALITY AS new(record, place)
        ON CONFLICT DO NOTHING RETURNING 1
    )
"""
_TOLD = " SELECT (SELECT count(*) FROM head), (SELECT count(*) FROM records)"
_WRITE = _WITH_ALL + _TOLD
# An error, so that nothing is written. It is no constant, which would be computed in any case.
_UNLESS_REFUSED = """
    SELECT CASE WHEN (SELECT count(*) FROM records) > 0 AND (SELECT count(*) FROM fence) > 0 THEN 1
        ELSE ('nothing was written: another claim or sentinel is there' || (SELECT count(*) FROM head))::int END
"""
_READ = """
    SELECT record FROM trident_log WHERE topology = %(topology)s AND epoch = %(epoch)s AND segment = %(segment)s
        AND number >= %(first)s AND number < %(count)s ORDER BY number
"""
_SEGMENTS = """
    SELECT epoch, segment FROM trident_log WHERE topology = %(topology)s AND (epoch, segment) < (%(epoch)s, %(segment)s)
        AND number = 0 ORDER BY epoch, segment LIMIT %(most)s
"""
_READ_OLD = """
    SELECT number, record FROM trident_log WHERE topology = %(topology)s AND epoch = %(epoch)s AND segment = %(segment)s
        ORDER BY number LIMIT %(most)s
"""
_SWEEP = (
    "DELETE FROM trident_log WHERE topology = %(topology)s AND (epoch, segment) < (%(epoch)s, %(segment)s) RETURNING 1"
)


class PostgresRecords(RecordStore):
    """The log at an address, on one connection that is opened again when it breaks."""

    def __init__(self, address: PostgresAddress) -> None:
        with needs_package("a log in PostgreSQL", "postgres", "psycopg"):
            import psycopg

            from trident.servers import postgres_connection
        self._psycopg, self._make_tables = psycopg, postgres_connection.make_tables
        self.patience, self._address = Patience("PostgreSQL", address), address
        self._session = postgres_connection.PostgresSession(
            address.url, address, "log_dir", self.patience, LogError, (NotWrittenError,), _ANSWER_S
        )

    def look(self) -> Head | None:
        for epoch, claim_id, about, *segment, length in self._ask(_LOOK):
            return Head(epoch, claim_id, about, LogEnd(SegmentName(*segment), length))
        return None

    def claim(self, before: Head | None, epoch: int, id: str, about: str) -> Head | None:
        if before is None:
            self._session.run(lambda connection: self._make_tables(connection, "trident_log", _CREATE))
        self._session.hold(_key(id))  # before the claim, which is never found without
        given = {"epoch": epoch, "id": id, "about": about, "before": "" if before is None else before.id}
        if self._ask("SHOW fsync") == [("off",)]:
            logger.warning(
                "PostgreSQL at %s has fsync=off: a crash of its machine may lose or damage the log", self._address
            )
        for *segment, length in self._ask(_CLAIM, given):
            return Head(epoch, id, about, LogEnd(SegmentName(*segment), length))
        return None

    def has(self, claim: Head) -> bool:
        return bool(self._ask(_HAS, {"id": claim.id}))

    def is_held(self, claim: Head, wait: bool = False) -> bool:
        return bool(self._ask(_HELD, {"key": _key(claim.id)}))

    def write(
        self, claim: Head, before: LogEnd, after: LogEnd, payloads: Sequence[bytes], committed: CommittedUpTo,
        beside: Sequence[LaterWrite] = (),
    ) -> bool:  # fmt: skip
        given: dict[str, Any] = {"id": claim.id, "payloads": list(payloads), **_columns(committed)}
        given |= {**_segment_arguments(after.segment), "first": after.length - len(payloads), "count": after.length}
        given |= {"old_epoch": before.segment.epoch, "old_segment": before.segment.seq, "old_count": before.length}
        if not beside:
            return bool(next(iter(self._ask(_WRITE, given)), (0,))[0])
        given["topology"] = self._address.name
        tries = count()

        def write(connection: PostgresConnection) -> bool:
            is_first = next(tries) == 0
            return (is_first and self._write_at_once(given, beside, connection)) or self._write_all(
                given, beside, connection
            )

        if not self._session.run(write):
            return False
        for one in beside:
            one.written()
        return True

    def _write_at_once(
        self, given: Mapping[str, Any], beside: Sequence[LaterWrite], connection: PostgresConnection
    ) -> bool:
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

    def _write_all(
        self, given: Mapping[str, Any], beside: Sequence[LaterWrite], connection: PostgresConnection
    ) -> bool:
        """Write records and what is beside them in one transaction, if no earlier try has done so.

        That one may not even have ended: the row of the head, which is taken first, is locked until it has.
        """
        refused: LaterWrite | None = None
        with connection.transaction():
            ((is_head, is_new),) = connection.execute(_WRITE, given)
            if is_new:
                refused = _refusing(beside, connection)
            if refused is not None:
                raise self._psycopg.Rollback
        if refused is not None:
            raise NotWrittenError(refused.refused())
        return bool(is_head)

    def read(self, head: Head, first: int) -> list[bytes] | None:
        segment, length = head.position
        found = self._ask(_READ, {**_segment_arguments(segment), "first": first, "count": length})
        return [record for (record,) in found] if len(found) == length - first else None

    def segments(self, before: SegmentName, most: int | None = None) -> list[SegmentName]:
        return [SegmentName(*each) for each in self._ask(_SEGMENTS, {**_segment_arguments(before), "most": most})]

    def read_old(self, segment: SegmentName, header_only: bool) -> Iterator[bytes]:
        found = self._ask(_READ_OLD, {**_segment_arguments(segment), "most": 1 if header_only else None})
        for expected, (number, record) in enumerate(found):
            if number != expected:
                where = f"{self._address}, rows with epoch {segment.epoch} and segment {segment.seq}"
                raise CorruptLogError(where, 0, f"the one of number {expected} is missing")
            yield record

    def sweep(self, keep: SegmentName) -> None:
        self._ask(_SWEEP, _segment_arguments(keep))

    def carry(self, timeout_s: float) -> None:
        """From now on also make writes of states, each of which may take so long."""
        self._session.wait_longer(timeout_s)

    def stop(self) -> None:
        self.patience.stop()
        self._session.stop()

    def close(self) -> None:
        self._session.close()

    def abandon(self) -> None:
        self._session.abandon()

    def _ask(self, query: str, given: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the rows of an answer; none if the tables are not there."""
        return self._session.ask(query, {"topology": self._address.name, **(given or {})})


def _refusing(beside: Sequence[LaterWrite], connection: PostgresConnection) -> LaterWrite | None:
    """Make writes one after the other; return the first whose store has another sentinel."""
    try:
        return next((one for one in beside if not one.write(connection)), None)
    except TridentError as error:
        raise NotWrittenError(error) from error


def _columns(committed: CommittedUpTo) -> dict[str, Any]:
    ranges, adopted = committed.winners.ranges, committed.adopted
    return {
        "txid": committed.txid,
        "winner_txids": _array(first for first, _ in ranges),
        "winner_attempts": _array(attempt for _, attempt in ranges),
        "adopted_states": list(adopted) or "{}",
        "adopted_txids": _array(adopted.values()),
    }


def _array(numbers: Iterable[int]) -> str:
    """Return an array as text; psycopg would take as long for a list as for all the rest of a statement."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _key(id: str) -> int:
    return int.from_bytes(bytes.fromhex(id), signed=True)


def _segment_arguments(segment: SegmentName) -> dict[str, int]:
    return {"epoch": segment.epoch, "segment": segment.seq}
