"""A state in Redis: a string or a hash for each key, on one server or on a cluster.

What is stored under which name is in `states/redis/layout.py`. A value is what the serializer makes of an `OpaqueValue`, a
`TransactionalValue` or the bare value. Keys do not move when the number of partitions changes. `states/redis/map.py`
commits. A state is exact as long as Redis keeps what it acknowledged; if it does not, the loss is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from states.redis.layout import hashes_of
from states.redis.map import RedisBackingMap
from states.redis.options import RedisOptions
from trident.state.interfaces import StateConf, StoreFacts
from trident.storekit import StoreMapFactory, StoreState, called_as, kinds


@dataclass(frozen=True)
class _RedisMapFactory(StoreMapFactory):
    options: RedisOptions

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> RedisBackingMap:
        """Open a partition that serializes by itself, while Redis works on the values before."""
        hashes = hashes_of(conf, self.kind, self.options)
        serializer = self.serializer if hashes is None else None
        return RedisBackingMap(self.options, conf, partition_index, serializer, hashes)

    @property
    def facts(self) -> StoreFacts:
        """Those of a store of bytes, and how a state is stored if it was asked to be readable."""
        return replace(super().facts, layout=self._layout if self.options.layout == "fields" else None)

    def _layout(self, conf: StateConf) -> str:
        hashes = hashes_of(conf, self.kind, self.options)
        assert hashes is not None
        keys = ":".join(name for name, _ in hashes.shape.keys)
        return f"hashes {self.options.prefix or conf.prefix}:<{keys}> with the fields {', '.join(hashes.fields)}"


class RedisState(StoreState[str | RedisOptions]):
    """States in Redis, as `StateSpec`s for `persistent_aggregate` and the like: opaque, or by one of the methods.

    Each takes a URL or a `RedisOptions`; `options` are its fields.
    """

    options = RedisOptions
    opaque, transactional, non_transactional = kinds(RedisOptions)
    map_factory = _RedisMapFactory
    open_map = RedisBackingMap

    @called_as(opaque)
    def __new__(cls, target: str | RedisOptions, /) -> Any: ...
