"""Who may write a log in ZooKeeper.

A driver becomes the writer by one transaction that removes the claim of the one before it and creates its own. The name
of a claim has its epoch and an id of its own. Every append is a transaction that checks that the claim is there, so
an append of a driver that was replaced does nothing, whatever that driver knows.

The claim outlasts the session; an ephemeral node beside it shows whether the writer is alive. After a process was
killed, that node stays until the session ends, so a process of the same machine is looked for as well.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any

from trident.coordination import holders
from trident.coordination.zookeeper_nodes import (
    SESSION_S,
    ClaimName,
    LogNodes,
    ZooKeeperConnection,
    claim_of,
    segment_of,
)
from trident.errors import AlreadyRunningError, FencedError, LogError, LogHeldError

logger = logging.getLogger(__name__)

_held_here: set[str] = set()


class ZooKeeperClaim:
    """The right to write the log of a path as epoch `epoch`, until another driver claims it."""

    def __init__(self, connection: ZooKeeperConnection, nodes: LogNodes, name: ClaimName) -> None:
        self.name, self.epoch = name, name.epoch
        self.path, self._alive = f"{nodes.claim}/{name.node}", f"{nodes.alive}/{name.node}"
        self._connection, self._nodes = connection, nodes
        self._released = False
        _held_here.add(name.id)
        connection.on_session(self._show_life)

    @classmethod
    def take(
        cls, connection: ZooKeeperConnection, nodes: LogNodes, takeover: bool, clock: Callable[[], float]
    ) -> ZooKeeperClaim:
        """Claim the next epoch.

        Raises `LogHeldError`: another process is the writer and `takeover` is False, or it claimed the log at the same time.
        """
        before, version = _claims(connection, nodes)
        if before and not takeover and (holder := _holder(connection, nodes, before[-1], wait=True)) is not None:
            here = before[-1].id in _held_here
            raise (AlreadyRunningError if here else LogHeldError)(str(connection.address), holder)
        newest = segment_of(_data(connection, nodes.segments).decode())
        epoch = 1 + max([each.epoch for each in before] + ([] if newest is None else [newest.epoch]), default=0)
        name = ClaimName(epoch, secrets.token_hex(8))
        about = json.dumps(holders.about(epoch, clock)).encode()

        def fill(transaction: Any) -> None:
            transaction.set_data(nodes.claim, about, version)
            for each in before:
                transaction.delete(f"{nodes.claim}/{each.node}")
            transaction.create(f"{nodes.claim}/{name.node}", about)
            transaction.create(f"{nodes.alive}/{name.node}", ephemeral=True)

        answer = connection.transaction(fill)
        if any(isinstance(result, Exception) for result in answer.value) and name not in _claims(connection, nodes)[0]:
            now, _ = _claims(connection, nodes)
            other = _describe(connection, nodes, now[-1]) if now else "another driver"
            raise LogHeldError(str(connection.address), other)
        return cls(connection, nodes, name)

    def check(self) -> None:
        """Raise `FencedError` unless this is still the claim."""
        if not self._is_there():
            raise self.fenced()

    def fenced(self) -> FencedError:
        """Return the error that names the driver that has taken over."""
        now, _ = _claims(self._connection, self._nodes)
        if now and now[-1].epoch > self.epoch:
            successor = _describe(self._connection, self._nodes, now[-1])
        else:
            successor = f"an unknown driver: the claim {self.name.node} is gone (was the log removed?)"
        return FencedError(f"transaction log {self._connection.address}", f"epoch {self.epoch}", successor)

    def release(self) -> None:
        """Say that the writer has ended. The claim stays, because epochs are never used twice."""
        self.abandon()
        self._connection.on_session(None)

    def abandon(self) -> None:
        """Forget the claim, in a forked child as well."""
        self._released = True
        _held_here.discard(self.name.id)

    def _is_there(self) -> bool:
        from kazoo.exceptions import NoNodeError

        # A server may be behind the others, unless it is asked to catch up first.
        _, found = self._connection.call_each(
            lambda client: (client.sync_async(self.path), client.exists_async(self.path)), NoNodeError
        )
        return found is not None and not isinstance(found, Exception)

    def _show_life(self) -> None:
        """Create the ephemeral node again if it went with its session, unless another driver has claimed the log."""
        from kazoo.exceptions import KazooException

        alive = self._alive
        try:
            found = self._connection.call(lambda client: client.exists_async(alive)).value
            if self._released or (found is not None and found.ephemeralOwner == self._connection.id):
                return

            def fill(transaction: Any) -> None:
                transaction.check(self.path, -1)
                if found is not None:  # of a session before, whose end is not known everywhere
                    transaction.delete(alive)
                transaction.create(alive, ephemeral=True)

            self._connection.transaction(fill)
        except (KazooException, LogError) as error:  # the next connection tries again
            logger.debug("cannot say that the writer of %s is alive: %s", self._connection.address, error)


def held_by(connection: ZooKeeperConnection, nodes: LogNodes) -> str | None:
    """Say who writes the log now; None if that driver has ended."""
    claims, _ = _claims(connection, nodes)
    return _holder(connection, nodes, claims[-1], wait=False) if claims else None


def _holder(connection: ZooKeeperConnection, nodes: LogNodes, claim: ClaimName, wait: bool) -> str | None:
    """Say who holds a claim; None if its holder has ended. With `wait`, wait for the end of a session that may be dead."""
    alive, gone = f"{nodes.alive}/{claim.node}", threading.Event()
    found = connection.call(lambda client: client.exists_async(alive, watch=lambda event: gone.set())).value
    if found is None:
        return None
    running = claim.id in _held_here or holders.is_running(_read(connection, nodes, claim))
    if running is None and wait:
        holder = _describe(connection, nodes, claim)
        logger.warning(
            "transaction log %s was written by %s; waiting up to %g seconds for the end of its session",
            connection.address, holder, SESSION_S,
        )  # fmt: skip
        if gone.wait(SESSION_S + 1):
            return None
    return None if running is False else _describe(connection, nodes, claim)


def _claims(connection: ZooKeeperConnection, nodes: LogNodes) -> tuple[list[ClaimName], int]:
    """Return the claims, ascending, and the version that orders them."""
    from kazoo.exceptions import NoNodeError

    try:
        children, stat = connection.call(lambda client: client.get_children_async(nodes.claim, include_data=True)).value
    except NoNodeError:
        return [], -1
    return sorted(claim for each in children if (claim := claim_of(each)) is not None), stat.version


def _data(connection: ZooKeeperConnection, path: str) -> bytes:
    from kazoo.exceptions import NoNodeError

    try:
        return bytes(connection.call(lambda client: client.get_async(path)).value[0])
    except NoNodeError:
        return b""


def _read(connection: ZooKeeperConnection, nodes: LogNodes, claim: ClaimName) -> dict[str, Any]:
    return holders.read(_data(connection, f"{nodes.claim}/{claim.node}"))


def _describe(connection: ZooKeeperConnection, nodes: LogNodes, claim: ClaimName) -> str:
    return holders.described(_read(connection, nodes, claim), claim.epoch)
