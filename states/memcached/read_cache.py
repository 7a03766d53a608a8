"""Entries of a read-through cache in Memcached: what is lost is read from the durable map again.

An entry is a byte that tells a value (1) from "known to be absent" (0), then the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from states.memcached.key_names import Names, prefix_of, unwrap, wrap
from states.memcached.options import MemcachedOptions
from states.memcached.servers import Connection, Servers
from trident.errors import BackendError
from trident.state.encoding.serializers import CodecSerializer
from trident.state.interfaces import Key, StateConf, StateType
from trident.storekit import by_count, by_size

__all__ = ["MemcachedCache"]

_ABSENT, _VALUE = b"\x00", b"\x01"
_FLAGS = b"0"


class MemcachedCache:
    """A `SpacedCache` of what a map of one kind stores, in the codec.

    Parameters
    ----------
    options
        See `MemcachedOptions`; those of states (sentinel, evictions) do not matter here.
    conf
        The names of topology and state, which the entries' names start with unless the options have a `prefix`.
    kind
        Of the map.
    """

    def __init__(self, options: MemcachedOptions, conf: StateConf, kind: StateType) -> None:
        self._options = options
        self._prefix = prefix_of(conf, options.prefix)
        self._serializer = CodecSerializer(kind)
        self._servers = Servers(options)
        self._expiration = b"%d" % (options.ttl_s or 0)
        self._space, self._names = "", Names(self._prefix)

    def get(self, space: str, keys: Sequence[Key]) -> list[tuple[Any] | None]:
        """Return what is known of each key: `(value,)`, `(None,)` if it is known to be absent, None if nothing is."""
        names, hashed = self._names_of(space).of(keys)
        found: dict[bytes, bytes] = {}
        for connection, places in self._servers.placed(names):
            for chunk in by_count(places, self._options.max_keys_per_call):
                items = connection.gets([names[at] for at in chunk])
                found.update((name, item.data) for name, item in items.items())
        entries = [found.get(name) for name in names]
        for at, encoded in hashed.items():
            entry = entries[at]
            entries[at] = None if entry is None else unwrap(keys[at], encoded, entry)
        values = iter(self._serializer.deserialize_many([e[1:] for e in entries if e and e[:1] == _VALUE]))
        return [None if not e else (next(values) if e[:1] == _VALUE else None,) for e in entries]

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Keep entries; those that the server has no room for are deleted instead."""
        names, hashed = self._names_of(space).of(keys)
        there = iter(self._serializer.serialize_many([value for value in values if value is not None]))
        entries = [_ABSENT if value is None else _VALUE + next(there) for value in values]
        for at, encoded in hashed.items():
            entries[at] = wrap(encoded, entries[at])
        for connection, places in self._servers.placed(names):
            sizes = (len(entries[at]) for at in places)
            for chunk in by_size(places, sizes, self._options.max_keys_per_call, self._options.max_bytes_per_call):
                self._put(connection, [(names[at], entries[at]) for at in chunk])

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()

    def _put(self, connection: Connection, chunk: list[tuple[bytes, bytes]]) -> None:
        replies = connection.set_many(_FLAGS, self._expiration, chunk)
        failed = [(name, reply) for (name, _), reply in zip(chunk, replies, strict=True) if reply != b"STORED"]
        if any(b"too large" not in reply and b"out of memory" not in reply for _, reply in failed):
            raise BackendError(f"fill the cache on memcached server {connection.name}: {failed[0][1].decode()}")
        # What could not be replaced must not stay. Servers of today see to it themselves; nothing promises it.
        connection.delete([name for name, _ in failed])

    def _names_of(self, space: str) -> Names:
        if space != self._space:
            self._space, self._names = space, Names(self._prefix, space)
        return self._names
