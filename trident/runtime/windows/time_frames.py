"""What a task sends to the partitions of a window, or of a join over time, that executors commit: rows, and the moment.

Every partition must know the moment of the whole batch. So each task tells all of them the moment of its own rows, and each
puts together what all tasks told it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from trident.graph import JoinWithinNode, WindowNode
from trident.runtime.windows.shares import Moment, Now, moment_of, shares_of, together

__all__ = ["MOMENT", "moment_told", "pieces_of"]

MOMENT = -1
"""The port of a table that tells a moment."""

_SCHEMA = pa.schema(
    [("given", pa.int64()), ("left", pa.int64()), ("right", pa.int64()), ("panes", pa.list_(pa.int64()))]
)


def pieces_of(
    node: WindowNode | JoinWithinNode, tables: Sequence[pa.Table], partitions: int
) -> Iterator[tuple[int, int, pa.Table]]:
    """Give what a task sends for its rows: the number of the partition, the port (`MOMENT`, or 0) and a table."""
    moment = moment_of(node, tables)
    row = {"given": moment.given, "left": moment.reached[0], "right": moment.reached[1], "panes": list(moment.panes)}
    told = pa.Table.from_pylist([row], schema=_SCHEMA)
    for partition in range(partitions):
        yield partition, MOMENT, told
    for partition, rows in sorted(shares_of(node, tables, partitions).items()):
        for table in rows:
            yield partition, 0, table


def moment_told(tables: Iterable[pa.Table], now: Now | None) -> Moment:
    """Return the moment of a batch from what all tasks told; without rows there is nothing but the time of the batch."""
    told = [
        Moment(row["given"], (row["left"], row["right"]), panes=tuple(row["panes"]))
        for table in tables
        for row in table.to_pylist()
    ]
    return replace(together([Moment(0), *told]), now=now)
