"""States in Redis: a string or a hash for each key, on one server or a cluster; begin with `map.py`."""

from states.redis.map import RedisBackingMap, RedisState
from states.redis.options import RedisOptions

__all__ = ["RedisBackingMap", "RedisOptions", "RedisState"]
