"""Calls to Redis servers: packed by hiredis, several in flight on each connection, sent again when a connection breaks.

A call that is sent again may run twice on the server. Reads and fenced writes of the same values allow that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from states._redis_errors import driver, is_transient, refused
from states._redis_options import RedisOptions
from states._redis_scripts import eval_of
from trident.errors import BackendError

__all__ = ["Call", "Exchange", "Link", "Servers"]

_WINDOW = 8
"""Calls in flight on a connection: the server works on one while the next is packed and the last is read."""


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
    """

    bucket: int
    command: Callable[[], tuple[Any, ...]]
    take: Callable[[Any], None]


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

    def forget(self) -> None:
        """Something moved or broke: find out anew where the buckets live."""


class Exchange:
    """Runs calls to their end, through lost connections.

    Parameters
    ----------
    servers
        Where to.
    options
        How often, and how long to wait in between.
    """

    def __init__(self, servers: Servers, options: RedisOptions) -> None:
        from redis.backoff import ExponentialWithJitterBackoff
        from redis.retry import Retry

        self._servers = servers
        backoff = ExponentialWithJitterBackoff(cap=options.max_backoff_s, base=options.backoff_s)
        self._retry: Any = Retry(backoff, options.retries, (_TransientError,))

    def run(self, doing: str, calls: Iterable[Call], renew: Callable[[], Iterable[Call]] | None = None) -> None:
        """Run all calls; their answers are taken in no certain order, but in the order of the calls on each server.

        Parameters
        ----------
        doing
            For messages: "read 10 keys".
        calls
            Made one by one, a few before they are sent.
        renew
            Makes calls that must run before lost calls are sent again.

        Raises
        ------
        BackendError
            A server refused or did not answer. Any of the calls may have run.
        """
        lost: deque[Call] = deque()
        source = iter(calls)
        broken = False

        def attempt() -> None:
            nonlocal broken
            if broken and renew is not None:
                self._attempt(doing, iter(list(renew())), deque())
            broken = True
            self._attempt(doing, _all(lost, source), lost)

        try:
            self._retry.call_with_retry(attempt, lambda _error: self._servers.forget())
        except _TransientError as error:
            raise error.refused from error.__cause__

    def each(self, doing: str, command: Callable[[Link], Any], links: Callable[[], Sequence[Link]]) -> list[Any]:
        """Call `command` with each link, all of them again where a connection breaks; return what it returned."""

        def attempt() -> list[Any]:
            link: Link | None = None
            results = []
            try:
                for link in links():
                    results.append(command(link))
            except BaseException as error:
                if link is not None:
                    link.drop()
                raise self._translated(error, doing, link) from error
            return results

        try:
            return list(self._retry.call_with_retry(attempt, lambda _error: self._servers.forget()))
        except _TransientError as error:
            raise error.refused from error.__cause__

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _attempt(self, doing: str, calls: Iterator[Call], lost: deque[Call]) -> None:
        link: Link | None = None
        try:
            for call in calls:
                lost.append(call)  # until it is outstanding on a link
                link = None
                link = self._servers.link(call.bucket)
                link.open()
                lost.pop()
                link.send(call)
                if len(link.waiting) >= _WINDOW:
                    self._receive(link)
            while busy := [each for each in self._servers.links() if each.waiting]:
                for link in busy:
                    self._receive(link)
        except BaseException as error:
            # What is still outstanding would be taken for the answers of later calls.
            for each in self._servers.links():
                if each.waiting or each is link:
                    lost.extend(each.drop())
            raise self._translated(error, doing, link) from error

    def _receive(self, link: Link) -> None:
        call, answer = link.waiting[0], link.read()
        if not isinstance(answer, Exception):
            call.take(answer)
            link.waiting.popleft()
            return
        errors = driver().exceptions
        if isinstance(answer, errors.NoScriptError):
            link.send(Call(call.bucket, lambda: eval_of(call.command()), call.take))  # which also loads it
        elif type(answer) is errors.AskError:
            # The slot is being moved, and this key has moved already.
            moved: Any = answer
            target = self._servers.link_at(moved.host, moved.port)
            target.open()
            target.send(call, asking=True)
        else:
            raise answer
        link.waiting.popleft()

    def _translated(self, error: BaseException, doing: str, link: Link | None) -> BaseException:
        if not isinstance(error, driver().exceptions.RedisError):
            return error
        shown = refused(error, doing, self._servers.name if link is None else link.name)
        return _TransientError(shown) if is_transient(error) else shown


class _TransientError(Exception):
    """Worth another try on a new connection. Stays inside."""

    def __init__(self, refused: BackendError) -> None:
        super().__init__(refused)
        self.refused = refused


def _all(lost: deque[Call], source: Iterator[Call]) -> Iterator[Call]:
    while lost:
        yield lost.popleft()
    # Not `yield from`: an attempt that breaks closes this iterator, which must leave the rest of the source for the next.
    for call in source:  # noqa: UP028
        yield call
