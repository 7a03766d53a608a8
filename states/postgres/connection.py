"""One connection to PostgreSQL: opened when needed, and again when it breaks; its errors become errors of Trident."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from states.postgres.columns import Packed
from states.postgres.options import PostgresOptions
from trident.errors import BackendError, ConfigError, StoreAwayError
from trident.redaction import redacted
from trident.servers.postgres_connection import PostgresConnection, is_away, passes, server_of, text_of
from trident.storekit import InTransaction, Retries, warn_once

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_AGAIN = ("40001", "40P01", "57P01", "57P02", "57P03", "25006")  # codes of errors that another connection may avoid
_ADVICE = {
    "22P05": "the encoding of the database has no such character: use one with ENCODING 'UTF8'",
    "25006": "the server is a standby: give the address of the primary (several hosts with "
    "?target_session_attrs=read-write find it), or wait until the failover is over",
    "3F000": "make the schema with CREATE SCHEMA, or give another one",
    "42501": "docs/states/postgres.md lists the rights that the user needs",
    **dict.fromkeys(
        ("42703", "42804", "42809", "42883", "42P10"),
        "it is not a table of this state, or was changed: restore it, or give another table",
    ),
    **dict.fromkeys(("26000", "42P05"), "PgBouncer has to pool sessions, not transactions"),
    "53300": "raise max_connections, or lower the number of partitions",
    "57014": "it took longer than timeout_s",
}


class _PackedDumper(Dumper):
    """Arrays that are ready; the statement says what their elements are."""

    format = Format.BINARY

    def dump(self, obj: Packed) -> bytes:
        return obj


psycopg.adapters.register_dumper(Packed, _PackedDumper)  # for the connections of logs too, which are opened later


Clause = tuple[bytes, Mapping[str, Any]]
"""The common table expressions of one statement, of which `fence` has a row if it is carried out; and their arguments."""


@dataclass(frozen=True)
class FencedWrite:
    """A commit as clauses: all are carried out or none is, as the fence of the first one says."""

    clauses: Sequence[Clause]

    def send(self, connection: PostgresConnection) -> bool:
        """Write; False if the fence found nothing to replace."""
        with connection.transaction() if len(self.clauses) > 1 else nullcontext():
            for clause, given in self.clauses:
                statement = b"WITH " + clause + b" SELECT count(*) FROM fence"
                if connection.execute(statement, given, binary=True).fetchone() == (0,):
                    return False  # it is the first: the row that fences is locked until the transaction ends
        return True

    def clause(self) -> Clause | None:
        return self.clauses[0] if len(self.clauses) == 1 else None


class Session:
    """Runs calls on one connection, each again if the connection breaks. Used by one thread at a time."""

    def __init__(self, options: PostgresOptions, what: str, read_only: bool) -> None:
        self._options, self._what, self._read_only = options, what, read_only
        self._server = f"PostgreSQL at {server_of(options.url)}"
        self._retries = Retries(options.retries, options.backoff_s, options.max_backoff_s)
        self._connection: PostgresConnection | None = None
        self._process = 0

    def run(self, doing: str, work: Callable[[PostgresConnection], T]) -> T:
        """Return what `work` does with the connection; it is called again after a failure that may be over."""

        def attempt() -> T:
            try:
                if self._connection is None or self._process != os.getpid():
                    self.close()
                    self._connection, self._process = self._connect(), os.getpid()
                return work(self._connection)
            except psycopg.errors.UndefinedTable:  # the caller handles this
                raise
            except psycopg.Error as error:
                if error.sqlstate in _AGAIN or (self._connection is not None and self._connection.closed):
                    self.close()
                raise self._backend_error(doing, error) from error
            except KeyboardInterrupt:
                self.close()  # the answer to what was asked may still come, and would be taken for the next one
                raise

        return self._retries.run(attempt, BackendError, self._goes_on)

    def leave(self, doing: str, write: FencedWrite) -> InTransaction:
        """Leave a write to another connection, whose transaction it is to be in."""

        def within(connection: PostgresConnection) -> bool:
            try:
                return write.send(connection)
            except psycopg.errors.UndefinedTable:
                return False
            except psycopg.Error as error:
                if connection.closed:
                    raise
                raise self._backend_error(doing, error) from error  # so the transaction will be rolled back

        return InTransaction(within, write.clause)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():  # a forked child leaves the parent's alone
            connection.close()

    def _goes_on(self, error: Exception, failures: int, _waited_s: float) -> bool:
        is_lost = self._connection is None and isinstance(error, BackendError) and error.retryable
        return is_lost and failures <= self._options.retries

    def _connect(self) -> PostgresConnection:
        options = self._options
        given: dict[str, Any] = {**options.parameters, "connect_timeout": max(2, round(options.connect_timeout_s))}
        try:
            connection = PostgresConnection.connect(
                options.url, autocommit=True, client_encoding="utf8", fallback_application_name="trident", **given
            )
        except psycopg.ProgrammingError:
            # The error quotes what it cannot read, which may be a part of the password.
            raise ConfigError(
                f"libpq cannot read url={redacted(options.url)!r} of a PostgreSQL state: quote special characters with %"
            ) from None
        connection.greet(options.timeout_s, options.timeout_s / 2, self._read_only)  # it holds a lock in a transaction
        if not self._read_only and connection.execute("SHOW fsync").fetchone() != ("on",):
            warn_once(_LOG, redacted(options.url), "fsync=off, so a crash of its machine may corrupt it")
        return connection

    def _backend_error(self, doing: str, error: psycopg.Error) -> BackendError:
        code = error.sqlstate or ""
        away, retryable = is_away(error), passes(error)
        advice = _ADVICE.get(code, "see the server's log")
        if not code:
            wrong = "check user, password and database of the URL, its TLS options and the server's pg_hba.conf"
            advice = "is the server up, and is its address right?" if retryable else wrong
        message = f"{doing} of {self._what}: {text_of(error)}; {advice}"
        return StoreAwayError(message, self._server) if away else BackendError(message, retryable)
