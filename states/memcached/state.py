"""MemcachedState: a state in Memcached, which may forget, and says so when it did; or a cache before a durable state.

`<prefix>:<key>` holds a value (`key_names.py`), `<prefix>!sentinel-<partition>` the last commit of a partition and what each
server looked like when the state began, `<prefix>!epoch`, on every server, the number that the client flags of all values
must have there: a reset changes it, and so empties the state. A loss (`fence.py`) fails the batch and every later one, until
a start with `state_recovery` decides.

Every write carries the token that the item had when this writer read it (`cas`; `add` where there was no item), and each
chunk is preceded by a look at the sentinel *after* its tokens were read. A successor moves the sentinel before it writes. So
if the look found the sentinel to be this writer's, every write of a successor comes after the tokens were read, changes them,
and makes the late `cas` or `add` fail: what a successor wrote is never overwritten. What is left is the time between the look
and the arrival of that one chunk: in it a replaced writer can still write keys that its successor has not written. Those
values carry an attempt that lost, so an opaque state uses the value before them; in a transactional state they are what the
successor's own replay writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Concatenate, ParamSpec, Protocol

from states.memcached.fence import CommitGuard
from states.memcached.key_names import Named, Names, prefix_of
from states.memcached.servers import CHANGED, MemcachedConnection, MemcachedOptions, Servers, write_error
from trident.errors import BackendError, ConfigError
from trident.roles import facts_of
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.cached import ReadThroughMap, SpacedCache
from trident.state.encoding.serializers import CodecSerializer
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.state.txid import Sentinel, Txid
from trident.storekit import StoreState, called_as, kinds, refuse_read_only

__all__ = ["MemcachedCache", "MemcachedMap", "MemcachedOptions", "MemcachedState"]

P = ParamSpec("P")
_AT_ONCE = b"-1"  # an item that has expired when it is stored: a delete with a condition, in one request
_ABSENT, _VALUE = b"\x00", b"\x01"  # what an entry of the cache begins with: a key known to be absent, or its value
_FLAGS = b"0"


class MemcachedMap(BackingMap):
    """A map of bytes that keeps its own sentinel. Used by one thread at a time; connects on first use.

    Only the sentinel's name depends on the partition.
    """

    facts = MapFacts(shares_keys=True)

    def __init__(self, options: MemcachedOptions, conf: StateConf, partition: int = 0) -> None:
        self._state, self._read_only = conf.prefix, conf.read_only
        self._names, self._servers = Names(prefix_of(conf, options.prefix)), Servers(options)
        self._guard = CommitGuard(self._servers, self._names, options, conf, partition)
        self._expiration = b"%d" % (options.ttl_s or 0)
        self._committing = False
        self._named: tuple[list[Key], Named] = ([], Named([], {}))

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        named, values = self._names_of(keys), dict[bytes, bytes]()
        for connection, chunk in self._servers.chunks(named.names):
            self._read(connection, [named.names[at] for at in chunk], values)
        return named.unwrap(keys, values)

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        """Write many keys, in chunks; `StateLossDetected` also if the epoch of a server is gone."""
        self._refuse_read_only(f"write {len(keys)} keys")
        named = self._names_of(keys)
        names, stored = named.names, named.wrap(values)
        for connection, chunk in self._servers.chunks(names, stored):
            self._write(connection, [keys[at] for at in chunk], [names[at] for at in chunk],
                        [stored[at] for at in chunk], self._expiration)  # fmt: skip

    def multi_delete(self, keys: Sequence[Key]) -> None:
        self._refuse_read_only(f"delete {len(keys)} keys")
        names, _ = self._names.of(keys)
        for connection, chunk in self._servers.chunks(names):
            self._learn_tokens(connection, [names[at] for at in chunk])
            there = [at for at in chunk if connection.tokens[names[at]] is not None]
            if there:
                self._write(connection, [keys[at] for at in there], [names[at] for at in there],
                            [b""] * len(there), _AT_ONCE)  # fmt: skip

    def _names_of(self, keys: Sequence[Key]) -> Named:
        """Return the names of keys. A commit writes the keys that it has read, so they are made only once."""
        known, names = self._named
        # The same objects: equal ones, such as 1 and True, have other names.
        if len(known) != len(keys) or not all(map(is_, known, keys)):
            names = self._names.of(keys)
            self._named = (list(keys), names) if self._committing else ([], Named([], {}))
        return names

    def _read(self, connection: MemcachedConnection, names: list[bytes], values: dict[bytes, bytes]) -> None:
        found = connection.gets([self._names.epoch, *names])
        record = found.pop(self._names.epoch, None)
        epoch = b"0" if record is None else record.data
        if self._committing:
            self._guard.check_epoch(connection, epoch)
            connection.remember(names, found)
        if record is not None:
            values.update({name: data for name, (flags, data, _) in found.items() if flags == epoch})

    def _write(
        self,
        connection: MemcachedConnection,
        keys: list[Key],
        names: list[bytes],
        values: list[bytes],
        expiration: bytes,
    ) -> None:
        flags, tokens = self._guard.flags_on(connection), connection.tokens
        self._learn_tokens(connection, names)
        self._guard.check_own()  # after the tokens were read, before the writes are sent: see the top of the module
        if not all(map(tokens.__contains__, names)):
            raise BackendError(
                f"write to state {self._state!r}: the connection to memcached server {connection.name} ended before the "
                "chunk was sent; the batch may be replayed"
            )
        replies = connection.write(names, flags, expiration, values, list(map(tokens.pop, names)))
        if replies.count(b"STORED") != len(replies):
            failed = [(key, reply) for key, reply in zip(keys, replies, strict=True) if reply != b"STORED"]
            if any(reply in CHANGED for _, reply in failed):
                self._guard.check_own()
                self._guard.check_health()
            raise write_error(self._state, connection.name, failed)

    def _learn_tokens(self, connection: MemcachedConnection, names: list[bytes]) -> None:
        unknown = [name for name in names if name not in connection.tokens]
        if unknown:
            connection.remember(unknown, connection.gets(unknown))

    def begin(self, txid: Txid) -> None:
        """Forget the tokens of an earlier commit; without a log, take the servers as they are now."""
        self._refuse_read_only("begin a commit")
        self._forget_tokens()
        self._guard.begin(txid)
        self._committing = True

    def end(self, txid: Txid) -> None:
        """Look once more at the sentinel and at every server: what was acknowledged must still be there."""
        self._committing = False
        self._forget_tokens()
        self._guard.check_own()
        self._guard.check_health()

    def read_sentinel(self) -> Sentinel | None:
        self._committing = False
        return self._guard.read_sentinel()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._refuse_read_only("move the sentinel")
        self._guard.move_sentinel(sentinel, force)

    def reset(self) -> None:
        self._refuse_read_only("empty the state")
        self._committing = False
        self._forget_tokens()
        self._guard.erase()

    def close(self) -> None:
        self._servers.close()

    def _refuse_read_only(self, doing: str) -> None:
        refuse_read_only(self._read_only, doing, self._guard.place)

    def _forget_tokens(self) -> None:
        self._named = ([], Named([], {}))
        for connection in self._servers.connections:
            connection.tokens.clear()


class _CacheFor(Protocol[P]):
    def __call__(
        self,
        durable: StateSpec,
        servers: str | Sequence[str] | MemcachedOptions | None = None,
        *args: P.args,
        **options: P.kwargs,
    ) -> StateSpec: ...


def _with_options(declared: Callable[Concatenate[Any, P], MemcachedOptions]) -> Callable[[Any], _CacheFor[P]]:
    """Let type checkers know the options of a call."""
    return lambda function: function


class MemcachedState(StoreState[str | Sequence[str] | MemcachedOptions]):
    """States in Memcached, as `StateSpec`s for `persistent_aggregate` and its like: opaque, or by one of the methods.

    Each takes `"host:port"`, several with commas or as a list, or a `MemcachedOptions`; `options` are its fields. A state is
    exact as long as Memcached forgets nothing.
    """

    options = MemcachedOptions
    opaque, transactional, non_transactional = kinds(MemcachedOptions)
    open_map = MemcachedMap

    @called_as(opaque)
    def __new__(cls, target: str | Sequence[str] | MemcachedOptions, /) -> Any: ...

    @staticmethod
    @_with_options(MemcachedOptions)
    def cache_for(
        durable: StateSpec, servers: str | Sequence[str] | MemcachedOptions | None = None, **options: object
    ) -> StateSpec:
        """Put Memcached before a durable state: it answers reads of a commit, and may forget without harm.

        Parameters
        ----------
        durable
            A state that `map_state` made, or a store of this package on a server (Redis, Cassandra), with `cache=0`.
        servers, options
            As for the states; of the options, `allow_eviction`, `serializer`, `cache`, `snapshot_key` and
            `num_partitions` do not matter.
        """
        factory = durable.factory
        if not isinstance(factory, MapStateFactory) or factory.cache:
            raise ConfigError(
                f"put Memcached before {factory!r:.120}: it goes before a state of map_state(...), or of a store with "
                "a server, that has cache=0; a state that keeps its entries in the process needs no other cache"
            )
        cached = _CachedMapFactory(factory.backing_map_factory, factory.kind, MemcachedOptions.of(servers, options))
        return replace(durable, factory=replace(factory, backing_map_factory=cached))


@dataclass(frozen=True)
class _CachedMapFactory:
    durable: BackingMapFactory
    kind: StateType
    options: MemcachedOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        durable = self.durable(conf, partition_index, num_partitions)
        if conf.read_only or conf.free_keys:
            return durable  # the cache answers inside commits only, and knows only what its own partition writes
        return ReadThroughMap(durable, MemcachedCache(self.options, conf, self.kind))

    @property
    def facts(self) -> StoreFacts:
        """Those of the durable map; values of the cache may expire."""
        return facts_of(StoreFacts, self.durable)


class MemcachedCache(SpacedCache[Any]):
    """Entries of what a map of one kind stores, in the codec; what is lost is read from the durable map again."""

    def __init__(self, options: MemcachedOptions, conf: StateConf, kind: StateType) -> None:
        self._prefix = prefix_of(conf, options.prefix)
        self._serializer = CodecSerializer(kind)
        self._servers = Servers(options)
        self._expiration = b"%d" % (options.ttl_s or 0)
        self._space, self._names = "", Names(self._prefix)

    def get(self, space: str, keys: Sequence[Key]) -> list[tuple[Any] | None]:
        named, found = self._names_of(space).of(keys), dict[bytes, bytes]()
        for connection, chunk in self._servers.chunks(named.names):
            items = connection.gets([named.names[at] for at in chunk])
            found.update((name, item.data) for name, item in items.items())
        entries = named.unwrap(keys, found)
        values = iter(self._serializer.deserialize_many([e[1:] for e in entries if e and e[:1] == _VALUE]))
        return [None if not e else (next(values) if e[:1] == _VALUE else None,) for e in entries]

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Keep entries; those that the server has no room for are deleted instead."""
        named = self._names_of(space).of(keys)
        there = iter(self._serializer.serialize_many([value for value in values if value is not None]))
        entries = named.wrap([_ABSENT if value is None else _VALUE + next(there) for value in values])
        for connection, chunk in self._servers.chunks(named.names, entries):
            names = [named.names[at] for at in chunk]
            replies = connection.write(names, _FLAGS, self._expiration, [entries[at] for at in chunk], None)
            failed = [(name, reply) for name, reply in zip(names, replies, strict=True) if reply != b"STORED"]
            if any(b"too large" not in reply and b"out of memory" not in reply for _, reply in failed):
                raise BackendError(f"fill the cache on memcached server {connection.name}: {failed[0][1].decode()}")
            # What could not be replaced must not stay. Servers of today see to it themselves; nothing promises it.
            connection.delete([name for name, _ in failed])

    def close(self) -> None:
        self._servers.close()

    def _names_of(self, space: str) -> Names:
        if space != self._space:
            self._space, self._names = space, Names(self._prefix, space)
        return self._names
