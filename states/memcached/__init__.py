"""States in Memcached, and Memcached as a cache before another state; begin with `state.py`."""

from states.memcached.state import MemcachedMap, MemcachedOptions, MemcachedState

__all__ = ["MemcachedMap", "MemcachedOptions", "MemcachedState"]
