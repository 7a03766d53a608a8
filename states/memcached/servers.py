"""Memcached's servers: their options, the connection to each, its text protocol in bulk, and the server of each name.

pymemcache, which this module alone imports, connects; it sends one `cas` a round trip and reads replies line by line, so
requests of many keys are framed here. A reply is cut by the length that its head line gives, never by what is in it.

Errors leave this module as `BackendError`. A read is tried again over a new connection; a write is not, because it is unknown
whether it was done: the batch is replayed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeVar
from zlib import crc32

from trident.errors import BackendError, StoreAwayError
from trident.state.interfaces import Key
from trident.storekit import Expiring, Retries, ServerCalls, by_count, by_size, driver_package, seconds, whole

T = TypeVar("T")
_SLOTS = 4096
_FATAL = (b"ERROR", b"CLIENT_ERROR")
_CRLF = b"\r\n"
_VALUE = b"VALUE "
_RECEIVE_BYTES = 1 << 18
_LONGEST_LINE = 1 << 11
_SERVER = re.compile(r"(unix:|/).+|\[.+\]|[^:/\s]+|[^/\s]+:\d+")
_ENDED = re.compile(rb"(?:\A|\n)(?:END|\w*ERROR[^\n]*)\r\n\Z").search


@dataclass(frozen=True, repr=False, kw_only=True)
class MemcachedOptions(ServerCalls, Expiring):
    """How a Memcached state is stored; the other options are in `ServerCalls`, `Expiring` and `MapOptions`.

    Attributes
    ----------
    servers
        `host:port` of each server, or the path of its Unix socket. A key is on one of them, chosen by rendezvous
        hashing; a state that was written with another list is refused.
    prefix
        What every key starts with; None: `topology/state`.
    allow_eviction
        True: evictions are only warned of, and the state goes on with what is left. False: they fail the batch with
        `StateLossDetected`.
    retries
        Of reads, over a new connection. A write is not sent again: the batch is replayed.
    """

    store: ClassVar[str] = "Memcached"
    longest_ttl_s: ClassVar[int | None] = 30 * 24 * 60 * 60  # the server takes a larger number for a date

    servers: tuple[str, ...] = field(default=("127.0.0.1:11211",), kw_only=False)
    prefix: str | None = None
    allow_eviction: bool = False
    max_keys_per_call: int = whole(1000, 1, 10_000)
    max_bytes_per_call: int = whole(1 << 20, 1)
    connect_timeout_s: float = seconds(3.0)
    timeout_s: float = seconds(5.0)
    retries: int = whole(2, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = {*self.servers}
        if not names or len(names) != len(self.servers) or not all(map(_SERVER.fullmatch, names)):
            raise self.refused("servers", "give at least one host:port, and each once")

    @classmethod
    def target(cls, given: Any) -> Any:
        names = given.split(",") if isinstance(given, str) else given
        is_list = isinstance(names, (list, tuple)) and {str}.issuperset(map(type, names))
        return tuple(name.strip() for name in names) if is_list else given


class Refusal(Exception):
    """A reply that is an error of the server, or no reply of this protocol. The connection cannot be used further."""


class Item(NamedTuple):
    """A stored item: client flags, value, and the token that changes with every write of the item."""

    flags: bytes
    data: bytes
    token: bytes


def gets_command(names: Iterable[bytes]) -> bytes:
    return b"gets " + b" ".join(names) + _CRLF


def store_commands(
    names: Sequence[bytes],
    flags: bytes,
    expiration: bytes,
    values: Sequence[bytes],
    tokens: Sequence[bytes | None] | None,
) -> bytes:
    """Store each item if its token still stands; one without a token if there is no such item; without tokens, anyway."""
    settings, sizes = b" %b %b %%d" % (flags, expiration), map(len, values)
    if tokens is None:
        return b"".join(map((b"set %b" + settings + b"\r\n%b\r\n").__mod__, zip(names, sizes, values, strict=True)))
    cas, add = b"cas %b" + settings + b" %b\r\n%b\r\n", b"add %b" + settings + b"%b\r\n%b\r\n"
    ends = [b"" if token is None else token for token in tokens] if None in tokens else tokens
    rows = zip(names, sizes, ends, values, strict=True)
    return b"".join(map(cas.__mod__, rows) if ends is tokens else ((cas if row[2] else add) % row for row in rows))


class Replies:
    """The replies of one connection, in order; `receive` returns some bytes, nothing once the server has closed it."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._buffer = b""

    def items(self) -> dict[bytes, Item]:
        """Read the reply to one `gets`: the items that are there, by name."""
        # What comes in until it ends as a reply does (a value may end so too) or cannot be a reply to `gets`.
        pieces, start, end = [self._buffer], self._buffer[: len(_VALUE)], self._buffer
        while _VALUE.startswith(start) and not _ENDED(end):
            received = self._receive(_RECEIVE_BYTES)
            if not received:
                break
            pieces.append(received)
            start, end = (start + received)[: len(_VALUE)], (end + received)[-_LONGEST_LINE:]
        self._buffer = b"".join(pieces)
        items = _items_by_lines(self._buffer)
        if items is None:
            return self._items_by_length()
        self._buffer = b""
        return items

    def _items_by_length(self) -> dict[bytes, Item]:
        items: dict[bytes, Item] = {}
        buffer, at = self._buffer, 0
        while True:
            end = buffer.find(_CRLF, at)
            if end < 0:
                buffer, at = self._more(buffer, at, 1), 0
                continue
            head = buffer[at:end].split(b" ")
            if len(head) != 5 or head[0] != b"VALUE" or not head[3].isdigit():
                if head != [b"END"]:
                    raise Refusal(_printable(buffer[at:end]))
                self._buffer = buffer[end + 2 :]
                return items
            start = end + 2
            stop = start + int(head[3])
            if len(buffer) < stop + 2:
                buffer, at = self._more(buffer, at, stop + 2 - len(buffer)), 0
                continue
            if buffer[stop : stop + 2] != _CRLF:
                raise Refusal(f"a value of {head[3].decode()} bytes that does not end there")
            items[head[1]] = _item((head[2], buffer[start:stop], head[4]))
            at = stop + 2

    def lines(self, count: int) -> list[bytes]:
        """Read so many replies of one line each. What follows must not be there yet: one request at a time."""
        lines: list[bytes] = []
        buffer = self._buffer
        while True:
            *whole, buffer = buffer.split(_CRLF)
            lines += whole
            if len(lines) >= count:
                break
            buffer = self._more(buffer, 0, 1)
        self._buffer = buffer
        if len(lines) > count or buffer:
            raise Refusal(f"{_printable(lines[count] if len(lines) > count else buffer)} after {count} replies")
        return lines

    def _more(self, buffer: bytes, at: int, wanted: int) -> bytes:
        """Return `buffer` from `at` on and at least `wanted` bytes that follow it."""
        pieces = [buffer[at:]]
        while wanted > 0:
            received = self._receive(max(wanted, _RECEIVE_BYTES) if wanted < 1 << 24 else 1 << 24)
            if not received:
                raise ConnectionError("the server closed the connection")
            pieces.append(received)
            wanted -= len(received)
        return b"".join(pieces)


def _items_by_lines(reply: bytes) -> dict[bytes, Item] | None:
    """Return the items of a whole reply, all at once; None if it is anything else, or a value has a line break.

    The first line is a head. If the line behind a head is as long as the head says, it is the value, and the next line is a
    head again. So if all lines are as long as the lines before them say, each item is what `_items_by_length` would find.
    """
    if not reply.endswith(b"END\r\n"):
        return None
    *lines, end, _ = reply.split(_CRLF)
    heads, values = lines[::2], lines[1::2]
    fields = b" ".join(heads).split(b" ") if heads else []
    names, sizes = fields[1::5], list(map(b"%d".__mod__, map(len, values)))
    if (
        end != b"END"
        or fields[::5] != [b"VALUE"] * len(heads)
        or fields[3::5] != sizes
        or len(fields) != 5 * len(heads)
    ):
        return None
    return dict(zip(names, map(_item, zip(fields[2::5], values, fields[4::5], strict=True)), strict=True))


def _item(fields: tuple[bytes, bytes, bytes]) -> Item:
    return tuple.__new__(Item, fields)  # without the check of the length: once per key that is read


def _printable(line: bytes) -> str:
    return line[:120].decode("ascii", "backslashreplace")


CHANGED = (b"EXISTS", b"NOT_STORED", b"NOT_FOUND")
"""Replies that say: the item is not as it was when its token was read."""

_SHOWN = 3


def write_error(state: str, server: str, failed: Sequence[tuple[Key, bytes]]) -> BackendError:
    """Return the error for keys that were not written, each with its reply; the gravest reply speaks for all."""
    what, keys = f"write to state {state!r} on memcached server {server}", _shown_keys([key for key, _ in failed])
    too_large = [key for key, reply in failed if b"too large" in reply]
    if too_large:
        return BackendError(
            f"{what}: the value of {_shown_keys(too_large)} is larger than an item may be (1 MB unless the server was "
            "started with -I); start it with a larger -I, or keep smaller values. The old value stands",
            retryable=False,
        )
    if any(b"out of memory" in reply for _, reply in failed):
        return BackendError(
            f"{what}: it is out of memory for {keys} and evicts nothing (-M); give it more memory (-m, or the command "
            "cache_memlimit), and the batch can be replayed"
        )
    changed = [key for key, reply in failed if reply in CHANGED]
    if len(changed) == len(failed):
        return BackendError(
            f"{what}: {keys} changed after they were read; another client writes them. Replay the batch"
        )
    other = next(reply for _, reply in failed if reply not in CHANGED).decode("ascii", "backslashreplace")
    return BackendError(f"{what}: {keys} were not stored: {other}; the batch may be replayed")


def _shown_keys(keys: Sequence[Key]) -> str:
    text = ", ".join(f"{key!r:.80}" for key in keys[:_SHOWN])
    return f"key {text}" if len(keys) == 1 else f"{len(keys)} keys ({text}{', …' if len(keys) > _SHOWN else ''})"


class MemcachedConnection:
    """One server, and the tokens of the items that were read for the commit under way; None where there was no item.

    Tokens end with the connection: a server that restarted counts from the beginning.
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
        if len(found) < len(names):
            self.tokens.update(dict.fromkeys(names))
        self.tokens.update(zip(found, map(itemgetter(2), found.values()), strict=True))

    def statistics(self, *of: str) -> dict[bytes, Any]:

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
        tokens: Sequence[bytes | None] | None,
    ) -> list[bytes]:
        """Store items as `store_commands` says, and return one reply for each: `STORED`, or why not."""
        data = store_commands(names, flags, expiration, values, tokens)
        # All are sent before a reply is read, and replies must find room in the buffers on the way: callers bound how many.
        return self._command(f"write {len(names)} names", data, len(names))

    def put(self, name: bytes, flags: bytes, data: bytes) -> None:
        (reply,) = self.write([name], flags, b"0", [data], None)
        if reply != b"STORED":
            raise BackendError(f"write {name.decode()} to memcached server {self.name}: {reply.decode()}")

    def delete(self, names: Sequence[bytes]) -> None:
        if not names:
            return
        data = b"".join(b"delete %b\r\n" % name for name in names)
        for name, reply in zip(names, self._command(f"delete {len(names)} names", data, len(names)), strict=True):
            if reply not in (b"DELETED", b"NOT_FOUND"):
                raise BackendError(f"delete {name.decode()} on memcached server {self.name}: {reply.decode()}")

    def close(self) -> None:
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
            raise self._backend_error(what, error) from error

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
            raise self._backend_error(what, error) from error

    def _connect(self) -> Any:
        if self._client.sock is None:
            self._client.version()  # connects, and hears whether it is a Memcached that answers
        return self._client.sock

    def _send(self, data: bytes) -> None:
        self._connect().sendall(data)

    def _receive(self, size: int) -> bytes:
        received: bytes = self._client.sock.recv(size)
        return received

    def _backend_error(self, what: str, error: Exception) -> BackendError:
        reason = str(error) or type(error).__name__
        message = (
            f"cannot {what} on memcached server {self.name}: {reason}. Whether a write was done is unknown; the batch "
            "may be replayed once the server answers"
        )
        is_away = isinstance(error, self._away)
        return StoreAwayError(message, f"Memcached at {self.name}") if is_away else BackendError(message)


class Servers:
    """All servers of a state, and the server of each name.

    A name falls into one of 4,096 slots, and each slot to a server by rendezvous hashing: adding or removing one server moves
    only the slots that it gets or had.
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
