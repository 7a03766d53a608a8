"""States in Redis: a string or a hash for each key, on one server or a cluster.

Begin with `map.py`, which users call and which commits: `fence.py` has the sentinel and its Lua, `wire.py` sends,
`evictions.py` looks for evicted keys. The rest makes names and connections, or is for clusters only.
"""

from states.redis.map import RedisBackingMap, RedisState
from states.redis.options import RedisOptions

__all__ = ["RedisBackingMap", "RedisOptions", "RedisState"]
