"""The keys that the tuples of a stream remove from a state: how they travel, and what they do to the updates of their batch.

A key that a batch removes is absent after the batch, so what the batch adds to it is dropped: no key is updated and removed
by one commit, and the order of the two does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trident.fields import Fields
from trident.graph.aggregations import REMOVED
from trident.runtime.steps.key_columns import group_ids, keys_of
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key


def removals_of(key: Fields, table: pa.Table) -> pa.Table:
    """Return what is sent to a state for one table of the fields that are its key."""
    mark = pa.nulls(table.num_rows, pa.bool_())
    return pa.table([mark, *table.columns], names=[REMOVED, *key.names])


def are_removals(table: pa.Table) -> bool:
    """Whether a table that was sent to a state has keys to remove."""
    return bool(table.column_names[:1] == [REMOVED])


def without_removed(key: Fields, tables: Sequence[pa.Table]) -> tuple[list[pa.Table], list[Key]]:
    """Return the updates of a batch without those of keys that it removes; and these keys, each once, in their one form."""
    updates = [table for table in tables if not are_removals(table)]
    removals = [table for table in tables if are_removals(table) and table.num_rows]
    if not removals:
        return updates, []
    gone = pa.concat_tables(removals).select(list(key.names))
    kept = [_without(table, gone) if table.num_rows else table for table in updates]
    return kept, OneForm(dict.fromkeys(keys_of(gone, key.names)))


def _without(table: pa.Table, gone: pa.Table) -> pa.Table:
    names = gone.column_names
    both = pa.concat_tables([table.select(names), gone], promote_options="permissive")
    ids, _ = group_ids(both.columns, both.num_rows)
    stays = ~np.isin(ids[: table.num_rows], ids[table.num_rows :])
    return table if stays.all() else table.filter(pa.array(stays))
