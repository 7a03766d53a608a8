"""The bound on what one partition of an exchange gathers, and the key that is to blame if it has too much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trident.graph import JoinNode, MultiReduceNode, PersistNode, RepartitionNode
from trident.planner import Exchange
from trident.runtime.engine.routing import RowFrame
from trident.runtime.steps.bounds import Bounds, TooManyRows
from trident.runtime.steps.failures import shown
from trident.runtime.steps.groups import group_ids

__all__ = ["check_gathered"]

_HEAVY = 0.1  # which share of a partition's rows makes a key worth naming
_LOOKED_AT = 1_000_000  # rows in which it is looked for


def check_gathered(exchange: Exchange, partition: int, frames: Sequence[RowFrame], bounds: Bounds) -> None:
    """Raise `TooManyRows` if a partition gathers more bytes than `max_bytes_per_partition`, naming a key that has many rows."""
    size = sum(frame.data.nbytes for frame in frames)
    if size <= bounds.per_partition:
        return
    raise TooManyRows(
        f"partition {partition} of {exchange.partitions or 1} gathers {size} bytes of the batch, and at most "
        f"{bounds.per_partition} are allowed. {_blamed(exchange, frames)}Use smaller batches or more partitions "
        "(parallelism_hint), or raise the setting max_bytes_per_partition"
    )


def _blamed(exchange: Exchange, frames: Sequence[RowFrame]) -> str:
    for port, names in enumerate(_keys_of(exchange)):
        tables = [frame.data for frame in frames if frame.port == port and not frame.step]
        if not names or not tables:
            continue
        table = pa.concat_tables(tables).slice(0, _LOOKED_AT)
        ids, firsts = group_ids([table.column(name) for name in names], table.num_rows)
        most = int(np.bincount(ids).argmax())
        share = np.count_nonzero(ids == most) / table.num_rows
        if share >= _HEAVY:
            key = [table.column(name)[int(firsts[most])].as_py() for name in names]
            return f"{share:.0%} of its rows have the key {shown(key)}, and no number of partitions divides these. "
    return ""


def _keys_of(exchange: Exchange) -> list[tuple[str, ...]]:
    """Return the names of the key's columns, by port."""
    node = exchange.node
    if isinstance(node, (JoinNode, MultiReduceNode)):
        return [fields.names for fields in node.groups]
    if isinstance(node, PersistNode):
        return [node.aggregation.group.names if node.aggregation is not None else ()]
    return [node.routing.fields.names if isinstance(node, RepartitionNode) else ()]
