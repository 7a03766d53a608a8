"""States in Redis: strings or one hash, on one server or a cluster.

Begin with `state.py`; `scripts.py` has the Lua that writes, `wire.py` and `calls.py` how it is sent.
"""

from states.redis.state import RedisBackingMap, RedisOptions, RedisState

__all__ = ["RedisBackingMap", "RedisOptions", "RedisState"]
