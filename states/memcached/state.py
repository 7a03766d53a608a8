"""MemcachedState: a state in Memcached, which may forget, and says so when it did; or a cache before a durable state.

What is stored under which name
    `<prefix>:<key>` holds the value of a key in the bytes of the serializer (`key_names.py` has the names of keys that
    are no short plain text). `<prefix>!sentinel-<partition>` holds the last commit of a partition, and what each server
    looked like when the state began. `<prefix>!epoch`, on every server, holds the number that the client flags of all
    values of the state must have there: a reset changes it, and so empties the state.

What one put guarantees
    Keys are written one by one, each only if no other client wrote it since this writer read it, and only while the sentinel is
    this writer's own (`map.py` has the proof). There is no write of many keys at once.

Limits of the server
    Names of 250 bytes, values of 1 MB (`-I` sets more), no list of the keys. Values are in memory only: see
    `fence.py` for how a loss is found. A loss fails the batch (`StateLossDetected`) and every later one, until
    a start with `state_recovery` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Protocol

from states.memcached.key_names import Names, prefix_of
from states.memcached.map import MemcachedMap
from states.memcached.options import MemcachedOptions
from states.memcached.servers import Servers
from trident.errors import BackendError, ConfigError
from trident.roles import facts_of
from trident.state.cached import ReadThroughMap, SpacedCache
from trident.state.encoding.serializers import CodecSerializer
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.storekit import StoreState, called_as, kinds

__all__ = ["MemcachedCache", "MemcachedMap", "MemcachedOptions", "MemcachedState"]

P = ParamSpec("P")


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


# Entries of a read-through cache in Memcached: what is lost is read from the durable map again.
#
# An entry is a byte, 1 for a value and 0 for "known to be absent", then the value.

_ABSENT, _VALUE = b"\x00", b"\x01"
_FLAGS = b"0"


class MemcachedCache(SpacedCache[Any]):
    """Of what a map of one kind stores, in the codec.

    `options`: those for states (sentinel, evictions) do not matter here.
    `conf`: the names of topology and state, which the entries' names start with unless the options have a `prefix`.
    """

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
