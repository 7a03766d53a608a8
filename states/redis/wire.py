"""Calls to Redis: as bytes, several in flight on each connection, sent again when a connection breaks.

A call that is sent again may run twice on the server. Reads and fenced writes of the same values allow that. The errors of
redis-py leave this module as errors of `trident.errors`; the answers of the server are read by hiredis.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from itertools import count, islice
from operator import attrgetter
from typing import Any, TypeVar

from states.redis.options import RedisOptions
from trident.errors import BackendError, ConfigError, StoreAwayError
from trident.servers import redis_server
from trident.servers.redis_server import code_of, driver, error_text, name_of
from trident.storekit import Retries

Result = TypeVar("Result")

Command = tuple[Any, ...]  # the words of a command: bytes, texts, whole numbers, and `Words`
_HEADS = [b"\r\n$%d\r\n" % size for size in range(1024)]
_PAGE, _START, _PASSES = 1000, b"0", 5  # of a listing
_WAITING = attrgetter("waiting")
_WINDOW = 8  # calls in flight on a connection: the server works on one while the next is packed and the last is read
_LUA: dict[bytes, bytes] = {}
_MOVING = frozenset({"TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK"})
_AWAY = frozenset({"", "READONLY", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS"})
"""A server that is out of reach, or that cannot serve for a while; no code: nothing answered."""

_LATER = frozenset({"OOM", "MISCONF", "NOREPLICAS"})
_ADVICE = {
    "NOPERM": "grant the user the commands and keys that docs/states/redis.md lists",
    "WRONGTYPE": "the key is used for something else: give the state another prefix, or delete the key",
    "CROSSSLOT": "the server is a cluster: use redis+cluster:// or cluster=True",
    "MOVED": "the server is a node of a cluster: use redis+cluster:// or cluster=True; if that is given, its slots are being "
    "moved: wait until they have arrived",
}
_LOST = "is the server up, can it be reached, and is its address right?"


class Words:
    """Many words, packed: for each the end of the line before, its length, and itself."""

    __slots__ = ("count", "packed")

    def __init__(self, words: Sequence[bytes]) -> None:
        pieces = [b""] * (2 * len(words))
        pieces[::2], pieces[1::2] = _heads(words), words
        self.count, self.packed = len(words), b"".join(pieces)


class Each:
    """A command for each of many words, whose other words are the same; packed, as `Words`."""

    __slots__ = ("count", "packed")

    def __init__(self, name: bytes, words: Sequence[bytes], rest: Words) -> None:
        start, end = b"*%d%b" % (2 + rest.count, Words([name]).packed), rest.packed + b"\r\n"
        pieces = [start, b"", b"", end] * len(words)
        pieces[1::4], pieces[2::4] = _heads(words), words
        self.count, self.packed = len(words), b"".join(pieces)


def _heads(words: Sequence[bytes]) -> Iterable[bytes]:
    sizes = list(map(len, words))
    return map(_HEADS.__getitem__ if max(sizes, default=0) < len(_HEADS) else b"\r\n$%d\r\n".__mod__, sizes)


def pack(command: Command | Each) -> bytes:
    if isinstance(command, Each):
        return command.packed
    parts = [
        word if type(word) is Words else Words([word if isinstance(word, bytes) else str(word).encode()])
        for word in command
    ]
    return b"*%d%b\r\n" % (sum(part.count for part in parts), b"".join(part.packed for part in parts))


@dataclass(eq=False)
class Call:
    """One command.

    `bucket`: the bucket whose slot it belongs to; below 0: none, and it is not sent again.
    `command`: the words of the command, or what makes them each time that it is sent. Of an `Each` the answer is a list.
    `take`: gets the answer; it may raise.
    `reads`: it writes nothing, so it may be sent to the target of a moving slot. A write waits until the slot has arrived,
    because the slot's owner may still have the old values.
    """

    bucket: int
    command: Command | Each | Callable[[], Command]
    take: Callable[[Any], object]
    reads: bool = False

    def words(self) -> Command | Each:
        return self.command if isinstance(self.command, (tuple, Each)) else self.command()


class Link:
    """One connection to one server, and the calls on it whose answers are outstanding; `greet` is called when it was made."""

    def __init__(self, connection: Any, name: str, greet: Callable[[Link], None]) -> None:
        self.name = name
        self.waiting: deque[Call] = deque()
        self._connection, self._greet = connection, greet
        self._connected = False
        # The answers that have come, as hiredis itself gives them.
        self._come: Callable[[], Iterator[Any]] | None = None

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
        if not self._connected:
            self._connection.connect()
            self._connected = True
            self._greet(self)
            try:  # redis-py takes longer for an answer than the server, and has no public way past that
                gets = self._connection._parser._reader.gets  # noqa: SLF001
                self._come = partial(iter, gets, gets())
            except AttributeError:  # another release, which has it elsewhere
                self._come = None

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

    def read_all(self, count: int) -> Any:
        """Return the list of the next answers, or the error of the server that is among them."""
        answers: list[Any] = []
        while len(answers) < count:
            answers.append(self.read())
            if self._come is not None:
                answers += islice(self._come(), count - len(answers))
        if any(issubclass(kind, Exception) for kind in set(map(type, answers))):
            return next(answer for answer in answers if isinstance(answer, Exception))
        return answers

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
        return self._one

    def links(self) -> Collection[Link]:
        """Return the connections in use; those that are made later are in it, too."""
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
    """Runs calls to their end, through lost connections."""

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

    def ask(self, doing: str, commands: Iterable[Command], reads: bool = True) -> list[Any]:
        """Run a command for each bucket, from the first one on; return the answers, in their order."""
        answers = dict[int, Any]()
        self.run(
            doing, [Call(at, command, partial(answers.__setitem__, at), reads) for at, command in enumerate(commands)]
        )
        return [answers[at] for at in range(len(answers))]

    def ask_each(self, doing: str, command: Command, buckets: int, among: Container[str]) -> dict[str, Any]:
        """Ask each server of so many buckets that is `among` these, all at once; return its answer, by its name."""
        answers, link = dict[str, Any](), self.servers.link

        def take(bucket: int, answer: Any) -> None:
            answers[link(bucket).name] = answer

        one_of_each = self.persist(doing, lambda: {link(bucket).name: bucket for bucket in reversed(range(buckets))})
        asked = [bucket for name, bucket in one_of_each.items() if name in among]
        self.run(doing, [Call(bucket, command, partial(take, bucket), reads=True) for bucket in asked])
        return answers

    def persist(self, doing: str, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` returns; it is called again, on new connections, while they break."""
        waited_s = 0.0
        for failures in count(1):
            self._at = self.servers.name
            try:
                return attempt()
            except driver().exceptions.RedisError as error:
                transient = _is_transient(error)
                if transient:
                    self.servers.forget()
                # A slot that is being moved, or a node that is replaced, takes longer than a broken connection.
                patient = _is_moving(error) and waited_s < self._patience_s
                if not transient or (failures > self._retries.retries and not patient):
                    raise _backend_error(error, doing, self._at) from error
            pause_s = self._retries.pause_s(failures)
            time.sleep(pause_s)
            waited_s += pause_s
        raise AssertionError("unreachable")

    def names(self, doing: str, match: tuple[bytes, ...]) -> Iterator[list[bytes]]:
        """Iterate over pages of the names that match, as SCAN is told; a name may occur twice, and others may occur too.

        A cursor is valid in one server process only, and a key may move to a server that was listed already. So if a
        connection broke or a slot was moved meanwhile, everything is listed once more.
        """
        for _ in range(_PASSES):
            before = self.persist(doing, self.servers.placement)
            for name in self.persist(doing, lambda: [link.name for link in self.servers.primaries()]):
                yield from self._names_of(name, match, doing)
            if self.persist(doing, self.servers.placement) == before:
                return
        raise BackendError(f"{doing}: slots were moved or connections broke each of {_PASSES} times; list them again")

    def _names_of(self, server: str, match: tuple[bytes, ...], doing: str) -> Iterator[list[bytes]]:
        cursor = _START

        def page() -> tuple[bytes, list[bytes]] | None:
            for link in self.servers.primaries():
                if link.name == server:
                    (answer,) = link.ask((b"SCAN", cursor, *match, b"COUNT", _PAGE))
                    if isinstance(answer, Exception):
                        raise answer
                    return answer[0], answer[1]
            return None  # it has left the cluster, so there will be another pass

        while (found := self.persist(doing, page)) is not None:
            cursor, names = found
            yield names
            if cursor == _START:
                return

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
            links = self.servers.links()
            while busy := list(filter(_WAITING, links)):
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
        call = link.waiting[0]
        answer = link.read_all(call.command.count) if isinstance(call.command, Each) else link.read()
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


def script(source: str) -> bytes:
    """Return the digest of a Lua script, by which EVALSHA calls it."""
    text = source.encode()
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    _LUA[digest] = text
    return digest


def eval_of(command: Any) -> Command:
    """Return the EVAL that does what an EVALSHA does, for a server that has not seen the script."""
    _evalsha, digest, *rest = command
    return (b"EVAL", _LUA[digest], *rest)


def _is_transient(error: Exception) -> bool:
    """Whether the same call may succeed a moment later, on a new connection, perhaps to another node."""
    return redis_server.is_transient(error) or _is_moving(error)


def _is_moving(error: Exception) -> bool:
    """Whether a cluster is moving slots or replacing a node, which takes seconds."""
    return code_of(error) in _MOVING


def _backend_error(error: Exception, doing: str, server: str) -> BackendError:
    """Return the error of a call that failed for good. It names neither user nor password."""
    code = code_of(error)
    retryable = _is_transient(error) or code in _LATER
    default = _LOST if retryable else "nothing can be read or written before this is fixed"
    message = error_text(doing, server, error, _ADVICE, default)
    if retryable and code in _AWAY:
        return StoreAwayError(message, f"Redis at {server}")
    return BackendError(message, retryable)
