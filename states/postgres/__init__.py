"""States in PostgreSQL: a table for each state, and each commit of a partition one transaction; begin with `state.py`.

`columns.py` says which columns a table has and how values are sent, `typed_table.py` makes or refuses it, `beside_table.py`
what stands beside it, `typed_rows.py` has the SQL over it, `map.py` the maps, `connection.py` the connection and its errors.
"""

from states.postgres.options import PostgresOptions
from states.postgres.state import PostgresState

__all__ = ["PostgresOptions", "PostgresState"]
