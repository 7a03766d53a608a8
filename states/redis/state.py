"""A state in Redis: one string for each key, or one hash for the whole state; on one server or on a cluster.

What is stored under which name is in `states/redis/layout.py`. A value is what the serializer makes of an `OpaqueValue`, a
`TransactionalValue` or the bare value. Keys do not move when the number of partitions changes. What a commit does is in
`states/redis/map.py`. It is exact as long as Redis keeps what it acknowledged; where it does not, the loss is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from states.redis.map import RedisBackingMap
from states.redis.options import RedisOptions
from trident.state.encoding.serializers import keeps_attempts, serializer_for
from trident.state.interfaces import StateConf, StateSpec, StateType
from trident.state.map_state import map_state
from trident.state.wrappers.serialized_map import SerializedMap

__all__ = ["RedisState"]


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
