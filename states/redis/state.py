"""A state in Redis: one string for each key, or one hash for the whole state; on one server or on a cluster.

What is stored
    The names are in `states/redis/layout.py`. A value is what the serializer makes of an `OpaqueValue`, a
    `TransactionalValue` or the bare value. Keys do not move when the number of partitions changes.

What one put guarantees
    A call of at most `max_keys_per_call` keys is one Lua script: it compares the partition's sentinel with the writer's own
    and writes all of its keys or none. A put of more keys is several such calls, several in flight; after an error any of
    them may be written, which the value rules undo at the replay.

Exact as long as Redis keeps what it acknowledged. A restart without its data, an older snapshot, a failover to a replica
that was behind, FLUSHALL: each moves the sentinel back, breaks its seal or removes it, and is found before or during the next
commit. A commit of several calls is not atomic, so its sentinel is sealed only when the last of them is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any

from states.redis.calls import Exchange
from states.redis.faults import driver
from states.redis.fence import Fence
from states.redis.health import Health
from states.redis.layout import Layout, Part, default_prefix, interleaved, lay, pick
from states.redis.listing import names_of
from states.redis.options import RedisOptions
from states.redis.scripts import DELETE, HASH_DELETE, HASH_PUT, HASH_PUT_TTL, PUT, PUT_TTL
from states.redis.servers import servers_of
from states.redis.wire import Call
from trident.errors import StateLossDetected, UnsupportedOperation
from trident.state.encoding.codec import decode_keys
from trident.state.encoding.serializers import keeps_attempts, serializer_for
from trident.state.interfaces import Key, StateConf, StateSpec, StateType
from trident.state.map_state import map_state
from trident.state.txid import Sentinel, Txid
from trident.state.wrappers.serialized_map import SerializedMap

__all__ = ["RedisBackingMap", "RedisOptions", "RedisState"]

Decode = Callable[[Sequence[Key], Sequence[bytes | None]], list[Any]]
Encode = Callable[[Sequence[Key], Sequence[Any]], list[bytes]]

_REMEMBERED = 50_000
"""Keys of one read whose names are kept for the write that follows."""


class RedisState:
    """States in Redis; one method for each kind, as `StateSpec`s for `persistent_aggregate` and its like.

    Examples
    --------
    >>> spec = RedisState.opaque("redis://localhost:6379/0", hash_key="word-counts", num_partitions=4)
    >>> spec.required_num_partitions
    4
    """

    @staticmethod
    def opaque(url_or_options: str | RedisOptions, **options: Any) -> StateSpec:
        """Exact with transactional and opaque spouts; `options` are the fields of `RedisOptions`."""
        return _spec(StateType.OPAQUE, url_or_options, options)

    @staticmethod
    def transactional(url_or_options: str | RedisOptions, **options: Any) -> StateSpec:
        """Exact with transactional spouts; `options` are the fields of `RedisOptions`."""
        return _spec(StateType.TRANSACTIONAL, url_or_options, options)

    @staticmethod
    def non_transactional(url_or_options: str | RedisOptions, **options: Any) -> StateSpec:
        """Bare values, where a replay counts twice; `options` are the fields of `RedisOptions`."""
        return _spec(StateType.NON_TRANSACTIONAL, url_or_options, options)


@dataclass(frozen=True)
class _RedisMapFactory:
    kind: StateType
    options: RedisOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        backing = RedisBackingMap(self.options, conf, partition_index)
        return SerializedMap(backing, serializer_for(self.options.serializer, self.kind))

    @property
    def keeps_attempts(self) -> bool:
        """Whether stored values say which attempt wrote them."""
        return keeps_attempts(serializer_for(self.options.serializer, self.kind))


def _spec(kind: StateType, url_or_options: str | RedisOptions, changes: dict[str, Any]) -> StateSpec:
    if isinstance(url_or_options, RedisOptions):
        options = replace(url_or_options, **changes)
    else:
        options = RedisOptions(url_or_options, **changes)
    serializer_for(options.serializer, kind)  # an unknown name is refused here, not where the state is opened
    return map_state(_RedisMapFactory(kind, options), kind, options.cache, options.snapshot_key, options.num_partitions)


class RedisBackingMap:
    """One partition's view of a map of bytes in Redis, with the partition's sentinel. Used by one thread at a time.

    Nothing is connected before the first call.

    Parameters
    ----------
    options
        See `RedisOptions`.
    conf
        The default prefix; `read_only`.
    partition
        Number of the state partition. Partitions share the keys; each has a sentinel of its own.
    """

    def __init__(self, options: RedisOptions, conf: StateConf | None = None, partition: int = 0) -> None:
        driver()
        conf = StateConf() if conf is None else conf
        prefix = options.hash_key or options.prefix or default_prefix(conf.topology, conf.state)
        self._options, self._read_only = options, conf.read_only
        hashed = options.hash_key is not None
        self._layout = Layout(prefix, hashed, options.ttl_s is not None, options.buckets, options.clustered)
        self._health = Health(options, repr(prefix), not conf.read_only)
        self._servers = servers_of(options, self._layout, self._health.greet)
        self._exchange = Exchange(self._servers, options)
        self._what = f"state {prefix!r} partition {partition}"
        self._fence = Fence(self._exchange, self._layout, partition, self._what, self._servers.name)
        self._layout_checked = False
        self._named: tuple[list[Key], list[Part]] = ([], [])

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Read many keys: one entry per key, in the order asked, None where never written."""
        return self.multi_get_as(keys, lambda _keys, stored: list(stored))

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write many distinct keys.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel. The calls from then on wrote nothing.
        StateLossDetected
            The sentinel that this writer laid is gone.
        BackendError
            Redis refused or did not answer. Any of the keys may be written.
        """
        self.multi_put_as(keys, values, lambda _keys, chunk: list(chunk))

    def multi_get_as(self, keys: Sequence[Key], decode: Decode) -> list[Any]:
        """Read as `multi_get`; each call's values are decoded while Redis works on the next calls."""
        if not self._layout_checked:
            self._fence.check_layout()
            self._layout_checked = True
        values: list[Any] = [None] * len(keys)

        def take(part: Part, answer: list[bytes | None]) -> None:
            lay(values, part.where, decode(pick(keys, part.where), answer))

        calls = (Call(part.bucket, partial(self._get, part), partial(take, part), True) for part in self._parts(keys))
        self._exchange.run(f"read {len(keys)} keys of {self._what}", calls)
        return values

    def multi_put_as(self, keys: Sequence[Key], values: Sequence[Any], encode: Encode) -> None:
        """Write as `multi_put`; each call's values are encoded while Redis works on the calls before."""
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        doing = f"write {len(keys)} keys"
        self._refuse_read_only(doing)
        calls = (
            Call(
                part.bucket,
                partial(self._put, part.bucket, names, some),
                partial(self._fence.written, doing, part.bucket),
            )
            for part in self._parts(keys)
            for names, some in self._bounded(part.names, encode(pick(keys, part.where), pick(values, part.where)))
        )
        self._exchange.run(f"{doing} of {self._what}", calls, self._fence.renewals)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, absent ones ignored; refused as `multi_put` is."""
        doing = f"delete {len(keys)} keys"
        self._refuse_read_only(doing)
        calls = (
            Call(part.bucket, partial(self._delete, part), partial(self._fence.written, doing, part.bucket))
            for part in self._layout.parts(keys, self._options.max_keys_per_call)
        )
        self._exchange.run(f"{doing} of {self._what}", calls, self._fence.renewals)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions, about 1,000 at a time; their names are kept to tell duplicates."""
        seen: set[bytes] = set()
        for names in names_of(self._exchange, self._servers, self._layout, self._what):
            places = map(self._layout.place_of, names)
            encoded = list(dict.fromkeys(place[1] for place in places if place is not None and place[1] not in seen))
            if encoded:
                seen.update(encoded)
                yield decode_keys(encoded)

    def begin(self, txid: Txid) -> None:
        """Begin a commit: nothing is to be done."""

    def end(self, txid: Txid) -> None:
        """End the commit; every put is acknowledged. Look whether keys were evicted.

        Raises
        ------
        StateLossDetected
            It did. The sentinel is removed, so a replay does not go on as if nothing were lost.
        """
        self._named = ([], [])
        try:
            self._health.check_evictions(self._exchange, self._servers)
        except StateLossDetected:
            self._fence.drop()
            raise

    def read_sentinel(self) -> Sentinel | None:
        """Return the partition's sentinel; in a cluster the copy that is farthest behind."""
        return self._fence.read()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that was read or laid last; this is the writer from now on. See `FencedMap`.

        Raises
        ------
        FencedError, StateLossDetected, StatePlaceError
            The store has another one.
        BackendError
            It was to be sealed, and Redis has lost writes of the commit.
        """
        self._refuse_read_only("move the sentinel")
        self._fence.move(sentinel, force)

    def reset(self) -> None:
        """Remove all keys of the state, of every partition, and all sentinels.

        The sentinels go first: then no writer can write between the keys that are removed.
        """
        self._refuse_read_only("empty the state")
        self._fence.forget()
        layout = self._layout
        doing = f"empty {self._what}"
        self._exchange.run(doing, [_removal(b, [key]) for b, key in enumerate(layout.sentinel_keys)])
        if layout.hashed:
            self._exchange.run(doing, [_removal(b, [key]) for b, key in enumerate(layout.stems)])
            return
        for names in names_of(self._exchange, self._servers, layout, self._what):
            buckets: dict[int, list[bytes]] = {}
            for name in names:
                place = layout.place_of(name)
                if place is not None:
                    buckets.setdefault(place[0], []).append(name)
            self._exchange.run(doing, [_removal(bucket, found) for bucket, found in buckets.items()])

    def close(self) -> None:
        """Close the connections. The next call opens them again."""
        self._servers.forget()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _parts(self, keys: Sequence[Key]) -> Iterator[Part]:
        """Cut keys into calls. A commit writes the very keys that it has read, so their names are made only once."""
        known, parts = self._named
        # The same objects: equal ones, such as 1 and True, have other names.
        if keys and len(known) == len(keys) and all(map(is_, known, keys)):
            yield from parts
            return
        made: list[Part] = []
        remember = len(keys) <= _REMEMBERED and not self._read_only
        for part in self._layout.parts(keys, self._options.max_keys_per_call):
            if remember:
                made.append(part)
            yield part
        self._named = (list(keys), made) if remember else ([], [])

    def _get(self, part: Part) -> tuple[Any, ...]:
        if self._layout.hashed:
            return (b"HMGET", self._layout.stems[part.bucket], *part.names)
        return (b"MGET", *part.names)

    def _put(self, bucket: int, names: list[bytes], values: Sequence[bytes]) -> tuple[Any, ...]:
        ttl = self._options.ttl_s
        before = [] if ttl is None else [b"%d" % ttl]
        if not self._layout.hashed:
            return self._fence.command(PUT if ttl is None else PUT_TTL, bucket, names, [*before, *values])
        script = HASH_PUT if ttl is None else HASH_PUT_TTL
        return self._fence.command(script, bucket, [self._layout.stems[bucket]], before + interleaved(names, values))

    def _delete(self, part: Part) -> tuple[Any, ...]:
        if self._layout.hashed:
            return self._fence.command(HASH_DELETE, part.bucket, [self._layout.stems[part.bucket]], part.names)
        return self._fence.command(DELETE, part.bucket, part.names)

    def _bounded(self, names: list[bytes], values: Sequence[bytes]) -> Iterator[tuple[list[bytes], Sequence[bytes]]]:
        """Halve what has too many bytes for one call."""
        if len(names) > 1 and sum(map(len, values)) > self._options.max_bytes_per_call:
            half = len(names) // 2
            yield from self._bounded(names[:half], values[:half])
            yield from self._bounded(names[half:], values[half:])
        else:
            yield names, values

    def _refuse_read_only(self, doing: str) -> None:
        if self._read_only:
            raise UnsupportedOperation(f"cannot {doing}: {self._what} was opened to be read only")


def _removal(bucket: int, names: list[bytes]) -> Call:
    command = (b"UNLINK", *names)
    return Call(bucket, lambda: command, lambda _answer: None)
