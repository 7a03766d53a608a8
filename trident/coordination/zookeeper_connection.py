"""A session with ZooKeeper: asks until there is an answer, says that it waits, and is renewed when it expires."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trident.errors import EnvironmentProblem, LogError
from trident.zookeeper_address import ZooKeeperAddress

__all__ = ["CONNECT_S", "SESSION_S", "Answer", "ZooKeeperConnection"]

logger = logging.getLogger(__name__)

SESSION_S = 10.0
CONNECT_S = 10.0
_STOP_S = 5.0
_LOOK_S = 0.25


class Answer(NamedTuple):
    """What ZooKeeper answered; `repeated` if an earlier request was left without an answer, and may have been carried out."""

    value: Any
    repeated: bool


class ZooKeeperConnection:
    """A session. What is asked must allow to be asked twice. Any thread may ask; a forked child may not.

    Parameters
    ----------
    patience_s
        How long a request waits while no server answers; then it raises `LogError`.
    """

    def __init__(self, address: ZooKeeperAddress, patience_s: float = CONNECT_S) -> None:
        self.address, self.patience_s = address, patience_s
        self._client = client_of(address, SESSION_S)
        self._connected = threading.Event()
        self._on_session: Callable[[], None] | None = None
        self._stopping_since = math.inf
        self._closed = False
        self.says_waiting = False
        self._pid = os.getpid()
        self._client.add_listener(self._changed)
        self._client.start_async()
        if not self._connected.wait(CONNECT_S):
            self.close()
            raise LogError(
                f"no ZooKeeper answers at {address.hosts} (waited {CONNECT_S:g} seconds for {address}). Start it, or correct "
                "the address; a majority of an ensemble's servers must be up"
            )

    @property
    def session(self) -> int:
        """The id of the session that now is."""
        return int((self._client.client_id or (0, b""))[0])

    def on_session(self, act: Callable[[], None] | None) -> None:
        """Call `act` in a thread of its own whenever there is a connection again, perhaps in another session."""
        self._on_session = act

    def stop_waiting(self) -> None:
        """From now on let each request wait for some seconds at most."""
        self._stopping_since = min(self._stopping_since, time.monotonic())

    def ask(self, start: Callable[[Any], Any]) -> Answer:
        """Start a request with the client, and return its answer, whatever happens to connection and session meanwhile.

        Raises
        ------
        LogError
            No server answered for as long as this waits, or the answer is a refusal.
        kazoo.exceptions.KazooException
            The answer is an error of another kind, e.g. that a node is missing.
        """
        from kazoo import exceptions as errors

        waiting, repeated = _Waiting(self), False
        while True:
            try:
                value = self._once(start, waiting)
                waiting.ended()
                return Answer(value, repeated)
            except (errors.ConnectionLoss, errors.OperationTimeoutError, errors.SessionExpiredError, TimeoutError):
                repeated = True
            except errors.ConnectionClosedError:
                if self._closed:
                    raise LogError(f"the connection to {self.address} is closed") from None
                repeated = True
            except (errors.NoAuthError, errors.AuthFailedError) as error:
                raise refused(self.address) from error

    def transaction(self, fill: Callable[[Any], None]) -> Answer:
        """Carry out all of what `fill` adds to a transaction, or nothing; the value has one result for each operation."""

        def start(client: Any) -> Any:
            transaction = client.transaction()
            fill(transaction)
            return transaction.commit_async()

        answer = self.ask(start)
        from kazoo.exceptions import NoAuthError

        if any(isinstance(result, NoAuthError) for result in answer.value):
            raise refused(self.address)
        return answer

    def ask_all(self, starts: Sequence[Callable[[Any], Any]]) -> list[Any]:
        """Ask several things at once; one answer or exception of ZooKeeper for each, in order."""

        def start(client: Any) -> Any:
            return _Together([each(client) for each in starts])

        answers: list[Any] = self.ask(start).value
        return answers

    def close(self) -> None:
        """End the session. Its ephemeral nodes go at once, or after its timeout if no server answers."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        # In a thread, because with a server that hangs it takes as long as the session.
        thread = threading.Thread(target=self._end, name="trident-zookeeper-close", daemon=True)
        thread.start()
        thread.join(_STOP_S)

    def _end(self) -> None:
        from kazoo.exceptions import KazooException

        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError) as error:
            logger.debug("closing the connection to %s: %s", self.address, error)

    def _changed(self, state: str) -> None:
        """Note a change of the connection (a listener of kazoo, which must not block)."""
        if state != "CONNECTED":
            self._connected.clear()
            return
        self._connected.set()
        if self._on_session is not None:
            self._client.handler.spawn(self._on_session)

    def _once(self, start: Callable[[Any], Any], waiting: _Waiting) -> Any:
        while not self._connected.wait(_LOOK_S):
            waiting.check()
        result, by = start(self._client), time.monotonic() + 2 * SESSION_S
        while not result.wait(_LOOK_S):
            waiting.check()
            if time.monotonic() > by:
                raise TimeoutError
        return result.get(False)

    def check_waiting(self, since: float) -> None:
        """Raise `LogError` if a request that has had no answer since then is not to wait any longer."""
        now = time.monotonic()
        if self._closed:
            raise LogError(f"the connection to {self.address} is closed")
        if now - since > self.patience_s or now - max(since, self._stopping_since) > _STOP_S:
            self.says_waiting = False
            raise LogError(f"no answer from ZooKeeper at {self.address.hosts} for {now - since:.0f} seconds")


class _Waiting:
    """One request that may have to wait, and what is said of that."""

    def __init__(self, connection: ZooKeeperConnection) -> None:
        self._connection, self._since, self._told = connection, time.monotonic(), False

    def check(self) -> None:
        self._connection.check_waiting(self._since)
        if not self._connection.says_waiting and time.monotonic() - self._since > 1:
            self._told = self._connection.says_waiting = True  # several threads may wait
            logger.warning("no answer from ZooKeeper for %s; waiting until there is one", self._connection.address)

    def ended(self) -> None:
        if self._told:
            self._connection.says_waiting = False
            seconds = time.monotonic() - self._since
            logger.warning("ZooKeeper answers again for %s, after %.1f seconds", self._connection.address, seconds)


class _Together:
    """Several requests that are under way at once, as one."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def wait(self, timeout: float) -> bool:
        return all(each.wait(timeout) for each in self._results)

    def get(self, block: bool) -> list[Any]:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        answers: list[Any] = []
        for each in self._results:
            try:
                answers.append(each.get(block))
            except (NoNodeError, NodeExistsError) as error:
                answers.append(error)
        return answers


# The client of a session with ZooKeeper: how it connects, and as whom.

AUTH = "TRIDENT_ZOOKEEPER_AUTH"
_TRIES = 3  # to connect, while a session lasts

_logger = logging.getLogger(__name__)
_logger.setLevel(logging.CRITICAL)  # kazoo logs each vain attempt; what users need to know the connection says


def refused(address: ZooKeeperAddress) -> LogError:
    """Return the error of a request that the access control of ZooKeeper refuses."""
    return LogError(
        f"ZooKeeper refuses access to {address}: its access control list (ACL) does not allow it. Give the "
        f"credentials that the list names as {AUTH}=digest:USER:PASSWORD, or name another path"
    )


def client_of(address: ZooKeeperAddress, session_s: float) -> Any:
    """Return a client that is not yet started; `EnvironmentProblem` if kazoo is missing."""
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
        from kazoo.security import CREATOR_ALL_ACL
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise EnvironmentProblem(
            f"a log in ZooKeeper needs the package kazoo ({error}); pip install 'trident-spark[zookeeper]'"
        ) from error

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(self, *words: Any, timeout: float, **names: Any) -> Any:
            # So that one machine that is gone does not take all the time there is: a session's, or that of the start.
            return super().create_connection(*words, timeout=timeout / len(hosts), **names)

    # A server that is being started may take a request and never answer it. kazoo waits for an answer as long as a session
    # lasts, divided by the number of servers; so one of which there are few is named several times.
    hosts = address.hosts.split(",")
    hosts *= math.ceil(_TRIES / len(hosts))
    handler, (scheme, _, credentials) = Handler(), os.environ.get(AUTH, "").partition(":")
    return KazooClient(
        ",".join(hosts),
        timeout=session_s,
        handler=handler,
        logger=_logger,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5, sleep_func=handler.sleep_func),
        auth_data=[(scheme, credentials)] if scheme else None,
        default_acl=CREATOR_ALL_ACL if scheme else None,
    )
