"""`ZooKeeperSession`: one session at a ZooKeeper through kazoo: requests that are tried again, and what becomes of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from trident.cluster.cluster_errors import ClusterError, ClusterUnreachable
from trident.errors import EnvironmentProblem

if TYPE_CHECKING:
    from kazoo.client import KazooClient

__all__ = ["Answer", "Result", "SessionChange", "ZooKeeperSession", "lost_errors", "together"]

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
_AUTH = "TRIDENT_ZOOKEEPER_AUTH"

SessionChange = Literal["suspended", "connected", "expired"]


class Result(Protocol):
    """The answer to a request, some time."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for it."""


class Answer(NamedTuple):
    """What a request came to.

    Attributes
    ----------
    value
        What was asked for; None if the server refused.
    error
        Why it refused, if that was expected.
    repeated
        Whether the connection was lost in between: an earlier try may have been carried out.
    """

    value: Any
    error: Exception | None
    repeated: bool


class ZooKeeperSession:
    """A session that kazoo keeps, and begins again when it was over.

    Parameters
    ----------
    hosts, timeout_s
        The servers, and how long this process may be out of touch before they end its session.
    changed
        Called with `suspended`, `connected` or `expired`, in kazoo's thread: it must not wait.
    """

    def __init__(self, hosts: str, timeout_s: float, changed: Callable[[SessionChange], None]) -> None:
        self.hosts, self._timeout_s, self._changed = hosts, timeout_s, changed
        self._pid = os.getpid()
        self._closed = False
        self._expired = self._suspended = False
        self._live = threading.Event()
        self._client = _client(hosts, timeout_s)
        self._client.add_listener(self._listen)
        try:
            self._client.start(timeout_s)
        except self._client.handler.timeout_exception as error:
            raise self._unreachable() from error

    @property
    def id(self) -> int:
        """The number that nodes of this session have as their owner."""
        return int(self._client.client_id[0])

    @property
    def last_change(self) -> int:
        """The number of the last change that the servers have told this client of."""
        return int(self._client.last_zxid)

    @property
    def is_ours(self) -> bool:
        """Whether this process began it, and not one that it was forked from."""
        return self._pid == os.getpid()

    def call(self, request: Callable[[KazooClient], Result], *expected: type[Exception]) -> Answer:
        """Ask until there is an answer, or the time is over. The errors `expected` are answers."""
        from kazoo.exceptions import NoAuthError

        lost = lost_errors()
        deadline = time.monotonic() + self._timeout_s
        repeated = False
        while True:
            self._check()
            if not self._live.wait(max(0.0, deadline - time.monotonic())):
                raise self._unreachable()
            try:
                return Answer(
                    request(self._client).get(timeout=max(0.001, deadline - time.monotonic())), None, repeated
                )
            except expected as error:
                return Answer(None, error, repeated)
            except NoAuthError as error:
                raise self.refused() from error
            except lost:
                repeated = True
                time.sleep(_PAUSE_S)  # kazoo tells of the loss a moment after its requests have failed
            except self._client.handler.timeout_exception as error:
                raise self._unreachable() from error

    def refused(self) -> ClusterError:
        """Return the error of a request that needs other rights."""
        return ClusterError(
            f"the ZooKeeper at {self.hosts} refuses access to the cluster: give {_AUTH}=digest:USER:PASSWORD, of the user who "
            "made its nodes, to every daemon and client"
        )

    def close(self) -> None:
        """End it."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        self._live.set()  # who waits finds it closed
        with contextlib.suppress(OSError, AttributeError):  # of kazoo's sockets, while it is between two connections
            self._client.stop()
        self._client.close()

    def _check(self) -> None:
        if not self.is_ours:
            raise ClusterError(
                f"the state of the cluster at {self.hosts} was opened before this process was forked; open it again here"
            )
        if self._closed:
            raise ClusterError(f"the state of the cluster at {self.hosts} is closed")

    def _unreachable(self) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"no ZooKeeper answers at {self.hosts} (tried for {self._timeout_s:g} s); does it run, and has it a majority?"
        )

    def _listen(self, state: str) -> None:
        if self._closed:
            return
        if state == "CONNECTED":
            if self._expired or self._suspended:
                self._changed("expired" if self._expired else "connected")
            self._expired = self._suspended = False
            self._live.set()  # last: who waits for it may watch, and those before are gone
            return
        self._live.clear()
        self._expired = self._expired or state == "LOST"
        if not self._suspended:
            self._suspended = True
            self._changed("suspended")


def lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors after which it is not known whether a request was carried out."""
    from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError

    return ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError


class _Together:
    def __init__(self, results: Sequence[Result], expected: tuple[type[Exception], ...]) -> None:
        self._results, self._expected = results, expected

    def get(self, block: bool = True, timeout: float | None = None) -> list[Any]:
        deadline = time.monotonic() + (timeout or 0.0)
        found = []
        for each in self._results:
            try:
                found.append(each.get(block, max(0.001, deadline - time.monotonic())))
            except self._expected as error:
                found.append(error)
        return found


def together(results: Sequence[Result], *expected: type[Exception]) -> Result:
    """Return the answers to requests that were all sent at once; an error where one was `expected`."""
    return _Together(results, expected)


def _client(hosts: str, timeout_s: float) -> KazooClient:
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
        from kazoo.security import CREATOR_ALL_ACL
    except ImportError as error:
        raise EnvironmentProblem(
            "a cluster's state in ZooKeeper needs the package kazoo; install it with: pip install 'trident-spark[zookeeper]'"
        ) from error

    class Patient(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(self, *words: Any, timeout: float, **names: Any) -> Any:
            # kazoo would wait for one machine that is gone until the session is over, while the others are there.
            return super().create_connection(*words, timeout=timeout / (1 + hosts.count(",")), **names)

    retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=min(1.0, timeout_s / 4))
    auth = os.environ.get(_AUTH, "")
    return KazooClient(
        hosts,
        timeout_s,
        handler=Patient(),
        connection_retry=retry,
        logger=_quiet(),
        auth_data=[tuple(auth.split(":", 1))] if auth else None,
        default_acl=CREATOR_ALL_ACL if auth else None,
    )


def _quiet() -> logging.Logger:
    # Each try to connect is a warning of kazoo's; what matters is told as events. Who looks for more adds a handler.
    logger = logging.getLogger("trident.kazoo")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
