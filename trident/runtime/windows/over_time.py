"""Updates one partition of a window or of a join over time, between `begin_commit` and `commit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from trident.graph import JoinWithinNode, WindowNode
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.firing import update_window
from trident.runtime.windows.join_update import update_join
from trident.runtime.windows.shares import Moment, PartitionPlace

__all__ = ["update_over_time"]


def update_over_time(
    node: WindowNode | JoinWithinNode,
    state: Any,
    place: PartitionPlace,
    tables: Sequence[pa.Table],
    moment: Moment,
    run: StepRun,
) -> pa.Table:
    """Add the rows of a batch that one partition has; return the rows of the windows that fired, or the joined ones.

    Parameters
    ----------
    place
        Which partition `state` is, of how many.
    tables
        The rows of this partition, see `shares_of`; there may be none.
    moment
        What all partitions must know of the batch, see `moment_of`.
    """
    if isinstance(node, WindowNode):
        return update_window(node, state, tables, moment, run, place)
    return update_join(node, state, tables, moment, run.on_error.bounds, place)
