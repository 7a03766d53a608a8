"""Connections to Memcached servers, and the server of each name. The only module that imports pymemcache.

Errors of the network and of the driver leave this module as `BackendError`, which names the server. A read is tried
again over a new connection; a write is not, because it is unknown whether it was done: the batch is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any, TypeVar
from zlib import crc32

from states.memcached.options import MemcachedOptions
from states.memcached.protocol import Item, Refusal, Replies, gets_command, store_commands
from trident.errors import BackendError, StoreAwayError
from trident.storekit import Retries, by_count, by_size, driver_package

T = TypeVar("T")
_TOKEN: Callable[[Item], bytes] = itemgetter(2)
_SLOTS = 4096
_FATAL = (b"ERROR", b"CLIENT_ERROR")


class MemcachedConnection:
    """One server.

    `name`: as it is written in the options.
    `tokens`: of the items that this connection read for the commit under way; None where there was none. They end with the
    connection: a server that restarted counts its tokens from the beginning.
    """

    def __init__(self, name: str, options: MemcachedOptions) -> None:
        self.name, self.tokens, driver = name, dict[bytes, bytes | None](), _driver()
        self._retries = Retries(options.retries, options.backoff_s, options.max_backoff_s)
        self._broken: tuple[type[Exception], ...] = (OSError, driver.exceptions.MemcacheError)
        self._errors = (*self._broken, Refusal)
        self._away: tuple[type[Exception], ...] = (OSError, driver.exceptions.MemcacheUnexpectedCloseError)
        self._client: Any = driver.client.base.Client(
            name, connect_timeout=options.connect_timeout_s, timeout=options.timeout_s, no_delay=True
        )
        self._replies = Replies(self._receive)

    def gets(self, names: Sequence[bytes]) -> dict[bytes, Item]:
        def ask() -> dict[bytes, Item]:
            self._send(gets_command(names))
            return self._replies.items()

        return self._read(f"read {len(names)} names", ask)

    def remember(self, names: Sequence[bytes], found: dict[bytes, Item]) -> None:
        """Keep the tokens of items just read."""
        if len(found) < len(names):
            self.tokens.update(dict.fromkeys(names))
        self.tokens.update(zip(found, map(_TOKEN, found.values()), strict=True))

    def statistics(self, *of: str) -> dict[bytes, Any]:
        """Return what `stats` says."""

        def ask() -> dict[bytes, Any]:
            self._connect()
            return dict(self._client.stats(*of))

        return self._read("read the statistics", ask)

    def write(
        self,
        names: Sequence[bytes],
        flags: bytes,
        expiration: bytes,
        values: Sequence[bytes],
        tokens: Sequence[bytes | None],
    ) -> list[bytes]:
        """Store items and return one reply for each: `STORED`, or why not; the token None: there must be no such item.

        All are sent before the replies are read, so the caller bounds how many there are: what the server answers
        must find room in the buffers on the way.
        """
        data = store_commands(names, flags, expiration, values, tokens)
        return self._command(f"write {len(names)} names", data, len(names))

    def put(self, name: bytes, flags: bytes, data: bytes) -> None:
        """Store an item, whatever is there."""
        (reply,) = self.set_many(flags, b"0", [(name, data)])
        if reply != b"STORED":
            raise BackendError(f"write {name.decode()} to memcached server {self.name}: {reply.decode()}")

    def delete(self, names: Sequence[bytes]) -> None:
        if not names:
            return
        data = b"".join(b"delete %b\r\n" % name for name in names)
        for name, reply in zip(names, self._command(f"delete {len(names)} names", data, len(names)), strict=True):
            if reply not in (b"DELETED", b"NOT_FOUND"):
                raise BackendError(f"delete {name.decode()} on memcached server {self.name}: {reply.decode()}")

    def set_many(self, flags: bytes, expiration: bytes, entries: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Store items whatever is there, and return one reply for each."""
        parts = [
            part
            for name, data in entries
            for part in (b"set %b %b %b %d\r\n" % (name, flags, expiration, len(data)), data, b"\r\n")
        ]
        return self._command(f"write {len(entries)} names", b"".join(parts), len(entries))

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._client.close()
        self.tokens.clear()
        self._replies = Replies(self._receive)

    def _command(self, what: str, data: bytes, count: int) -> list[bytes]:
        try:
            self._send(data)
            lines = self._replies.lines(count)
            for line in lines:
                if line.startswith(_FATAL):
                    raise Refusal(line.decode("ascii", "backslashreplace"))
            return lines
        except self._errors as error:
            self.close()
            raise self._failed(what, error) from error

    def _read(self, what: str, ask: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return ask()
            except self._errors:
                self.close()
                raise

        try:
            return self._retries.run(attempt, self._broken)
        except self._errors as error:
            raise self._failed(what, error) from error

    def _connect(self) -> Any:
        if self._client.sock is None:
            self._client.version()  # connects, and hears whether it is a Memcached that answers
        return self._client.sock

    def _send(self, data: bytes) -> None:
        self._connect().sendall(data)

    def _receive(self, size: int) -> bytes:
        received: bytes = self._client.sock.recv(size)
        return received

    def _failed(self, what: str, error: Exception) -> BackendError:
        reason = str(error) or type(error).__name__
        message = (
            f"cannot {what} on memcached server {self.name}: {reason}. Whether a write was done is unknown; the batch "
            "may be replayed once the server answers"
        )
        return (
            StoreAwayError(message, f"Memcached at {self.name}")
            if isinstance(error, self._away)
            else BackendError(message)
        )


class Servers:
    """All servers of a state, and the server of each name.

    A name falls into one of 4,096 slots, and each slot to a server by rendezvous hashing: adding or removing one server
    moves only the slots that it gets or had.
    """

    def __init__(self, options: MemcachedOptions) -> None:
        self.connections = [MemcachedConnection(name, options) for name in options.servers]
        self._slots = _slots(options.servers)
        self._most_keys, self._most_bytes = options.max_keys_per_call, options.max_bytes_per_call

    def of(self, name: bytes) -> MemcachedConnection:
        return self.connections[self._slots[crc32(name) % _SLOTS]]

    def chunks(
        self, names: Sequence[bytes], values: Sequence[bytes] | None = None
    ) -> Iterator[tuple[MemcachedConnection, Sequence[int]]]:
        """Iterate over the places in the list of what one request takes, of names or of values to write, server by server."""
        places: list[list[int]] = [[] for _ in self.connections]
        if len(places) == 1:
            places[0] = list(range(len(names)))
        else:
            slots = self._slots
            for at, name in enumerate(names):
                places[slots[crc32(name) % _SLOTS]].append(at)
        for connection, mine in zip(self.connections, places, strict=True):
            if values is None or not mine:
                chunks = by_count(mine, self._most_keys)
            else:
                chunks = by_size(mine, (len(values[at]) for at in mine), self._most_keys, self._most_bytes)
            yield from ((connection, chunk) for chunk in chunks)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@cache
def _driver() -> Any:
    with driver_package("Memcached", "pymemcache", "memcached"):
        import pymemcache.client.base
    return pymemcache


@lru_cache(maxsize=16)
def _slots(servers: tuple[str, ...]) -> tuple[int, ...]:
    """Return the place in `servers` of each slot's server. The order of the servers does not matter to who has it."""

    def score(server: str, slot: int) -> tuple[bytes, str]:
        return blake2b(f"{server}-{slot}".encode(), digest_size=8).digest(), server

    return tuple(servers.index(max(servers, key=lambda server: score(server, slot))) for slot in range(_SLOTS))
