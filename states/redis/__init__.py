"""States in Redis: a string or a hash for each key, on one server or a cluster.

Begin with `map.py`, which commits: `fence.py` has the sentinel and its Lua, `wire.py` sends, `evictions.py` looks for evicted
keys. The rest makes names and connections, or is for clusters only. Users call `state.py`.
"""

from states.redis.map import RedisBackingMap
from states.redis.options import RedisOptions
from states.redis.state import RedisState

__all__ = ["RedisBackingMap", "RedisOptions", "RedisState"]
