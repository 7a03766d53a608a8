"""States in Apache Cassandra, exact at QUORUM.

Begin with `state.py`; `map.py` reads and writes rows, `fence.py` has the sentinel and the timestamps of writes,
`cql_columns.py` the columns of `layout="columns"`.
"""

from states.cassandra.state import CassandraOptions, CassandraState

__all__ = ["CassandraOptions", "CassandraState"]
