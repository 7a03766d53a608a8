"""One connection to a cluster per process and account, shared by all states that use it, closed with the last of them."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import cassandra
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, RetryPolicy, TokenAwarePolicy
from cassandra.protocol import ServerError
from cassandra.query import tuple_factory

from states.cassandra.options import CassandraOptions
from trident.errors import BackendError, StoreAwayError
from trident.roles import close_on_error

_RECONNECT_S = 0.5
_DDL_TIMEOUT_S = 60.0
_LOADED_S, _LOOK_S = 5.0, 0.02
_REFUSED = (cassandra.AuthenticationFailed, cassandra.Unauthorized)
_WRONG = (cassandra.InvalidRequest, cassandra.AlreadyExists)
_AWAY = (
    NoHostAvailable,
    OSError,
    cassandra.OperationTimedOut,
    cassandra.Timeout,
    cassandra.Unavailable,
    cassandra.UnresolvableContactPoints,
    ConnectionException,
)
_ANY = (cassandra.DriverException, cassandra.RequestExecutionException, NoHostAvailable, OSError)


class UnknownOutcome(BackendError):
    """No answer came, so the write may have been made, be made later, or never."""


class NoAnswer(UnknownOutcome, StoreAwayError):
    """The cluster does not answer, or too few of its nodes do."""


class CassandraConnection:
    """A session of the driver, and the statements prepared in it. Used by several threads at once."""

    def __init__(self, options: CassandraOptions) -> None:
        self.address, self.key, self.process = options.address, options.connection, os.getpid()
        self._prepared: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        with self.translate_errors("find a node"):
            self._cluster = _cluster(options)
        with close_on_error(self._cluster.shutdown), self.translate_errors("open a session"):
            self._session = self._cluster.connect()

    def prepare(self, cql: str, level: str, serial: bool = False) -> Any:
        """Return the prepared statement of a text for a consistency level; `serial`: it reads or writes by condition."""
        with self._lock:
            if (cql, level) not in self._prepared:
                with self.translate_errors(f"prepare {cql!r}"):
                    statement = self._prepare(cql)
                statement.consistency_level = getattr(ConsistencyLevel, level)
                # Every write carries its own timestamp, so it may be sent again; a conditional one is decided again.
                statement.is_idempotent = not serial
                if serial:
                    local = "LOCAL_SERIAL" if level.startswith("LOCAL") else "SERIAL"
                    statement.serial_consistency_level = getattr(ConsistencyLevel, local)
                self._prepared[cql, level] = statement
            return self._prepared[cql, level]

    def _prepare(self, cql: str) -> Any:
        # A table that another process makes right now is in the schema a moment before it can be asked.
        ends = monotonic() + _LOADED_S
        while True:
            try:
                return self._session.prepare(cql)
            except (cassandra.InvalidRequest, NoHostAvailable) as error:
                if monotonic() >= ends or not _is_being_loaded(error):
                    raise
                sleep(_LOOK_S)

    def execute(self, statement: Any, doing: str) -> list[tuple[Any, ...]]:
        with self.translate_errors(doing):
            return list(self._session.execute(statement))

    def iter_rows(self, statement: Any, doing: str) -> Iterator[tuple[Any, ...]]:
        """Run one bound statement and iterate over its rows, fetched page by page as they are asked for."""
        with self.translate_errors(doing):
            yield from self._session.execute(statement)

    def define(self, cql: str) -> None:
        """Change the schema and wait until all nodes agree on it."""
        with self.translate_errors(f"run {cql!r}"):
            self._session.execute(cql, timeout=_DDL_TIMEOUT_S)

    def stream(self, statements: Iterable[Any], width: int, doing: str) -> Iterator[Any]:
        """Run statements, at most `width` at a time, and give each one's result in order; nothing is sent after an error."""
        under_way: deque[Any] = deque()
        try:
            with self.translate_errors(doing):
                for statement in statements:
                    under_way.append(self._session.execute_async(statement))
                    if len(under_way) >= width:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
        finally:
            for future in under_way:  # so that nothing of a failed call happens later
                with contextlib.suppress(*_ANY):
                    future.result()

    def close(self) -> None:
        self._cluster.shutdown()

    @contextmanager
    def translate_errors(self, doing: str) -> Iterator[None]:
        """Raise errors of the driver as `BackendError`, with what was tried and where."""
        try:
            yield
        except _ANY as error:
            raise _backend_error(f"cannot {doing} in Cassandra at {self.address}", self.address, error) from error


def _is_being_loaded(error: Exception) -> bool:
    """Whether a server may not have opened a table yet: it does not know it, or has a fault of its own ("Unknown CF")."""
    if not isinstance(error, NoHostAvailable) or not error.errors:  # the driver may raise before it notes an answer
        return True
    return any(isinstance(one, ServerError) for one in error.errors.values())


def _backend_error(tried: str, address: str, error: Exception) -> BackendError:
    # The answer of each node says more than the summary that no node could do it.
    causes = list(error.errors.values()) if isinstance(error, NoHostAvailable) and error.errors else [error]
    text = "; ".join(dict.fromkeys(str(cause) or type(cause).__name__ for cause in causes[:3]))
    if any(isinstance(cause, _REFUSED) for cause in causes):
        return BackendError(f"{tried}: {text}. Check user, password and the account's rights", retryable=False)
    if isinstance(error, cassandra.UnresolvableContactPoints):
        text = "no name of contact_points has an address: are they right, and does DNS answer"
    if isinstance(error, _WRONG):
        return BackendError(f"{tried}: the server refuses it: {text}", retryable=False)
    message = f"{tried}: {type(error).__name__}: {text}. The batch may be replayed"
    return NoAnswer(message, f"Cassandra at {address}") if isinstance(error, _AWAY) else UnknownOutcome(message)


def _cluster(options: CassandraOptions) -> Any:
    policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(options.local_dc or ""))
    profile = ExecutionProfile(
        load_balancing_policy=policy,
        retry_policy=RetryPolicy(),
        consistency_level=ConsistencyLevel.QUORUM,
        request_timeout=options.timeout_s,
        row_factory=tuple_factory,
    )
    account = None if options.user is None else PlainTextAuthProvider(options.user, options.password)
    return Cluster(
        contact_points=list(options.contact_points),
        port=options.port,
        auth_provider=account,
        ssl_context=options.tls_context(options.tls_check_hostname),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        protocol_version=options.protocol_version,
        reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, max_attempts=None),
        connect_timeout=options.connect_timeout_s,
        control_connection_timeout=options.connect_timeout_s,
        monitor_reporting_enabled=False,
        application_name="trident-spark",
    )


_shared: dict[tuple[Any, ...], tuple[CassandraConnection, int]] = {}
_lock = threading.Lock()


def borrow(options: CassandraOptions) -> CassandraConnection:
    """Return the connection of this process for the options; give it back as often as it was borrowed."""
    with _lock:
        connection, users = _shared.get(options.connection) or (CassandraConnection(options), 0)
        _shared[connection.key] = connection, users + 1
        return connection


def give_back(connection: CassandraConnection) -> None:
    """Close the connection if no other state uses it; one of a parent process, whose threads are not here, is left alone."""
    with _lock:
        known, users = _shared.get(connection.key, (None, 0))
        if known is not connection:
            return
        _shared[connection.key] = connection, users - 1
        if users > 1:
            return
        del _shared[connection.key]
    connection.close()


def _forget_parents() -> None:
    # A child has the sockets of its parent, but not the threads that serve them.
    global _lock
    _lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_parents)
