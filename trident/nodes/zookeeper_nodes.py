"""Nodes of a ZooKeeper through kazoo; requests are sent until there is an answer, the session is renewed.

Whether a request whose answer was lost was carried out is found by the number of its change, unless others have changed the
node since: then it is `unknown`. (If two clients write the very same bytes at that moment, both may get a success.)
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trident.errors import TridentError
from trident.extras import needs_package
from trident.nodes.interface import Check, Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode, Tell
from trident.roles import close_on_error
from trident.servers.log_addresses import ZooKeeperAddress
from trident.servers.patience import Patience

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent

AUTH = "TRIDENT_ZOOKEEPER_AUTH"  # the environment variable with the account: `digest:USER:PASSWORD`

_CLOSE_S = 5.0
_LOOK_S = 0.25
_PAUSE_S = 0.05
_TRIES = 3  # to connect, while a session lasts


class ZooKeeperNodes:
    """Nodes below a path, and a session; watches are over with the connection. Implements `Nodes`.

    `what`: what errors call it. `timeout_s`: how long this process may be out of touch before its session ends. `patience`,
    `error`: how long a request may wait, the error of a refusal. `makes_root`: the path is created, and again if it was
    deleted.
    """

    def __init__(
        self, address: ZooKeeperAddress, what: str, timeout_s: float, patience: Patience, error: type[TridentError],
        tell: Tell, makes_root: bool = False,
    ) -> None:  # fmt: skip
        self._root, self._timeout_s, self._what, self._tell = address.path, timeout_s, what, tell
        self._patience, self._error, self._makes_root = patience, error, makes_root
        self._pid, self._closed = os.getpid(), False
        self._expired = self._suspended = False
        self._live = threading.Event()
        self._client = _client(what, address.hosts, timeout_s)
        self._client.add_listener(self._listen)
        self._client.start_async()
        with close_on_error(self.close):
            if not self._live.wait(timeout_s):
                raise patience.error(
                    f"no ZooKeeper answers at {address.hosts} (tried for {timeout_s:g} s). Start it, or correct the address; a "
                    "majority of an ensemble's servers must be up"
                )
            if makes_root:
                self.make("/")

    @property
    def id(self) -> int:
        return int((self._client.client_id or (0, b""))[0])

    @property
    def is_ours(self) -> bool:
        return self._pid == os.getpid()

    def make(self, path: str) -> None:
        """Create a node without data and those above it, the root too, where they are missing."""
        self.call(lambda client: [client.ensure_path_async(self._at(path))])

    def read(self, paths: Sequence[str], watch: bool = False, sync: bool = False) -> list[StoredNode | None]:
        """See `Nodes.read`. `sync`: as of now; a server may be behind the others, unless it is asked to catch up first."""
        found = self._each(lambda client: client.get_async, paths, watch, sync)
        return [one and StoredNode(one[0], one[1].version, one[1].ephemeralOwner or None) for one in found]

    def names(self, paths: Sequence[str], watch: bool = False) -> list[list[str]]:
        return [sorted(names or ()) for names in self._each(lambda client: client.get_children_async, paths, watch)]

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        def request(client: KazooClient) -> Any:
            transaction = client.transaction()
            for step in steps:
                self._add(transaction, step)
            return [transaction.commit_async()]

        before = int(self._client.last_zxid)
        (results,), repeated = self.call(request)
        refusal = self._refusal(results)
        if refusal == "missing" and self._makes_root and self.read(["/"]) == [None]:  # all was deleted
            self.make("/")
            return self.change(*steps, durable=durable)
        return self._outcome(steps[-1], refusal, before) if refusal and repeated else refusal

    def spawn(self, work: Callable[[], None]) -> None:
        """Let a thread of kazoo's work: one that may wait."""
        self._client.handler.spawn(work)

    def call(self, request: Callable[[KazooClient], Sequence[Any]]) -> tuple[list[Any], bool]:
        """Ask several things at once until there are answers, whatever happens to connection and session meanwhile.

        Returns them, None for one of a node that is not there; and whether an earlier try may have been carried out.
        """
        from kazoo import exceptions

        # After these it is not known whether a request was carried out.
        lost: tuple[type[Exception], ...] = (exceptions.ConnectionClosedError, exceptions.ConnectionLoss, TimeoutError)
        lost += (exceptions.OperationTimeoutError, exceptions.SessionExpiredError)
        since, repeated = time.monotonic(), False
        while True:
            self._check(since)
            try:
                answers = self._once(request, since)
                self._patience.note_answer()
                return answers, repeated
            except lost:
                repeated = True
                time.sleep(_PAUSE_S)  # kazoo reports the loss a moment after its requests have failed
            except exceptions.KazooException as error:
                raise self._request_error(error) from error

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

    def _at(self, path: str) -> str:
        return self._root if path == "/" else self._root + path

    def _each(
        self, method: Callable[[KazooClient], Any], paths: Sequence[str], watch: bool = False, sync: bool = False
    ) -> list[Any]:
        """Ask the same of several nodes at once; None for one that is not there, whose creation is watched then."""
        if not paths:
            return []
        fire = self._fire if watch else None

        def ask(method: Callable[[KazooClient], Any], some: Sequence[str]) -> list[Any]:
            def request(client: KazooClient) -> list[Any]:
                first = [client.sync_async(self._at(some[0]))] if sync else []
                return [*first, *(method(client)(self._at(path), fire) for path in some)]

            return self.call(request)[0][-len(some) :]

        while True:
            found = ask(method, paths)
            missing = [path for path, one in zip(paths, found, strict=True) if one is None] if watch else []
            if not missing or not any(ask(lambda client: client.exists_async, missing)):
                return found  # else one was created in between

    def _fire(self, event: WatchedEvent) -> None:
        if event.path:  # else it is of the connection
            self._tell(NodeEvent("changed", event.path[len(self._root) :] or "/"))

    def _add(self, transaction: Any, step: Step) -> None:
        at = self._at(step.path)
        match step:
            case Create(_, data, ephemeral):
                transaction.create(at, data, ephemeral=ephemeral)
            case Put(_, data, version):
                transaction.set_data(at, data, -1 if version is None else version)
            case Delete(_, version):
                transaction.delete(at, -1 if version is None else version)
            case Check():
                transaction.check(at, -1)

    def _refusal(self, results: Sequence[Any]) -> Refusal | None:
        from kazoo import exceptions

        errors = [each for each in results if isinstance(each, Exception)]
        # The other steps have errors too.
        others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        cause = next((each for each in errors if not isinstance(each, others)), next(iter(errors), None))
        if cause is None:
            return None
        refusals: dict[type[Exception], Refusal] = {
            exceptions.NoNodeError: "missing",
            exceptions.NodeExistsError: "exists",
            exceptions.BadVersionError: "version",
            exceptions.NotEmptyError: "not empty",
            exceptions.NoChildrenForEphemeralsError: "ephemeral",
        }
        if type(cause) not in refusals:
            raise self._request_error(cause)
        return refusals[type(cause)]

    def _outcome(self, last: Step, refusal: Refusal, before: int) -> Refusal | None:
        """Return what became of a refused transaction, by its last step: a try after the change `before` lost its answer."""
        (found,) = self._each(lambda client: client.get_async, [last.path])
        match found, last:
            case None, _:
                return refusal
            case (data, stat), Put(_, wanted, int(version)):
                may_be_ours, changed = stat.version > version and stat.mzxid > before, stat.version - version - 1
            case (data, stat), Create(_, wanted, ephemeral):
                is_kind = stat.ephemeralOwner == (self.id if ephemeral else 0)
                may_be_ours, changed = is_kind and stat.czxid > before, stat.version
            case _:
                return refusal
        if may_be_ours and changed > 0:
            return "unknown"
        return None if may_be_ours and data == wanted else refusal

    def _request_error(self, error: Exception) -> TridentError:
        from kazoo.exceptions import AuthFailedError, NoAuthError

        if not isinstance(error, NoAuthError | AuthFailedError):
            return self._error(f"{self._what}: ZooKeeper refuses a request: {error!r}")
        return self._error(
            f"ZooKeeper refuses access to {self._what}: give {AUTH}=digest:USER:PASSWORD, of the user who made its nodes, to "
            "every process that uses it, or name another path"
        )

    def _end(self) -> None:
        from kazoo.exceptions import KazooException

        # AttributeError: of kazoo's sockets, while it is between two connections
        with contextlib.suppress(KazooException, OSError, AttributeError):
            self._client.stop()
        with contextlib.suppress(KazooException, OSError):
            self._client.close()

    def _once(self, request: Callable[[KazooClient], Sequence[Any]], since: float) -> list[Any]:
        from kazoo.exceptions import NoNodeError

        while not self._live.wait(_LOOK_S):
            self._check(since)
        results, by = request(self._client), time.monotonic() + 2 * self._timeout_s
        while not all(each.wait(_LOOK_S) for each in results):
            self._check(since)
            if time.monotonic() > by:
                raise TimeoutError
        answers: list[Any] = []
        for each in results:
            with contextlib.suppress(NoNodeError):
                answers.append(each.get(False))
                continue
            answers.append(None)
        return answers

    def _check(self, since: float) -> None:
        if not self.is_ours:
            raise self._error(f"{self._what} was opened before this process was forked; open it again here")
        if self._closed:
            raise self._error(f"{self._what} is closed")
        self._patience.check(since)

    def _listen(self, state: str) -> None:
        if self._closed:
            return
        if state == "CONNECTED":
            if self._expired or self._suspended:
                self._tell(NodeEvent("expired" if self._expired else "connected", ""))
            self._expired = self._suspended = False
            self._live.set()  # last: a waiting thread may watch now, and the watches before are gone
            return
        self._live.clear()
        self._expired = self._expired or state == "LOST"
        if not self._suspended:
            self._suspended = True
            self._tell(NodeEvent("suspended", ""))


def _client(what: str, hosts: str, timeout_s: float) -> KazooClient:
    with needs_package(what, "zookeeper", "kazoo"):
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
    # Each vain try to connect is a warning of kazoo's; what users need to know sessions say. Who wants more adds a handler.
    logger = logging.getLogger("trident.kazoo")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    handler, (scheme, _, credentials) = Handler(), os.environ.get(AUTH, "").partition(":")
    return KazooClient(
        ",".join(servers),
        timeout=timeout_s,
        handler=handler,
        logger=logger,
        connection_retry=KazooRetry(
            max_tries=-1, delay=0.05, max_delay=min(0.5, timeout_s / 4), sleep_func=handler.sleep_func
        ),
        auth_data=[(scheme, credentials)] if scheme else None,
        default_acl=CREATOR_ALL_ACL if scheme else None,
    )
