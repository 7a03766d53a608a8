"""One connection to PostgreSQL: opened when it is needed, opened again when it broke; its errors as errors of Trident."""

from __future__ import annotations

import logging
import os
import re
import struct
import time
from collections.abc import Callable, Generator
from itertools import chain
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from states.postgres.options import PostgresOptions
from trident.errors import BackendError, ConfigError
from trident.redaction import redacted

__all__ = ["Connection", "Session"]

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_AGAIN = frozenset({"40001", "40P01", "57P01", "57P02", "57P03", "25006"})
"""Of an open connection: the same call may succeed a moment later."""
_LATER = ("08", "25006", "40", "53", "55P03", "57")
"""How the codes start of what passes: the batch is replayed."""
_LENGTH = struct.Struct("!i")
# A refusal to connect has no code.
_PASSES = "starting up|shutting down|recovery|too many|connection slots|terminat"
_PERMANENT = re.compile(rf"FATAL(?!.*({_PASSES}))|no password|certificate|SSL was required|invalid ", re.DOTALL)
_FOREIGN = "the table is none of a state: give the state another table"
_ADVICE = {
    "25006": "the server is a standby: give the address of the primary (several hosts with "
    "?target_session_attrs=read-write find it), or wait until the failover is over",
    "3F000": "make the schema with CREATE SCHEMA, or give another one",
    "42501": "docs/states/postgres.md lists the rights that the user needs",
    "42703": _FOREIGN,
    "42804": _FOREIGN,
    "42809": _FOREIGN,
    "42883": _FOREIGN,
    "42P10": _FOREIGN,
    "53100": "the server's disk is full",
    "53300": "raise max_connections, or lower the number of partitions",
    "57014": "it took longer than timeout_s",
}
# A writer that sleeps in a transaction holds a lock; compiling a statement (jit) takes longer than running it.
_GREETING = """
    SELECT set_config('statement_timeout', %(ms)s, false),
        set_config('idle_in_transaction_session_timeout', %(idle_ms)s, false),
        set_config('jit', 'off', false),
        set_config('default_transaction_read_only', %(read_only)s, false),
        set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false),
        current_setting('fsync')
"""


class _BytesDumper(Dumper):
    """Lists of bytes as arrays, all at once; psycopg's own dumper takes half of a commit's processor time."""

    format = Format.BINARY
    oid = 1001  # bytea[]

    def dump(self, obj: list[bytes]) -> bytes:
        """Return one dimension from index 1, without nulls, of elements with their lengths."""
        head = struct.pack("!5i", 1, 0, 17, len(obj), 1)
        return head + b"".join(chain.from_iterable(zip(map(_LENGTH.pack, map(len, obj)), obj, strict=True)))


class Connection(psycopg.Connection[Any]):
    """Waits no longer than `limit_s` for a server that is silent."""

    limit_s = 60.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Consume a generator of psycopg's, which is resumed with 0 every tenth of a second without an answer."""
        return super().wait(self._limited(gen), *args, **options)

    def _limited(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard = time.monotonic()
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() > heard + self.limit_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.limit_s:g} s")
                waits_for = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


class Session:
    """Runs calls on one connection, each again if the connection breaks. Used by one thread at a time.

    Parameters
    ----------
    options
        See `PostgresOptions`.
    what
        The state and partition, for messages.
    read_only
        Refuse writes in the server too.
    """

    def __init__(self, options: PostgresOptions, what: str, read_only: bool) -> None:
        self._options, self._read_only = options, read_only
        self._where = f"{what} in PostgreSQL at {redacted(options.url)}"
        self._connection: Connection | None = None
        self._process = 0

    def run(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Return what `work` does with the connection; it is called again after a failure that may be over.

        Raises
        ------
        BackendError
            The server refused, or did not answer. A write may have been made.
        """
        pause = self._options.backoff_s
        for left in range(self._options.retries, -1, -1):
            try:
                return work(self._opened())
            except psycopg.Error as error:
                problem = self._refused(doing, error)
                again = problem.retryable and (self._is_lost() or error.sqlstate in _AGAIN)
                if again:
                    self.close()  # else it leads to a server that ends, or to a standby
                if not (again and left):
                    raise problem from error
            time.sleep(pause)
            pause = min(2 * pause, self._options.max_backoff_s)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():  # a parent's is the parent's
            connection.close()

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed or self._process != os.getpid():
            self.close()
            self._connection, self._process = self._connect(), os.getpid()
        return self._connection

    def _connect(self) -> Connection:
        options = self._options
        given: dict[str, Any] = {"user": options.username, "password": options.password}
        try:
            connection = Connection.connect(
                options.url,
                autocommit=True,
                connect_timeout=max(2, round(options.connect_timeout_s)),
                client_encoding="utf8",
                fallback_application_name="trident",
                **{name: value for name, value in given.items() if value is not None},
            )
        except psycopg.ProgrammingError:
            # The error quotes what it cannot read, which may be a part of the password.
            raise ConfigError(
                f"the URL {redacted(options.url)} of a PostgreSQL state cannot be read: quote special characters with %, "
                "and see the options of libpq for its query"
            ) from None
        connection.adapters.register_dumper(list, _BytesDumper)
        connection.limit_s = options.timeout_s + 1  # the server is to be the first that gives up
        self._greet(connection)
        return connection

    def _greet(self, connection: Connection) -> None:
        ms, read_only = round(self._options.timeout_s * 1000), "on" if self._read_only else "off"
        told = {"ms": str(ms), "idle_ms": str(ms // 2), "read_only": read_only}
        (row,) = connection.execute(_GREETING, told)
        if row[-1] != "on" and not self._read_only:
            _LOG.warning("%s: fsync=off, so a crash of its machine may lose or corrupt all of it", self._where)

    def _refused(self, doing: str, error: psycopg.Error) -> BackendError:
        text, code = redacted(" ".join(str(error).split())), error.sqlstate
        if code is None:
            retryable = isinstance(error, psycopg.OperationalError) and not _PERMANENT.search(text)
            advice = (
                "is the server up, and is its address right?"
                if retryable
                else "check user, password and database of the URL, its TLS options and the server's pg_hba.conf"
            )
        else:
            retryable = code.startswith(_LATER)
            advice = _ADVICE.get(code, "the batch may be replayed" if retryable else "see the server's log")
        return BackendError(f"{doing} of {self._where}: {text}; {advice}", retryable)
