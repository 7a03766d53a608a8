"""A connection to PostgreSQL that does not wait for ever for a silent server, and what its errors mean."""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors

from trident.errors import ConfigError, TridentError
from trident.redaction import redacted
from trident.servers.patience import STOP_S, Patience

T = TypeVar("T")

# Beginnings of codes: of a server that is out of reach for a while, and of errors that pass, such as the end of the
# transaction of a process that was stopped within it.
_AWAY = ("08", "25006", "53300", "57P01", "57P02", "57P03")
_LATER = ("08", "25006", "25P03", "25P04", "40", "53", "55P03", "57")
# Whatever role and database have set: values and names are read as they were written, a session that may hold a lock ends soon
# if its machine is gone, and not because nothing comes for a while. A server that is too old for a setting has none.
_GREETING = """
    SELECT set_config(name, value, false) FROM (VALUES
        ('statement_timeout', %(ms)s), ('idle_in_transaction_session_timeout', %(idle_ms)s), ('idle_session_timeout', '0'),
        ('transaction_timeout', '0'),
        ('default_transaction_read_only', %(read_only)s), ('standard_conforming_strings', 'on'),
        ('quote_all_identifiers', 'off'), ('TimeZone', 'UTC'), ('jit', 'off'),
        ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'),
        ('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'))) AS t(name, value)
    WHERE current_setting(name, true) IS NOT NULL
"""
_HOLD = "SELECT pg_try_advisory_lock_shared(%s)"  # shared, because a session that was lost may not have ended yet
# A refusal to connect has no code. These are permanent.
_REFUSALS = re.compile(
    r"FATAL(?!.*(starting up|shutting down|recovery|too many|connection slots|terminat))|no password|certificate|"
    r"root\.crt|SSL was required|invalid "
)


class PostgresConnection(psycopg.Connection[Any]):
    """Waits at most `limit_s` for a silent server."""

    limit_s = 60.0

    def greet(self, answer_s: float, idle_s: float, read_only: bool = False, limit_s: float = math.inf) -> None:
        """Set up the session: a statement may take `answer_s` seconds, a pause within a transaction `idle_s`."""
        self.limit_s = min(limit_s, answer_s + 1)  # so that the server gives up first
        ms, idle_ms = (str(round(1000 * seconds)) for seconds in (answer_s, idle_s))
        self.execute(_GREETING, {"ms": ms, "idle_ms": idle_ms, "read_only": "on" if read_only else "off"})

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Consume a generator of psycopg's, which is resumed with 0 every tenth of a second without an answer."""
        try:
            return super().wait(self._limit_wait(gen), *args, **options)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # psycopg leaves a connection open whose socket only hangs up
                self.pgconn.finish()
            raise

    def _limit_wait(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard, ready = time.monotonic(), None
        try:
            while True:
                ready = yield gen.send(ready)
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() > heard + self.limit_s:
                    raise psycopg.OperationalError(f"no answer within {self.limit_s:g} s")
        except StopIteration as end:
            return cast("T", end.value)


class PostgresSession:
    """One connection, which is opened again when it breaks. Threads may share it; a forked child may not.

    `url`, `place`: where, as libpq reads it, and as messages have it, which call it `setting`.
    `error`, `own_errors`: what a refusal raises; what may be raised while it is used without harm to the connection.
    """

    def __init__(
        self, url: str, place: object, setting: str, patience: Patience, error: type[TridentError],
        own_errors: tuple[type[Exception], ...], answer_s: float,
    ) -> None:  # fmt: skip
        self._url, self._place, self._setting, self._patience, self._error = url, place, setting, patience, error
        self._own_errors, self._answer_s = own_errors, answer_s
        self._limit_s = math.inf
        self._lock = threading.RLock()
        self._connection: PostgresConnection | None = None
        self._process = 0
        self._key: int | None = None

    def ask(self, query: str, given: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """Return the rows of an answer; none if the tables are not there."""
        return self.run(lambda connection: list(connection.execute(query, given))) or []

    def run(self, work: Callable[[PostgresConnection], T]) -> T | None:
        """Return what `work` does with the connection, again if it breaks; None if the tables are not there."""
        return self._patience.run(
            lambda: self.try_once(work),
            lambda error: text_of(error) if isinstance(error, psycopg.Error) and passes(error) else None,
        )

    def try_once(self, work: Callable[[PostgresConnection], T]) -> T | None:
        """Return what `work` does with the connection, without patience."""
        with self._lock:
            try:
                return work(self.connection())
            except self._own_errors:
                raise
            except errors.UndefinedTable:
                return None
            except psycopg.Error as error:
                self.close()
                if passes(error):
                    raise
                raise self._error(
                    f"PostgreSQL refuses {self._place}: {text_of(error)}. Check user, password and database, the server's "
                    "pg_hba.conf, whether the user may create tables in the first schema of its search_path, and that a "
                    "PgBouncer pools sessions, not transactions"
                ) from error
            except BaseException:
                self.close()  # the answer to what was asked may still come, and would be taken for the next one
                raise

    def hold(self, key: int) -> None:
        """Hold an advisory lock as long as there is a connection, this one or a later one."""
        self._key = key
        self.ask(_HOLD, (key,))

    def wait_longer(self, answer_s: float) -> None:
        """From now on give statements at least so long; in the same session, which may hold the lock."""
        self._answer_s = max(self._answer_s, answer_s)
        self.run(self._greet)

    def stop(self) -> None:
        """From now on wait for some seconds at most."""
        self._limit_s = STOP_S
        if (connection := self._connection) is not None:
            connection.limit_s = STOP_S

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._process == os.getpid():
                connection.close()

    def abandon(self) -> None:
        """Leave the connection to the process that this one was forked from."""
        connection, self._connection = self._connection, None
        if connection is not None and self._process != os.getpid() and not connection.closed:
            # Open here as well, it would outlive its process, and the lock with it; closing it would say goodbye for both.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, connection.pgconn.socket)
            os.close(nothing)

    def connection(self) -> PostgresConnection:
        if self._connection is None or self._process != os.getpid():
            self._connection, self._process = self._connect(), os.getpid()
        return self._connection

    def _connect(self) -> PostgresConnection:
        try:
            connection = PostgresConnection.connect(
                self._url,
                autocommit=True,
                connect_timeout=5,
                client_encoding="utf8",
                fallback_application_name="trident",
            )
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"{self._setting}={str(self._place)!r}: libpq cannot read it: {error}") from None
        self._greet(connection)
        if self._key is not None:
            connection.execute(_HOLD, (self._key,))
        return connection

    def _greet(self, connection: PostgresConnection) -> None:
        connection.greet(self._answer_s, self._answer_s, limit_s=self._limit_s)


def make(connection: psycopg.Connection[Any], statement: bytes, given: Any = ()) -> None:
    """Run a CREATE … IF NOT EXISTS outside of a transaction; another program may make the same at the same time."""
    # The server finds that out at one of several places, and says something else at each.
    with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
        connection.execute(statement, given)


def make_tables(connection: psycopg.Connection[Any], last: str, statements: Sequence[bytes]) -> None:
    """Make tables, of which `last` is the last one, unless it is there: by this user, or by one who may."""
    if connection.execute("SELECT to_regclass(%s)", (last,)).fetchone() == (None,):
        for statement in statements:
            make(connection, statement)


def is_away(error: psycopg.Error) -> bool:
    """Whether the server is out of reach for a while."""
    return _has_code(error, _AWAY)


def passes(error: psycopg.Error) -> bool:
    """Whether an error passes: the server is away, or cannot do at the moment what it can do at other times."""
    return _has_code(error, _LATER)


def text_of(error: psycopg.Error) -> str:
    """Return what an error says, in one line, without secrets and what libpq asks."""
    return redacted(" ".join(str(error).split()).partition(" Is the server running ")[0])


def server_of(url: str) -> str:
    """Return host, port and database of a URL, as far as it gives them: `db:5432/shop`."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return redacted(url)
    hosts, ports = str(given.get("host") or "localhost").split(","), str(given.get("port") or "5432").split(",")
    places = [f"{host}:{ports[min(at, len(ports) - 1)]}" for at, host in enumerate(hosts)]
    return ",".join(places) + f"/{given.get('dbname', '')}".rstrip("/")


def _has_code(error: psycopg.Error, codes: tuple[str, ...]) -> bool:
    if error.sqlstate:
        return error.sqlstate.startswith(codes)
    return isinstance(error, psycopg.OperationalError) and not _REFUSALS.search(text_of(error))
