"""States in PostgreSQL: a table for each state, and each commit of a partition one transaction.

Begin with `map.py`; `statements.py` has the SQL, `session.py` the connection and its errors.
"""

from states.postgres.options import PostgresOptions
from states.postgres.state import PostgresState

__all__ = ["PostgresOptions", "PostgresState"]
