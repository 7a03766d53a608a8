"""A connection to PostgreSQL that does not wait for ever for a silent server, and what its errors mean."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors

from trident.redaction import redacted

T = TypeVar("T")

_AWAY = (
    "08",
    "25006",
    "53300",
    "57P01",
    "57P02",
    "57P03",
)  # beginnings of codes of a server that is out of reach for a while
_LATER = ("08", "25006", "40", "53", "55P03", "57")  # beginnings of codes of errors that pass
# A refusal to connect has no code. These are permanent.
_REFUSALS = re.compile(
    r"FATAL(?!.*(starting up|shutting down|recovery|too many|connection slots|terminat))|no password|certificate|"
    r"root\.crt|SSL was required|invalid "
)


class PostgresConnection(psycopg.Connection[Any]):
    """Waits at most `limit_s` for a silent server."""

    limit_s = 60.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Consume a generator of psycopg's, which is resumed with 0 every tenth of a second without an answer."""
        return super().wait(self._limit_wait(gen), *args, **options)

    def _limit_wait(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard, ready = time.monotonic(), None
        try:
            while True:
                ready = yield gen.send(ready)
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() > heard + self.limit_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.limit_s:g} s")
        except StopIteration as end:
            return cast("T", end.value)


def make(connection: psycopg.Connection[Any], statement: bytes, given: Any = ()) -> None:
    """Run a CREATE … IF NOT EXISTS outside of a transaction; another program may make the same at the same time.

    The server finds that out at one of several places, and says something else at each.
    """
    with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
        connection.execute(statement, given)


def is_away(error: psycopg.Error) -> bool:
    """Whether the server is out of reach for a while."""
    return _has_code(error, _AWAY)


def passes(error: psycopg.Error) -> bool:
    """Whether an error passes: the server is away, or cannot do at the moment what it can do at other times."""
    return _has_code(error, _LATER)


def text_of(error: psycopg.Error) -> str:
    """Return what an error says, in one line and without secrets."""
    return redacted(" ".join(str(error).split()))


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
