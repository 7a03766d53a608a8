"""Calls to Redis: several in flight on each connection, sent again when a connection breaks.

A call that is sent again may run twice on the server. Reads and fenced writes of the same values allow that.

The Lua scripts of this process, by their digests. `fence.py` and `map.py`, which have them, say what they do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import count
from typing import Any, TypeVar

from states.redis.faults import is_moving, is_transient, refused
from states.redis.options import RedisOptions
from states.redis.packing import Command, pack
from trident.errors import ConfigError
from trident.servers.redis_server import driver, name_of
from trident.storekit import Retries

Result = TypeVar("Result")

_WINDOW = 8
"""Calls in flight on a connection: the server works on one while the next is packed and the last is read."""


@dataclass(eq=False)
class Call:
    """One command.

    `bucket`: the bucket whose slot it belongs to; below 0: none, and it is not sent again.
    `command`: the words of the command, or what makes them each time that it is sent.
    `take`: gets the answer; it may raise.
    `reads`: it writes nothing, so it may be sent to the target of a moving slot. A write waits until the slot has arrived,
    because the slot's owner may still have the old values.
    """

    bucket: int
    command: Command | Callable[[], Command]
    take: Callable[[Any], object]
    reads: bool = False

    def words(self) -> Command:
        """Return the words of the command as it is sent now."""
        return self.command if isinstance(self.command, tuple) else self.command()


class Link:
    """One connection to one server, and the calls on it whose answers are outstanding.

    `connection`: redis-py's, not connected yet.
    `name`: the server, for messages.
    `greet`: called with the link whenever a connection was made.
    """

    def __init__(self, connection: Any, name: str, greet: Callable[[Link], None]) -> None:
        self.name = name
        self.waiting: deque[Call] = deque()
        self._connection, self._greet = connection, greet
        self._connected = False

    @classmethod
    def to(cls, arguments: dict[str, Any], greet: Callable[[Link], None]) -> Link:
        """Return a link to the server of redis-py's arguments, not connected yet."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        others = {name: value for name, value in arguments.items() if name != "connection_class"}
        try:  # only `Wire` sends again
            connection = arguments["connection_class"](**{**others, "retry": Retry(NoBackoff(), 0)})
        except TypeError as error:
            raise ConfigError(f"the URL of a Redis state has a query that redis-py does not know: {error}") from error
        return cls(connection, name_of(arguments), greet)

    def open(self) -> None:
        """Connect, unless it is connected."""
        if not self._connected:
            self._connection.connect()
            self._connected = True
            self._greet(self)

    def send(self, *calls: Call) -> None:
        """Send calls over the open link; their answers are outstanding before the first byte is sent."""
        self.waiting.extend(calls)
        self._connection.send_packed_command([b"".join(pack(call.words()) for call in calls)], False)

    def read(self) -> Any:
        """Return the next answer, which may be an error of the server."""
        try:
            return self._connection.read_response()
        except driver().exceptions.ResponseError as error:
            return error

    def ask(self, *commands: Command) -> list[Any]:
        """Send commands and return their answers; an error of the server is an answer. Nothing else is outstanding."""
        self.open()
        try:
            self._connection.send_packed_command([b"".join(map(pack, commands))], False)
            return [self.read() for _ in commands]
        except BaseException:
            self.drop()  # outstanding answers would be taken for answers to later calls
            raise

    def drop(self) -> list[Call]:
        """Close the connection; return the calls without an answer."""
        lost = [call for call in self.waiting if call.bucket >= 0]
        self.waiting.clear()
        self._connected = False
        self._connection.disconnect()
        return lost


class Server:
    """The place of a state's buckets: all on one server. `states.redis.cluster.Cluster` is for several."""

    def __init__(self, one: Link) -> None:
        self.name, self._one, self._broken = one.name, one, 0

    def link(self, bucket: int) -> Link:
        """Return the connection to the server of a bucket."""
        return self._one

    def links(self) -> Sequence[Link]:
        """Return the connections in use."""
        return (self._one,)

    def primaries(self) -> Sequence[Link]:
        """Return one connection to each server that holds keys."""
        return (self._one,)

    def placement(self) -> Hashable:
        """Return which servers have the buckets; the result differs after a move, and this raises during one."""
        return self._broken

    def redirect(self, call: Call, error: Exception) -> None:
        """Send a call that a server refused to the one that has the keys; raise the error if there is none."""
        raise error

    def forget(self) -> None:
        """Close the connections, because something moved or broke; look for the buckets before the next call."""
        self._one.drop()
        self._broken += 1


class Wire:
    """Runs calls to their end, through lost connections.

    `servers`: where to send.
    `options`: how often to try, and how long to wait in between.
    """

    def __init__(self, servers: Server, options: RedisOptions) -> None:
        self.servers, self._at = servers, servers.name
        self._retries = Retries(options.retries, options.backoff_s, options.max_backoff_s)
        self._patience_s = options.timeout_s

    def run(self, doing: str, calls: Iterable[Call], renew: Callable[[], Iterable[Call]] | None = None) -> None:
        """Run all calls; the answers of one server are taken in the order of its calls.

        `doing`: for messages, such as "read 10 keys".
        `calls`: made one by one, a few before they are sent.
        `renew`: makes calls that must run before lost calls are sent again.
        Raises `BackendError`: a server refused or did not answer. Any of the calls may have run.
        """
        lost: deque[Call] = deque()
        source = iter(calls)
        broken = False

        def attempt() -> None:
            nonlocal broken
            if broken and renew is not None:
                self._attempt(iter(list(renew())), deque())
            broken = True
            self._attempt(_all(lost, source), lost)

        self.persist(doing, attempt)

    def persist(self, doing: str, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` returns; it is called again, on new connections, while they break."""
        waited_s = 0.0
        for failures in count(1):
            self._at = self.servers.name
            try:
                return attempt()
            except driver().exceptions.RedisError as error:
                transient = is_transient(error)
                if transient:
                    self.servers.forget()
                # A slot that is being moved, or a node that is replaced, takes longer than a broken connection.
                patient = is_moving(error) and waited_s < self._patience_s
                if not transient or (failures > self._retries.retries and not patient):
                    raise refused(error, doing, self._at) from error
            pause_s = self._retries.pause_s(failures)
            time.sleep(pause_s)
            waited_s += pause_s
        raise AssertionError("unreachable")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _attempt(self, calls: Iterator[Call], lost: deque[Call]) -> None:
        link: Link | None = None
        try:
            for call in calls:
                lost.append(call)  # until it is outstanding on a link
                link = None
                link = self.servers.link(call.bucket)
                link.open()
                lost.pop()
                link.send(call)
                if len(link.waiting) >= _WINDOW:
                    self._receive(link)
            while busy := [each for each in self.servers.links() if each.waiting]:
                for link in busy:
                    self._receive(link)
        except BaseException:
            # Outstanding answers would be taken for answers to later calls.
            for each in self.servers.links():
                if each.waiting or each is link:
                    lost.extend(each.drop())
            self._at = self.servers.name if link is None else link.name
            raise

    def _receive(self, link: Link) -> None:
        call, answer = link.waiting[0], link.read()
        if not isinstance(answer, Exception):
            call.take(answer)
        elif isinstance(answer, driver().exceptions.NoScriptError):
            link.send(Call(call.bucket, lambda: eval_of(call.words()), call.take))  # which also loads it
        else:
            self.servers.redirect(call, answer)
        link.waiting.popleft()


def _all(lost: deque[Call], source: Iterator[Call]) -> Iterator[Call]:
    while lost:
        yield lost.popleft()
    # Not `yield from`: an attempt that breaks closes this iterator, which must leave the rest of the source for the next.
    for call in source:  # noqa: UP028
        yield call


_LUA: dict[bytes, bytes] = {}


def script(source: str) -> bytes:
    """Return the digest of a Lua script, by which EVALSHA calls it."""
    text = source.encode()
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    _LUA[digest] = text
    return digest


def eval_of(command: Command) -> Command:
    """Return the EVAL that does what an EVALSHA does, for a server that has not seen the script."""
    _evalsha, digest, *rest = command
    return (b"EVAL", _LUA[digest], *rest)
