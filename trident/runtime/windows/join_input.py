"""What a worker sends to a join over time: the rows of one side that have a time, with that time in front."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import schema_of
from trident.graph import JoinSide, JoinWithinNode
from trident.operations.metrics import count_again
from trident.runtime.windows.worker_input import FIRST_MS, LAST_MS

__all__ = ["MARKS", "join_input", "side_tables"]

MARKS = ("$left", "$right")
"""The name of the column of times (bigint, microseconds), which tells the side that a table is of."""


def join_input(node: JoinWithinNode, port: int, table: pa.Table) -> pa.Table:
    """Return what is sent for one table of a side. Rows without a time are dropped and counted."""
    side = node.sides[port]
    column = table.column(side.time)
    times = column.cast(pa.int64())
    unit = 1 if pa.types.is_integer(column.type) else 1000
    known = pc.and_(pc.greater_equal(times, FIRST_MS * unit), pc.less_equal(times, LAST_MS * unit))
    known = pc.fill_null(known, False)
    kept = table.filter(known)
    if kept.num_rows < table.num_rows:
        count_again({f"{node.state}/no_event_time": table.num_rows - kept.num_rows})
    at = np.asarray(times.filter(known).to_numpy(), np.int64) * (1000 // unit)
    return kept.add_column(0, pa.field(MARKS[port], pa.int64()), pa.array(at, pa.int64()))


def side_tables(node: JoinWithinNode, tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return the rows of each side, in the order of the tables."""
    found: list[list[pa.Table]] = [[], []]
    for table in tables:
        found[MARKS.index(table.column_names[0])].append(table)
    return [
        pa.concat_tables(of_side) if of_side else _schema(side, mark).empty_table()
        for side, mark, of_side in zip(node.sides, MARKS, found, strict=True)
    ]


def _schema(side: JoinSide, mark: str) -> pa.Schema:
    return pa.schema([pa.field(mark, pa.int64()), *schema_of(side.fields)])
