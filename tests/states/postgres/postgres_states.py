"""What the tests of the PostgreSQL state share: states of a server, and SQL beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg

from states.postgres import PostgresOptions, PostgresState
from states.postgres.connection import Session
from tests.harness.servers import Server
from trident.state import StateConf

numbers = count(1)


class Home:
    """A server, the states that a test opens there, and a connection of another program."""

    def __init__(self, server: Server, **declared: Any) -> None:
        self.server, self.port, self._declared = server, server.port, declared
        self._opened: list[Any] = []
        self._beside: psycopg.Connection[Any] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://trident@127.0.0.1:{self.port}/postgres"

    def conf(self, **fields: Any) -> StateConf:
        """Return the configuration of a state that no other test uses."""
        return StateConf(f"words{next(numbers)}", "count", **{**self._declared, **fields})

    def state(self, conf: StateConf, partition: int = 0, **options: Any) -> Any:
        return self._kept(PostgresState.opaque(self._options(options)).factory.make_state(conf, partition, 2))

    def session(self, conf: StateConf, **options: Any) -> Session:
        session: Session = self._kept(Session(self._options(options), "a state", conf.read_only))
        return session

    def sql(self, statement: str) -> list[Any]:
        """Run a statement as another program does; return its rows."""
        if self._beside is None or self._beside.closed:
            self._beside = psycopg.connect(self.url, autocommit=True)
        cursor = self._beside.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Hold a lock on the rows of a table, so that whoever writes them waits."""
        with psycopg.connect(self.url) as connection:
            connection.execute(f'SELECT * FROM "{table}" FOR UPDATE'.encode())
            yield

    def wait_for_waiter(self) -> None:
        """Return once a statement of another connection waits for a lock."""
        while not self.sql("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass

    def wait_for_rest(self) -> None:
        """Return once no other connection is in the middle of anything, that of a killed process included."""
        busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'trident' AND state <> 'idle'"
        while self.sql(f"{busy} AND pid <> pg_backend_pid()"):
            pass

    def close(self) -> None:
        for each in self._opened:
            each.close()
        if self._beside is not None:
            self._beside.close()

    def _options(self, given: dict[str, Any]) -> PostgresOptions:
        return PostgresOptions(**{"url": self.url, "backoff_s": 0.01, **given})

    def _kept(self, opened: Any) -> Any:
        self._opened.append(opened)
        return opened
