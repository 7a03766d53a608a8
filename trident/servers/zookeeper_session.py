"""A session with ZooKeeper through kazoo: requests are sent until there is an answer, and the session is renewed."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from trident.errors import TridentError
from trident.extras import needs_package

if TYPE_CHECKING:
    from kazoo.client import KazooClient

AUTH = "TRIDENT_ZOOKEEPER_AUTH"
"""The environment variable with the account: `digest:USER:PASSWORD`."""

_CLOSE_S = 5.0
_LOOK_S = 0.25
_PAUSE_S = 0.05
_TRIES = 3  # to connect, while a session lasts

SessionChange = Literal["suspended", "connected", "expired"]


class CallResult(Protocol):
    """The answer to a request, some time."""

    def wait(self, timeout: float) -> bool:
        """Wait for it; False if it did not come."""

    def get(self, block: bool) -> Any:
        """Return it, or raise the error that is the answer."""


class PendingAnswer(NamedTuple):
    """What a request came to.

    `value`: what was asked for; None if the server refused.
    `error`: why it refused, if that was expected.
    `repeated`: whether an earlier try was left without an answer: it may have been carried out.
    """

    value: Any
    error: Exception | None
    repeated: bool


class ZooKeeperSession(ABC):
    """A session; kazoo begins another one when it was over. Any thread may ask; a forked child may not.

    What is asked must allow to be asked twice. A subclass says how long a request waits, and words the errors.

    `hosts`, `timeout_s`: the servers, and how long this process may be out of touch before they end its session.
    `what`: what the session is for, in messages: "the state of the cluster at HOST:PORT".
    """

    needed_for: ClassVar[str]
    error: ClassVar[type[TridentError]]

    def __init__(self, hosts: str, timeout_s: float, what: str) -> None:
        self.hosts, self.timeout_s, self.what = hosts, timeout_s, what
        self._pid, self._closed = os.getpid(), False
        self._expired = self._suspended = False
        self._live = threading.Event()
        self._client = _client(self.needed_for, hosts, timeout_s)
        self._client.add_listener(self._listen)
        self._client.start_async()
        if not self._live.wait(timeout_s):
            self.close()
            raise self.unreachable()

    @abstractmethod
    def unreachable(self) -> TridentError:
        """Return the error of a session that no server answered."""

    @abstractmethod
    def refused(self) -> TridentError:
        """Return the error of a request that the access control refuses."""

    @abstractmethod
    def check_patience(self, since: float) -> None:
        """Raise an error if a request that has had no answer since then is not to wait any longer."""

    @abstractmethod
    def changed(self, change: SessionChange) -> None:
        """Take note of a change of the session. Called in kazoo's thread: it must not wait."""

    def answered(self) -> None:  # noqa: B027  not all sessions say when they wait
        """Take note that a request has its answer."""

    @property
    def id(self) -> int:
        """The number that nodes of this session have as their owner."""
        return int((self._client.client_id or (0, b""))[0])

    @property
    def last_change(self) -> int:
        """The number of the last change that the servers have reported to this client."""
        return int(self._client.last_zxid)

    @property
    def is_ours(self) -> bool:
        """Whether this process began it, and not one that it was forked from."""
        return self._pid == os.getpid()

    def call(self, request: Callable[[KazooClient], CallResult], *expected: type[Exception]) -> PendingAnswer:
        """Ask until there is an answer, whatever happens to connection and session meanwhile; errors `expected` are answers."""
        from kazoo.exceptions import AuthFailedError, NoAuthError

        since, repeated = time.monotonic(), False
        lost: tuple[type[Exception], ...] = (*lost_errors(), TimeoutError)
        while True:
            self._check(since)
            try:
                value = self._once(request, since)
                self.answered()
                return PendingAnswer(value, None, repeated)
            except expected as error:
                return PendingAnswer(None, error, repeated)
            except (NoAuthError, AuthFailedError) as error:
                raise self.refused() from error
            except lost:
                repeated = True
                time.sleep(_PAUSE_S)  # kazoo reports the loss a moment after its requests have failed

    def call_each(
        self, requests: Callable[[KazooClient], Iterable[CallResult]], *expected: type[Exception]
    ) -> list[Any]:
        """Ask several things at once; for each, in order, the answer or an error that was `expected`."""
        answers: list[Any] = self.call(lambda client: _Together(list(requests(client)), expected)).value
        return answers

    def transaction(self, fill: Callable[[Any], None]) -> PendingAnswer:
        """Carry out all of what `fill` adds to a transaction, or nothing; the value has one result for each operation."""
        from kazoo.exceptions import NoAuthError

        def commit(client: KazooClient) -> CallResult:
            transaction = client.transaction()
            fill(transaction)
            done: CallResult = transaction.commit_async()
            return done

        answer = self.call(commit)
        if any(isinstance(each, NoAuthError) for each in answer.value):
            raise self.refused()
        return answer

    def close(self) -> None:
        """End the session. Its ephemeral nodes go at once, or after its timeout if no server answers."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        self._live.set()  # a waiting thread finds it closed
        # In a thread, because with a server that hangs it takes as long as the session.
        thread = threading.Thread(target=self._end, name="trident-zookeeper-close", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)

    def _end(self) -> None:
        from kazoo.exceptions import KazooException

        # AttributeError: of kazoo's sockets, while it is between two connections
        with contextlib.suppress(KazooException, OSError, AttributeError):
            self._client.stop()
        with contextlib.suppress(KazooException, OSError):
            self._client.close()

    def _once(self, request: Callable[[KazooClient], CallResult], since: float) -> Any:
        while not self._live.wait(_LOOK_S):
            self._check(since)
        result, by = request(self._client), time.monotonic() + 2 * self.timeout_s
        while not result.wait(_LOOK_S):
            self._check(since)
            if time.monotonic() > by:
                raise TimeoutError
        return result.get(False)

    def _check(self, since: float) -> None:
        if not self.is_ours:
            raise self.error(f"{self.what} was opened before this process was forked; open it again here")
        if self._closed:
            raise self.error(f"{self.what} is closed")
        self.check_patience(since)

    def _listen(self, state: str) -> None:
        if self._closed:
            return
        if state == "CONNECTED":
            if self._expired or self._suspended:
                self.changed("expired" if self._expired else "connected")
            self._expired = self._suspended = False
            self._live.set()  # last: a waiting thread may watch now, and the watches before are gone
            return
        self._live.clear()
        self._expired = self._expired or state == "LOST"
        if not self._suspended:
            self._suspended = True
            self.changed("suspended")


def lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors after which it is not known whether a request was carried out."""
    from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError

    return ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError


class _Together:
    """Several requests that are under way at once, as one."""

    def __init__(self, results: Sequence[CallResult], expected: tuple[type[Exception], ...]) -> None:
        self._results, self._expected = results, expected

    def wait(self, timeout: float) -> bool:
        return all(each.wait(timeout) for each in self._results)

    def get(self, block: bool) -> list[Any]:
        answers: list[Any] = []
        for each in self._results:
            try:
                answers.append(each.get(block))
            except self._expected as error:
                answers.append(error)
        return answers


def _client(needed_for: str, hosts: str, timeout_s: float) -> KazooClient:
    with needs_package(needed_for, "zookeeper", "kazoo"):
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
        from kazoo.security import CREATOR_ALL_ACL

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(self, *words: Any, timeout: float, **names: Any) -> Any:
            # So that one machine that is gone does not take all the time of the session, or of the start.
            return super().create_connection(*words, timeout=timeout / len(servers), **names)

    # A server that is being started may take a request and never answer it. kazoo waits for an answer as long as a session
    # lasts, divided by the number of servers; so one of which there are few is named several times.
    servers = hosts.split(",")
    servers *= math.ceil(_TRIES / len(servers))
    handler, (scheme, _, credentials) = Handler(), os.environ.get(AUTH, "").partition(":")
    return KazooClient(
        ",".join(servers),
        timeout=timeout_s,
        handler=handler,
        logger=_quiet(),
        connection_retry=KazooRetry(
            max_tries=-1, delay=0.05, max_delay=min(0.5, timeout_s / 4), sleep_func=handler.sleep_func
        ),
        auth_data=[(scheme, credentials)] if scheme else None,
        default_acl=CREATOR_ALL_ACL if scheme else None,
    )


def _quiet() -> logging.Logger:
    # Each vain try to connect is a warning of kazoo's; what users need to know sessions say. Who wants more adds a handler.
    logger = logging.getLogger("trident.kazoo")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
