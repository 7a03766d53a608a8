"""Calls to the Redis that has the streams: what they raise, and what a driver does while it does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from trident.errors import SourceAwayError, SpoutError
from trident.servers.redis_server import RedisServer, driver, error_text, is_transient

_log = logging.getLogger(__name__)
T = TypeVar("T")

NOTHING = "0-0"
"""The id before that of any entry."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_SAY_EVERY_S = 60.0
_ADVICE = {
    "NOPERM": "grant the user the commands that docs/spouts/redis-streams.md lists, on these keys",
    "WRONGTYPE": "the key is used for something other than a stream",
    "MOVED": "the server is a node of a cluster, and the stream is on another one: give that one's address",
}


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisServerOptions(RedisServer):
    """The Redis that has the streams.

    `retries`: how often a worker tries a read again after a lost connection, before its batch fails and is tried again.
    """

    what: ClassVar[str] = "Redis stream"
    forms: ClassVar[str] = (
        "redis://host:port/database, rediss:// (TLS) or unix://path. A stream is on one server, so of a cluster give the "
        "server that has it"
    )

    retries: int = 3

    def client(self, retries: int = 0) -> Any:
        """Return a client, not connected yet, whose calls are sent again after a lost connection, `retries` times."""
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        redis, arguments = driver(), self.arguments()
        lost = [redis.ConnectionError, redis.TimeoutError]
        retry = Retry(ExponentialBackoff(cap=2.0, base=0.05), retries)
        return redis.Redis(connection_pool=redis.ConnectionPool(retry=retry, retry_on_error=lost, **arguments))


class ServerAway(SourceAwayError):
    """The server does not answer; the same call may succeed later."""


class Entry(NamedTuple):
    """An entry of a stream; one that was trimmed or deleted has no fields."""

    stream: str
    id: str
    fields: dict[bytes, bytes]

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it among all entries."""
        return self.stream, self.id


class StreamInfo(NamedTuple):
    """What a stream has now.

    `length`: how many entries.
    `first`, `last`: the id of the first one (None: the stream is empty), and the last id that was ever given.
    `added`: how many entries were ever added.
    `deleted`: the greatest id of an entry that was deleted by its id.
    """

    length: int
    first: str | None
    last: str
    added: int
    deleted: str = NOTHING

    def may_lack(self, id_: str) -> bool:
        """Whether an entry may be gone because it was trimmed or deleted, and not because the server lost it."""
        return self.first is None or order_of(self.first) > order_of(id_) or order_of(self.deleted) >= order_of(id_)

    def missing(self, after: str, read: int | None) -> int:
        """Say how many entries behind `after` are gone without having been read, as far as that can be known.

        Streams are trimmed from their beginning. So as long as the first entry is not behind `after`, nothing is missing;
        otherwise all that are there are unread, and the number of entries ever added says how many there should be. A negative
        number: more were read than were ever added to this stream, so it is another one.

        `read`: how many of all entries that were ever added come up to `after`; None: not known.
        """
        if read is None or (self.first is not None and order_of(self.first) <= order_of(after)):
            return 0
        return self.added - read - self.length


class StreamCalls:
    """A client, and what its calls raise.

    `retries`: how often a call is sent again after a lost connection.
    """

    def __init__(self, options: RedisServerOptions, retries: int = 0) -> None:
        self.place, self._client = options.place, options.client(retries)

    def call(self, doing: str, function: Callable[[Any], T]) -> T:
        """Call a function with the client; `SpoutError` says what was tried on which server, and what it found.

        Raises `ServerAway`: the server does not answer.
        """
        try:
            return function(self._client)
        except driver().RedisError as error:
            is_old = "unknown command" in str(error)
            more = "the server is older than Redis 7" if is_old else ""
            text = error_text(doing, self.place, error, _ADVICE, more)
            if not is_transient(error):
                raise SpoutError(text) from error
            self._client.connection_pool.disconnect()  # after a failover the old primary still answers, as a replica
            raise ServerAway(f"{text}; is the server up, and its address right?") from error

    def is_there(self, stream: str) -> bool:
        """Whether there is a stream; `SpoutError` for a key of another type."""
        # Not as `StreamServer` calls: this is for starts, which report what is wrong.
        kind = StreamCalls.call(self, f"looking for the stream {stream!r}", lambda client: client.type(stream))
        if kind not in (b"stream", b"none"):
            raise SpoutError(f"the key {stream!r} on Redis {self.place} is a {kind.decode()} and not a stream")
        return bool(kind == b"stream")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class StreamServer(StreamCalls):
    """The calls of a driver: it asks a server that is away again after growing pauses, and says so.

    `is_away`: whether the last call was not answered.
    """

    def __init__(self, options: RedisServerOptions) -> None:
        super().__init__(options)
        self.is_away = False
        self._pause_s, self._try_at, self._say_at = _FIRST_PAUSE_S, 0.0, 0.0

    def missing(self, streams: Iterable[str]) -> list[str]:
        """Return which streams are not there; at the start, when a server that does not answer is an error like others."""
        try:
            return [stream for stream in streams if not self.is_there(stream)]
        except ServerAway as error:
            raise SpoutError(str(error)) from error

    def call(self, doing: str, function: Callable[[Any], T]) -> T:
        """See `StreamCalls`; after a call without an answer, `ServerAway` without another one for a while."""
        if self.is_away and time.monotonic() < self._try_at:
            raise ServerAway(f"Redis {self.place} does not answer")
        try:
            result = super().call(doing, function)
        except ServerAway as error:
            now = time.monotonic()
            if now >= self._say_at:
                _log.warning("%s (it is tried again until the server answers)", error)
                self._say_at = now + _SAY_EVERY_S
            self.is_away, self._try_at = True, now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            raise
        if self.is_away:
            _log.warning("Redis %s answers again", self.place)
            self.is_away, self._pause_s, self._say_at = False, _FIRST_PAUSE_S, 0.0
        return result


def id_of(value: bytes | str) -> str:
    """Return an id as text."""
    return value.decode() if isinstance(value, bytes) else value


def order_of(id_: str) -> tuple[int, int]:
    """Return the two numbers of an id, by which entries are ordered."""
    time_ms, _, number = id_.partition("-")
    return int(time_ms), int(number or 0)
