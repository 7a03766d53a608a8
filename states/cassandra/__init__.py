"""States in Apache Cassandra, exact at QUORUM.

Begin with `state.py`; `map.py` reads and writes, `fence.py` has the sentinel, `stamps.py` the timestamps of writes.
"""

from states.cassandra.state import CassandraOptions, CassandraState

__all__ = ["CassandraOptions", "CassandraState"]
