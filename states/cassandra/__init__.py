"""States in Apache Cassandra; begin with `state.py`."""

from states.cassandra.state import CassandraOptions, CassandraState

__all__ = ["CassandraOptions", "CassandraState"]
