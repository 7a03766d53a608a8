"""`PostgresNodes`: the nodes of a cluster as rows of a table in PostgreSQL; sessions are those of `LeasedNodes`.

A change is one transaction. It begins by counting itself in the row of the whole tree, which has an empty path: so one comes
after the other, and whoever looks for changes reads that row alone. Several clusters may share the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trident.errors import ClusterError, ClusterUnreachable
from trident.extras import needs_package
from trident.nodes.interface import Tell
from trident.nodes.polled_nodes import SESSIONS, LeasedNodes, RefusedError, SqlTable, T
from trident.roles import close_on_error
from trident.servers.local_processes import abandon_in_children
from trident.servers.log_addresses import PostgresAddress
from trident.servers.patience import Patience

if TYPE_CHECKING:
    from trident.servers.postgres_connection import PostgresConnection

_POLL_S = 0.1
_FORMAT = b"1"
_CREATE = (
    b"CREATE TABLE IF NOT EXISTS trident_nodes (path text PRIMARY KEY, parent text NOT NULL, name text NOT NULL, "
    b"data bytea NOT NULL, version bigint NOT NULL, session text)",
    b"CREATE INDEX IF NOT EXISTS trident_nodes_below ON trident_nodes (parent)",
)
_BEGIN = """
    INSERT INTO trident_nodes VALUES (%s, '', '', %s, 0), (%s, '', '', '', 0), (%s, '', '', '', 0) ON CONFLICT DO NOTHING
"""
NOT_THERE = "is not there. Correct the address (--cluster, or the variable TRIDENT_CLUSTER), or start a Nimbus with it"
_COUNT = "UPDATE trident_nodes SET version = version + 1 WHERE path = %s"


class PostgresNodes(LeasedNodes):
    """The nodes at an address; implements `Nodes`.

    `timeout_s`: how long this process may be out of touch before others end its session, and how long a request may wait.
    `makes_root`: whether they are made where there are none.
    Raises `ClusterUnreachable`: no server answered within the timeout, or there are none. `ClusterError`: it refuses.
    """

    def __init__(self, address: PostgresAddress, timeout_s: float, tell: Tell, makes_root: bool = True) -> None:
        with needs_package("a cluster's state in PostgreSQL", "postgres", "psycopg"):
            from trident.servers import postgres_connection
        self._make_tables, self._root = postgres_connection.make_tables, f"{address.name}:"
        patience = Patience("PostgreSQL", address, ClusterUnreachable, timeout_s)
        answer_s = max(1.0, timeout_s / 3)  # so long that another request may follow before the end of the session
        self._session = postgres_connection.PostgresSession(
            address.url, address, "cluster", patience, ClusterError, (RefusedError,), answer_s
        )
        abandon_in_children(self._session)
        self.what, self._makes_root = f"the state of the cluster at {address}", makes_root
        with close_on_error(self._session.close):
            if self._session.run(self._prepare) is None:
                raise ClusterUnreachable(f"{self.what} {NOT_THERE}")
            super().__init__(self.what, timeout_s, tell, _POLL_S)

    def close(self) -> None:
        super().close()
        self._session.close()

    def _prepare(self, connection: PostgresConnection) -> tuple[bytes] | None:
        if self._makes_root:
            self._make_tables(connection, "trident_nodes", _CREATE)
            connection.execute(_BEGIN, (self._root, _FORMAT, f"{self._root}/", self._root + SESSIONS))
        found = connection.execute("SELECT data FROM trident_nodes WHERE path = %s", (self._root,)).fetchone()
        if found not in (None, (_FORMAT,)):
            raise ClusterError(
                f"{self.what} is of format version {found[0].decode(errors='replace')}; this version of the software reads "
                f"{_FORMAT.decode()}. Use the version that made it"
            )
        return found

    def _seen(self, look: Callable[[SqlTable], T]) -> T:
        return self._ask(lambda connection: (look(self._table(connection)),))

    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        def request(connection: PostgresConnection) -> tuple[T] | None:
            with connection.transaction():
                is_there = connection.execute(_COUNT, (self._root,)).rowcount
                return (work(self._table(connection)),) if is_there else None

        return self._ask(request)

    def _table(self, connection: PostgresConnection) -> SqlTable:
        return SqlTable(connection.execute, "trident_nodes", "%s", self._root)

    def _ask(self, request: Callable[[PostgresConnection], tuple[T] | None]) -> T:
        found = self._session.run(request)
        if found is None:
            raise ClusterError(f"{self.what} was removed while it was open; start this process again")
        return found[0]

    def _count(self) -> object:
        query = "SELECT version FROM trident_nodes WHERE path = %s"
        return self._session.try_once(lambda connection: connection.execute(query, (self._root,)).fetchone())
