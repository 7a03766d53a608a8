"""A state in Redis: one string for each key, or one hash for the whole state; on one server or on a cluster.

What is stored under which name is in `states/redis/layout.py`. A value is what the serializer makes of an `OpaqueValue`, a
`TransactionalValue` or the bare value. Keys do not move when the number of partitions changes. `states/redis/map.py`
commits. A state is exact as long as Redis keeps what it acknowledged; if it does not, the loss is found.
"""

from __future__ import annotations

from states.redis.map import RedisBackingMap
from states.redis.options import RedisOptions
from trident.state.encoding.serializers import serializer_for
from trident.state.interfaces import StateConf
from trident.storekit import StoreMapFactory, StoreState


class _RedisMapFactory(StoreMapFactory):
    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> RedisBackingMap:
        """Open a partition that serializes by itself, while Redis works on the values before."""
        assert isinstance(self.options, RedisOptions)
        serializer = serializer_for(self.options.serializer, self.kind)
        return RedisBackingMap(self.options, conf, partition_index, serializer)


class RedisState(StoreState[str | RedisOptions]):
    """States in Redis; one method for each kind, as `StateSpec`s for `persistent_aggregate` and the like.

    Each takes a URL or a `RedisOptions`; `options` are its fields.

    Examples
    --------
    >>> spec = RedisState.opaque("redis://localhost:6379/0", hash_key="word-counts", num_partitions=4)
    >>> spec.required_num_partitions
    4
    """

    options = RedisOptions
    factory = _RedisMapFactory
    open_map = RedisBackingMap
