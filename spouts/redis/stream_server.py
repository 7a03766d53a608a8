"""The Redis that has the streams: what calls raise, what a driver does while it is away, and entries as Arrow tables."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypedDict, TypeVar

import pyarrow as pa

from spouts.files.parsed_columns import bad_ones, refuse_bent_numbers
from trident.alignment import read_moments
from trident.arrow import arrow_type, schema_of
from trident.errors import SourceAwayError, SpoutError
from trident.fields import Fields, FieldsLike
from trident.servers.patience import AWAY
from trident.servers.redis_server import RedisServer, driver, error_text, is_transient
from trident.setting_types import whole

_log = logging.getLogger(__name__)
T = TypeVar("T")

NOTHING = "0-0"
"""The id before that of any entry."""

_SAY_EVERY_S = 60.0
_OF_ENTRIES = ("id", "stream")
_ADVICE = {
    "NOPERM": "grant the user the commands that docs/spouts/redis-streams.md lists, on these keys",
    "WRONGTYPE": "the key is used for something other than a stream",
    "MOVED": "the server is a node of a cluster, and the stream is on another one: give that one's address",
}


class RedisServerSettings(TypedDict, total=False):
    """The options of `RedisServerOptions` by name; see there."""

    user: str | None
    password: str | None
    database: int | None
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify: bool
    connect_timeout_s: float
    timeout_s: float
    retries: int


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisServerOptions(RedisServer):
    """The Redis that has the streams; `retries`: how often a worker tries a read again before its batch fails."""

    forms: ClassVar[str] = (
        "redis://host:port/database, rediss:// (TLS) or unix://path. A stream is on one server, so of a cluster give the "
        "server that has it"
    )

    retries: int = whole(3, 0)

    @classmethod
    def subject(cls) -> str:
        return "a Redis stream"

    def client(self, retries: int = 0) -> Any:
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
        return self.stream, self.id


class StreamCalls:
    """A client, and what its calls raise."""

    def __init__(self, options: RedisServerOptions, retries: int = 0) -> None:
        self.place, self._client = options.place, options.client(retries)

    def call(self, doing: str, function: Callable[[Any], T]) -> T:
        """Call a function with the client; `ServerAway` if the server does not answer, else `SpoutError` for what it found."""
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
        self._client.close()


class StreamServer(StreamCalls):
    """The calls of a driver: it asks a server that is away again after growing pauses, and says so."""

    def __init__(self, options: RedisServerOptions) -> None:
        super().__init__(options)
        self.is_away = False
        self._vain_tries, self._try_at, self._say_at = 0, 0.0, 0.0

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
            self._vain_tries += 1
            self.is_away, self._try_at = True, now + AWAY.pause_s(self._vain_tries)
            raise
        if self.is_away:
            _log.warning("Redis %s answers again", self.place)
            self.is_away, self._vain_tries, self._say_at = False, 0, 0.0
        return result


def order_of(id_: str) -> tuple[int, int]:
    """Return the two numbers of an id, by which entries are ordered."""
    time_ms, _, number = id_.partition("-")
    return int(time_ms), int(number or 0)


class EntryTables:
    """Makes tables of entries: the declared fields, null where an entry has none, then `id`, and `stream` if asked for."""

    def __init__(self, declared: FieldsLike, with_stream: bool) -> None:
        read = Fields(declared)
        if taken := [name for name in read.names if name in _OF_ENTRIES]:
            raise ValueError(f"the field {taken[0]!r} is the spout's own: entries are read with their id and stream")
        for name, type_ in read.pairs:
            if type_ is None:
                raise ValueError(f"the field {name!r} has no type; declare it as '{name}: string' or another type")
            if pa.types.is_nested(arrow_type(type_)):
                raise ValueError(f"the field {name!r} is a {type_}, but values in Redis are bytes: read it as a string")
        self._names, self._types = list(read.names), [arrow_type(type_ or "") for type_ in read.types]
        self.fields = Fields(declared, "id: string", *(["stream: string"] if with_stream else []))
        self._with_stream = with_stream

    def table(self, entries: Sequence[Entry]) -> pa.Table:
        """Return a row for each entry; `SpoutError` naming entry and field for a value that is not of the field's type."""
        columns = [self._column(entries, name, type_) for name, type_ in zip(self._names, self._types, strict=True)]
        columns.append(pa.array([entry.id for entry in entries], pa.string()))
        if self._with_stream:
            columns.append(pa.array([entry.stream for entry in entries], pa.string()))
        return pa.Table.from_arrays(columns, schema=schema_of(self.fields))

    def _column(self, entries: Sequence[Entry], name: str, type_: pa.DataType) -> pa.Array:
        key = name.encode()
        raw = [entry.fields.get(key) for entry in entries]
        try:
            return _parse_column(raw, type_)
        except (pa.ArrowException, ValueError) as error:
            raise _misfit(entries, raw, name, type_, error) from error


def _parse_column(raw: list[bytes | None], type_: pa.DataType) -> Any:
    array = pa.array(raw, pa.binary())
    if pa.types.is_binary(type_):
        return array
    texts = array.cast(pa.string())
    if pa.types.is_temporal(type_):
        return read_moments(texts, type_, "its text")
    made = texts.cast(type_)
    refuse_bent_numbers(texts, made, "its text")
    return made


def _misfit(
    entries: Sequence[Entry], raw: list[bytes | None], name: str, type_: pa.DataType, error: Exception
) -> SpoutError:
    for at, cause in bad_ones(partial(_parse_column, type_=type_), raw):
        value, entry = raw[at] or b"", entries[at]
        why = f": {cause}" if pa.types.is_temporal(type_) else ""
        shown = value if len(value) <= 80 else value[:80] + b"..."
        return SpoutError(
            f"entry {entry.id} of the stream {entry.stream!r}: the value {shown!r} of field {name!r} is not {type_}{why}. "
            f"Declare the field as '{name}: binary' and read it in a step, whose exceptions may become dead letters"
        )
    return SpoutError(f"field {name!r} cannot be read as {type_}: {error}")
