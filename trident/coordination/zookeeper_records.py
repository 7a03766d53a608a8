"""Keeps the log of a topology in ZooKeeper, as a head and chunks (`head_records.py`): any machine can take a topology over.

::

    <path>/head                      the head
    <path>/chunks/…                  chunks; one that is too large for a node is several, `.{parts}.{number}`
    <path>/claim/{epoch:08d}-{id}    the claim of the writer: the only one
    <path>/alive/{epoch:08d}-{id}    ephemeral: the session of the writer is alive

A claim is taken by one transaction that replaces the head, removes the claim before and creates its own. An append is one
transaction too: it checks that the claim is there, creates the chunk if there is one, and sets the head if it has the version
that the writer knows. So an append of a driver that was replaced, or whose log was removed or set back, does nothing. A
transaction without an answer is sent again; if it is refused then, the head tells whether the first one was carried out.

The claim outlasts the session; the ephemeral node beside it shows whether the writer is alive. After a process was killed,
that node stays until the session ends, so a process of the same machine is looked for as well.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trident.coordination import holders
from trident.coordination.head_records import CHUNKS, HEAD, HeadBody, HeadRecords, StoredBytes
from trident.coordination.lock import SegmentName
from trident.coordination.patience import Patience
from trident.coordination.record_store import Head
from trident.errors import LogError
from trident.servers.zookeeper_address import ZooKeeperAddress
from trident.servers.zookeeper_session import AUTH, PendingAnswer, SessionChange, ZooKeeperSession

logger = logging.getLogger(__name__)

SESSION_S = 10.0
MOST_OLD = 100
"""Segments that the history has here at most: each has up to 1,000 records, all in the memory of every server."""
_CLAIM, _ALIVE, _FORMER = "claim", "alive", "segments"
_OPERATIONS = 200  # of one transaction
_PARTS = re.compile(r".*\.(\d+)")


class _Node(NamedTuple):
    path: str
    data: bytes


class LogSession(ZooKeeperSession):
    """A session at an address, whose requests wait as long as the log has patience.

    `on_connection`: called in a thread of its own whenever there is a connection again, perhaps in another session.
    """

    needed_for, error = "a log in ZooKeeper", LogError

    def __init__(self, address: ZooKeeperAddress, patience: Patience, on_connection: Callable[[], None]) -> None:
        self.address = address
        self._patience, self._on_connection = patience, on_connection
        super().__init__(address.hosts, SESSION_S, f"the connection to {address}")

    def call(self, request: Callable[[Any], Any], *expected: type[Exception]) -> PendingAnswer:
        from kazoo.exceptions import KazooException

        try:
            return super().call(request, *expected)
        except KazooException as error:
            raise LogError(f"ZooKeeper refuses {self.address}: {error!r}") from error

    def changed(self, change: SessionChange) -> None:
        if change != "suspended":
            self._client.handler.spawn(self._on_connection)

    def check_patience(self, since: float) -> None:
        self._patience.check(since)

    def answered(self) -> None:
        self._patience.answered()

    def unreachable(self) -> LogError:
        return LogError(
            f"no ZooKeeper answers at {self.hosts} (waited {self.timeout_s:g} seconds for {self.address}). Start it, or "
            "correct the address; a majority of an ensemble's servers must be up"
        )

    def refused(self) -> LogError:
        return LogError(
            f"ZooKeeper refuses access to {self.address}: its access control list (ACL) does not allow it. Give the "
            f"credentials that the list names as {AUTH}=digest:USER:PASSWORD, or name another path"
        )


class ZooKeeperRecords(HeadRecords):
    """The log at an address.

    `part_bytes`: how much of a chunk a node holds. A request to ZooKeeper has at most 1 MiB (`jute.maxbuffer`), head and all.
    """

    head_bytes = 4 << 10  # the names of a segment's chunks take as much again: more or less, and an append writes more
    part_bytes = 900_000

    def __init__(self, address: ZooKeeperAddress) -> None:
        super().__init__(address, Patience("ZooKeeper", address))
        self._path = address.path
        self._own = ""  # the name of this writer's claim
        self._has_warned = False
        self._session = LogSession(address, self.patience, self._show_life)

    def look(self) -> Head | None:
        head = super().look()
        if head is None and self._exists(_FORMER) is not None:
            raise LogError(
                f"the transaction log {self._address} is of another format version; use the version that wrote it"
            )
        return head

    def has(self, claim: Head) -> bool:
        return self._exists(f"{_CLAIM}/{claim.name}") is not None

    def is_held(self, claim: Head, wait: bool = False) -> bool:
        path, gone = self._at(f"{_ALIVE}/{claim.name}"), threading.Event()
        watch = (lambda _: gone.set()) if wait else None
        if self._session.call(lambda client: client.exists_async(path, watch)).value is None:
            return False
        if not wait:
            return True
        logger.warning(
            "transaction log %s was written by %s; waiting up to %g seconds for the end of its session",
            self._address, holders.described(holders.read(claim.about), claim.epoch), SESSION_S,
        )  # fmt: skip
        return not gone.wait(SESSION_S + 1)

    def release(self, claim: Head) -> None:
        """Let the ephemeral node go with the session, which is closed next."""
        self._own = ""

    def sweep(self, keep: SegmentName) -> None:
        old = sorted({segment for segment, _ in self._listed})[:-1]  # without the one that has just begun
        if len(old) > MOST_OLD and keep < old[-MOST_OLD]:
            keep = old[-MOST_OLD]
            self._warn_of_size()
        super().sweep(keep)

    def close(self) -> None:
        self._session.close()

    def abandon(self) -> None:
        """Do nothing: the threads of the session do not exist in a forked child."""

    def _prepare(self) -> None:
        for name in (_CLAIM, _ALIVE, CHUNKS):
            path = self._at(name)
            self._session.call(lambda client, path=path: client.ensure_path_async(path))  # type: ignore[misc]

    def _get_each(self, names: Sequence[str]) -> list[StoredBytes | None]:
        from kazoo.exceptions import NoNodeError

        paths = [self._paths(name) for name in names]
        if not paths:
            return []

        def ask(client: Any) -> list[Any]:
            # A server may be behind the others, unless it is asked to catch up first.
            return [client.sync_async(paths[0][0]), *(client.get_async(path) for some in paths for path in some)]

        found = iter(self._session.call_each(ask, NoNodeError)[1:])
        return [_joined([next(found) for _ in some]) for some in paths]

    def _replace(self, body: HeadBody, tag: int, chunks: Mapping[str, bytes]) -> int | None:
        nodes = [node for name, data in chunks.items() for node in self._cut(name, data)]
        for node in nodes[:-1]:  # of a chunk that is too large to go with the head
            if self._write([node], node) is None:
                return None
        head = _Node(self._at(HEAD), body.to_bytes())
        return self._write(nodes[-1:], head, lambda transaction: transaction.set_data(*head, tag))

    def _replace_claim(self, body: HeadBody, tag: int | None, before: HeadBody) -> int | None:
        head, own = _Node(self._at(HEAD), body.to_bytes()), body.name
        old = f"{_CLAIM}/{before.name}"
        is_old_there = tag is not None and self._exists(old) is not None

        def fill(transaction: Any) -> None:
            if tag is None:
                transaction.create(*head)
            else:
                transaction.set_data(*head, tag)
            if is_old_there:
                transaction.delete(self._at(old))
            transaction.create(self._at(f"{_CLAIM}/{own}"))
            transaction.create(self._at(f"{_ALIVE}/{own}"), ephemeral=True)

        version = self._version(fill, head)
        if version is not None:
            self._own = own
            self._show_life()  # if an earlier try has created the ephemeral node, in a session that is over
        return version

    def _put(self, name: str, data: bytes) -> None:
        node = _Node(self._at(name), data)
        self._write([node], node)  # refused: it is there, or the claim is not, which the next append finds

    def _names(self) -> list[str]:
        path = self._at(CHUNKS)
        return [f"{CHUNKS}/{name}" for name in self._session.call(lambda client: client.get_children_async(path)).value]

    def _remove(self, names: Sequence[str]) -> None:
        from kazoo.exceptions import NoNodeError

        paths = [self._at(name) for name in names]
        for at in range(0, len(paths), _OPERATIONS):
            some = paths[at : at + _OPERATIONS]

            def fill(transaction: Any, some: Sequence[str] = some) -> None:
                self._check(transaction)  # a driver that was replaced removes nothing more
                for path in some:
                    transaction.delete(path)

            cause = _cause(self._session.transaction(fill))
            if cause is not None and not isinstance(
                cause, NoNodeError
            ):  # an earlier try, or another driver, has removed it
                raise self._refused(cause)

    def _chunk_name(self, segment: SegmentName, first: int, size: int) -> str:
        name, parts = super()._chunk_name(segment, first, size), -(-size // self.part_bytes)
        return name if parts == 1 else f"{name}.{parts}"

    def _paths(self, name: str) -> list[str]:
        """Return the paths of the nodes of a chunk, or of the head."""
        parts, path = _PARTS.fullmatch(name), self._at(name)
        return [path] if parts is None else [f"{path}.{number}" for number in range(int(parts[1]))]

    def _cut(self, name: str, data: bytes) -> list[_Node]:
        step = self.part_bytes
        return [_Node(path, data[at * step : (at + 1) * step]) for at, path in enumerate(self._paths(name))]

    def _write(
        self, created: Sequence[_Node], last: _Node, at_last: Callable[[Any], None] = lambda _: None
    ) -> int | None:
        """Create nodes if the claim is there, then do what is `at_last`, which writes `last`; see `_version`."""

        def fill(transaction: Any) -> None:
            self._check(transaction)
            for node in created:
                transaction.create(*node)
            at_last(transaction)

        return self._version(fill, last)

    def _version(self, fill: Callable[[Any], None], last: _Node) -> int | None:
        """Carry out a transaction; return the version of the node that it writes, None if the log is not as it expects."""
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
        from kazoo.protocol.states import ZnodeStat

        answer = self._session.transaction(fill)
        cause = _cause(answer)
        if cause is None:
            versions = [result.version for result in answer.value if isinstance(result, ZnodeStat)]
            return int(versions[0]) if versions else 0
        if not isinstance(cause, (BadVersionError, NodeExistsError, NoNodeError)):
            raise self._refused(cause)
        found = _joined(self._session.call_each(lambda client: (client.get_async(last.path),), NoNodeError))
        is_done = answer.repeated and found is not None and found.data == last.data
        return int(found.tag) if found is not None and is_done else None

    def _show_life(self) -> None:
        """Create the ephemeral node again if it went with its session, unless another driver has claimed the log."""
        alive, own = self._at(f"{_ALIVE}/{self._own}"), self._own
        if not own:
            return
        try:
            found = self._session.call(lambda client: client.exists_async(alive)).value
            if self._own != own or (found is not None and found.ephemeralOwner == self._session.id):
                return

            def fill(transaction: Any) -> None:
                self._check(transaction)
                if found is not None:  # of a session before, whose end is not known everywhere
                    transaction.delete(alive)
                transaction.create(alive, ephemeral=True)

            self._session.transaction(fill)
        except LogError as error:  # the next connection tries again
            logger.debug("cannot say that the writer of %s is alive: %s", self._address, error)

    def _check(self, transaction: Any) -> None:
        transaction.check(self._at(f"{_CLAIM}/{self._own}"), -1)

    def _exists(self, name: str) -> Any:
        """Return facts of a node, None if there is none."""
        from kazoo.exceptions import NoNodeError

        path = self._at(name)
        # A server may be behind the others, unless it is asked to catch up first.
        _, found = self._session.call_each(
            lambda client: (client.sync_async(path), client.exists_async(path)), NoNodeError
        )
        return None if isinstance(found, NoNodeError) else found

    def _refused(self, error: Exception) -> LogError:
        return LogError(f"ZooKeeper refuses {self._address}: {error!r}")

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _warn_of_size(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "transaction log %s: the oldest part of its history is removed, although history= would keep it: "
                "ZooKeeper keeps every record in memory, so a log there has %d segments of up to 1,000. Ask for less, "
                "or keep the log in files, PostgreSQL or an object store",
                self._address, MOST_OLD,
            )  # fmt: skip


def _joined(parts: Sequence[Any]) -> StoredBytes | None:
    """Return what nodes hold together, with the version of the first; None if one is missing."""
    if any(isinstance(each, Exception) for each in parts):
        return None
    return StoredBytes(b"".join(data for data, _ in parts), parts[0][1].version)


def _cause(answer: PendingAnswer) -> Exception | None:
    """Return why a transaction was refused, None if it was not."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    errors = [each for each in answer.value if isinstance(each, Exception)]
    # The other operations have errors too.
    causes = [each for each in errors if not isinstance(each, (RolledBackError, RuntimeInconsistency))]
    return next(iter(causes or errors), None)
