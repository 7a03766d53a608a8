"""One connection to a Redis server, with calls packed by hiredis and several of them in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from states.redis.faults import driver

__all__ = ["Call", "Link", "Servers"]


@dataclass(eq=False)
class Call:
    """One command.

    Attributes
    ----------
    bucket
        Whose slot it belongs to.
    command
        Makes the command's parts, each time that it is sent.
    take
        Gets the answer; it may raise.
    reads
        It writes nothing, so it may be asked where a slot is being moved to. A write waits until the slot has arrived:
        written there, it would lie beside what the slot's owner still has.
    """

    bucket: int
    command: Callable[[], tuple[Any, ...]]
    take: Callable[[Any], None]
    reads: bool = False


_ASKING = Call(-1, lambda: (b"ASKING",), lambda _answer: None)


class Link:
    """One connection to one server, and the calls on it whose answers are outstanding.

    Parameters
    ----------
    connection
        redis-py's, not connected yet.
    name
        The server, for messages.
    greet
        Called with the link whenever a connection was made.
    """

    def __init__(self, connection: Any, name: str, greet: Callable[[Link], None]) -> None:
        import hiredis

        self.name = name
        self.waiting: deque[Call] = deque()
        self._connection, self._greet, self._pack = connection, greet, hiredis.pack_command
        self._connected = False

    def open(self) -> None:
        """Connect, unless it is connected."""
        if not self._connected:
            self._connection.connect()
            self._connected = True
            self._greet(self)

    def send(self, call: Call, asking: bool = False) -> None:
        """Send a call over the open link; its answer is outstanding from before the first byte goes out."""
        calls = (_ASKING, call) if asking else (call,)
        self.waiting.extend(calls)
        self._connection.send_packed_command([b"".join(self._pack(each.command()) for each in calls)], False)

    def read(self) -> Any:
        """Return the next answer, which may be an error of the server."""
        errors = driver().exceptions
        try:
            return self._connection.read_response()
        except errors.ResponseError as error:
            return error

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands and return their answers; an error of the server is an answer. Nothing else is outstanding."""
        self.open()
        self._connection.send_packed_command([b"".join(map(self._pack, commands))], False)
        return [self.read() for _ in commands]

    def drop(self) -> list[Call]:
        """Close the connection; return the calls without an answer."""
        lost = [call for call in self.waiting if call is not _ASKING]
        self.waiting.clear()
        self._connected = False
        self._connection.disconnect()
        return lost


class Servers(Protocol):
    """Where the buckets live: one server, or a cluster."""

    name: str

    def link(self, bucket: int) -> Link:
        """Return the connection to the server of a bucket."""

    def link_at(self, host: str, port: int) -> Link:
        """Return the connection to a server that another one named."""

    def links(self) -> Sequence[Link]:
        """Return the connections in use."""

    def primaries(self) -> Sequence[Link]:
        """Return one connection to each server that holds keys."""

    def placement(self) -> Hashable:
        """Return which servers have the buckets, something else whenever one was moved; an error while one is."""

    def forget(self) -> None:
        """Something moved or broke: find out anew where the buckets live."""
