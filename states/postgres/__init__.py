"""States in PostgreSQL: a table for each state, and each commit of a partition one transaction.

Begin with `state.py`. A state of declared fields is a table with columns: `columns.py` says which and how values are sent,
`typed_table.py` makes or refuses the table, `beside_table.py` what stands beside it, `typed_rows.py` has the SQL over it.
`map.py` has the maps; where fields are not declared, key and value are the columns, as bytes. `connection.py` has the
connection and its errors. The rest is the store kit's.
"""

from states.postgres.options import PostgresOptions
from states.postgres.state import PostgresState

__all__ = ["PostgresOptions", "PostgresState"]
