"""States in PostgreSQL: a table for each state, and each commit of a partition one transaction.

Begin with `state.py`; `sql_rows.py` has the SQL, `connection.py` the connection and its errors. The rest is the store kit's.
"""

from states.postgres.options import PostgresOptions
from states.postgres.state import PostgresState

__all__ = ["PostgresOptions", "PostgresState"]
