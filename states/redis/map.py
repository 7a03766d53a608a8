"""The backing map of one partition: reads, fenced writes, and what begins and ends a commit.

A call of at most `max_keys_per_call` keys is one Lua script: it compares the partition's sentinel with the writer's own and
writes all of its keys or none. A put of more keys is several such calls, several in flight; after an error any of them may
be written, which the value rules undo at the replay.

A commit of several calls is not atomic, so its sentinel is sealed only when the last of them is acknowledged. Whatever
loses acknowledged writes moves the sentinel back, breaks its seal or removes it, and is found by the next commit at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any

from states.redis.evictions import Evictions
from states.redis.fence import Fence, fenced
from states.redis.health import greeted
from states.redis.layout import Layout, Part, default_prefix, lay, pick
from states.redis.listing import empty, key_pages
from states.redis.options import RedisOptions
from states.redis.servers import Server
from states.redis.wire import Call, Command, Link, Wire
from trident.errors import StateLossDetected, UnsupportedOperation
from trident.state.interfaces import Key, StateConf
from trident.state.txid import Sentinel, Txid

__all__ = ["RedisBackingMap"]

Decode = Callable[[Sequence[Key], Sequence[bytes | None]], list[Any]]
Encode = Callable[[Sequence[Key], Sequence[Any]], list[bytes]]

_REMEMBERED = 50_000  # keys of one read whose names are kept for the write that follows

# KEYS[2 …]: the names. ARGV[3 …]: the value of each; in the scripts with TTL, ARGV[3] is the seconds, and the values follow.
PUT = fenced(
    """\
local pairs = {}
for i = 2, #KEYS do
  pairs[2 * i - 3] = KEYS[i]
  pairs[2 * i - 2] = ARGV[i + 1]
end
redis.call('MSET', unpack(pairs))"""
)
_PUT_TTL = fenced("for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 2], 'EX', ARGV[3]) end")
_DELETE = fenced("redis.call('UNLINK', unpack(KEYS, 2))")

# KEYS[2]: the hash. ARGV[3 …]: field, value, field, value …, or the fields to delete; with TTL as above.
_HASH_PUT = fenced("redis.call('HSET', KEYS[2], unpack(ARGV, 3))")
_HASH_PUT_TTL = fenced("redis.call('HSET', KEYS[2], unpack(ARGV, 4)) redis.call('EXPIRE', KEYS[2], ARGV[3])")
_HASH_DELETE = fenced("redis.call('HDEL', KEYS[2], unpack(ARGV, 3))")


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
        conf = StateConf() if conf is None else conf
        prefix = options.hash_key or options.prefix or default_prefix(conf.topology, conf.state)
        self._options, self._read_only = options, conf.read_only
        self._what = f"state {prefix!r} partition {partition}"
        self._evictions = Evictions(options, repr(prefix))
        greet = (lambda _link: None) if conf.read_only else partial(greeted, self._evictions)
        self._layout, servers = _place(options, prefix, greet)
        self._wire = Wire(servers, options)
        self._fence = Fence(self._wire, self._layout, partition, self._what)
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
            The sentinel that this writer moved there is gone.
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
        self._wire.run(f"read {len(keys)} keys of {self._what}", calls)
        return values

    def multi_put_as(self, keys: Sequence[Key], values: Sequence[Any], encode: Encode) -> None:
        """Write as `multi_put`; each call's values are encoded while Redis works on the calls before."""
        if len(keys) != len(values):
            raise ValueError(f"write {len(keys)} keys with {len(values)} values: give one value per key")
        self._write(
            f"write {len(keys)} keys",
            (
                (part.bucket, partial(self._put, part.bucket, names, some))
                for part in self._parts(keys)
                for names, some in self._bounded(part.names, encode(pick(keys, part.where), pick(values, part.where)))
            ),
        )

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete keys, absent ones ignored; refused as `multi_put` is."""
        parts = self._layout.parts(keys, self._options.max_keys_per_call)
        self._write(f"delete {len(keys)} keys", ((part.bucket, partial(self._delete, part)) for part in parts))

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys of all partitions, about 1,000 at a time; their names are kept to tell duplicates."""
        return key_pages(self._wire, self._layout, self._what)

    def begin(self, txid: Txid) -> None:
        """Begin a commit: nothing is to be done."""

    def end(self, txid: Txid) -> None:
        """End the commit; every put is acknowledged.

        Raises
        ------
        StateLossDetected
            Keys were evicted. The sentinel is removed, so a replay does not go on as if nothing were lost.
        """
        self._named = ([], [])
        try:
            self._evictions.check(self._wire)
        except StateLossDetected:
            self._fence.drop()
            raise

    def read_sentinel(self) -> Sentinel | None:
        """Return the partition's sentinel; in a cluster the copy that is farthest behind."""
        return self._fence.read()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Replace the sentinel that was read or written last; this is the writer from now on. See `FencedMap`.

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
        """Remove all keys of the state, of every partition, and all sentinels."""
        self._refuse_read_only("empty the state")
        self._fence.forget()
        empty(self._wire, self._layout, self._what)

    def close(self) -> None:
        """Close the connections. The next call opens them again."""
        self._wire.servers.forget()

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

    def _write(self, doing: str, commands: Iterator[tuple[int, Callable[[], Command]]]) -> None:
        self._refuse_read_only(doing)
        written = self._fence.written
        calls = (Call(bucket, command, partial(written, doing, bucket)) for bucket, command in commands)
        self._wire.run(f"{doing} of {self._what}", calls, self._fence.renewals)

    def _get(self, part: Part) -> Command:
        if self._layout.hashed:
            return (b"HMGET", self._layout.stems[part.bucket], *part.names)
        return (b"MGET", *part.names)

    def _put(self, bucket: int, names: list[bytes], values: Sequence[bytes]) -> Command:
        ttl = self._options.ttl_s
        seconds = [] if ttl is None else [b"%d" % ttl]
        if not self._layout.hashed:
            return self._fence.command(PUT if ttl is None else _PUT_TTL, bucket, names, [*seconds, *values])
        pairs = [b""] * (2 * len(names))
        pairs[::2], pairs[1::2] = names, values
        script = _HASH_PUT if ttl is None else _HASH_PUT_TTL
        return self._fence.command(script, bucket, [self._layout.stems[bucket]], seconds + pairs)

    def _delete(self, part: Part) -> Command:
        if self._layout.hashed:
            return self._fence.command(_HASH_DELETE, part.bucket, [self._layout.stems[part.bucket]], part.names)
        return self._fence.command(_DELETE, part.bucket, part.names)

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


def _place(options: RedisOptions, prefix: str, greet: Callable[[Link], None]) -> tuple[Layout, Server]:
    """Return what the keys are called, and the servers that they are on."""
    hashed, expires = options.hash_key is not None, options.ttl_s is not None
    if not options.clustered:
        return Layout([prefix.encode()], hashed, expires), Server(options, greet)
    from states.redis.cluster import Cluster
    from states.redis.cluster_layout import ClusterLayout

    layout = ClusterLayout(prefix, options.buckets, hashed, expires)
    return layout, Cluster(options, layout.stems, greet)
