"""States in Apache Cassandra, exact at QUORUM.

Begin with `state.py`; `map.py` reads and writes, `stamps.py` has the timestamps that fence.
"""

from states.cassandra.state import CassandraOptions, CassandraState

__all__ = ["CassandraOptions", "CassandraState"]
