"""States in Memcached, and Memcached as a cache before another state.

Begin with `state.py`; `fence.py` says who may, and finds losses.
"""

from states.memcached.state import MemcachedMap, MemcachedOptions, MemcachedState

__all__ = ["MemcachedMap", "MemcachedOptions", "MemcachedState"]
