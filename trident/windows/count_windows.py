"""Windows over the count of each key: one record per key, because each key has a count of its own.

`("key", *key)` -> length, slide, number of tuples, columns of the panes that a later window needs. A pane of a combiner is
one partial result of as many tuples as possible so that no window ends within them; without a combiner it is one tuple. All
panes up to the last exist, without a gap, so they need no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import WindowNode
from trident.steps.key_columns import Ints
from trident.steps.rows import StepRun
from trident.windows.grid import Grid
from trident.windows.timer_index import ID, KeyRecords, keys_together
from trident.windows.window_rows import (
    NOTHING,
    PANE,
    Complete,
    combine_by,
    partials,
    results,
    value_fields,
    with_column,
    with_nothing,
)


def update_counts(node: WindowNode, state: Any, table: pa.Table, run: StepRun) -> pa.Table:
    """Add a batch, which has tuples, to the state; return the rows of the windows that are complete."""
    if value_fields(node) is NOTHING:
        table = with_nothing(table)
    keys, names, ids = keys_together(node.group, [table])
    records = KeyRecords(state, "the records of a window", [*_size(node), 0], value_fields(node))
    (lengths, slides, counts), (stored,) = records.read(names)
    for length, slide in set(zip(lengths, slides, strict=True)) - {_size(node)}:
        raise CorruptValueError(
            f"read the records of a window: one is of length {length} and slide {slide}, this topology has "
            f"{node.config.length} and {node.config.slide}. Declare it as it was: another state_name begins with nothing"
        )
    before = np.array(counts, np.int64)
    held = _merge_stored(node, with_column(table, ID, ids), before, stored, run)
    records.write(names, [lengths, slides, held.after.tolist()], None, _rows_to_keep(node, held))
    return _results(node, held, keys, run)


def _size(node: WindowNode) -> tuple[int, int]:
    return node.config.length, node.config.slide


@dataclass(frozen=True)
class _Held:
    """Everything that the state holds for the keys of a batch, by the number of the key.

    `rows`: ordered by key, then by pane.
    `width`: of a pane, in tuples.
    `before`, `after`: the number of tuples of each key before and after the batch (int64, one per key).
    `starts`, `first_panes`: the first row of each key, then the number of rows (int64, keys + 1); and the pane of each key's
    first row (int64).
    """

    rows: pa.Table
    width: int
    before: Ints
    after: Ints
    starts: Ints
    first_panes: Ints

    def at(self, keys: Any, positions: Ints) -> Ints:
        """Return the rows of the panes that begin at positions of some keys."""
        rows: Ints = self.starts[:-1][keys] + np.maximum(positions, 0) // self.width - self.first_panes[keys]
        return rows


def _merge_stored(node: WindowNode, table: pa.Table, before: Ints, stored: pa.Table, run: StepRun) -> _Held:
    """Put the stored rows and the batch's together."""
    width = Grid.of(node.config).width if node.combines else 1
    ids, owners = table.column(ID).to_numpy(), stored.column(ID).to_numpy()
    first_panes = (before - 1) // width + 1 - np.bincount(owners, minlength=len(before))
    stored = with_column(stored, PANE, first_panes[owners] + _ranks(owners))
    new = with_column(table, PANE, (before[ids] + _ranks(ids)) // width)
    key = Fields.of([ID, PANE], ["bigint", "bigint"])
    if node.combines:
        new = partials(node, new, key, run)
    rows = pa.concat_tables([stored, new.select(stored.column_names).cast(stored.schema)])
    if node.combines:
        rows = combine_by(node, rows, key, run)
    rows = rows.sort_by([(ID, "ascending"), (PANE, "ascending")])
    after = before + np.bincount(ids, minlength=len(before))
    starts = np.searchsorted(rows.column(ID).to_numpy(), np.arange(len(before) + 1))
    return _Held(rows, width, before, after, starts, rows.column(PANE).to_numpy()[starts[:-1]])


def _ranks(ids: Ints) -> Ints:
    """Return the number of rows of the same key before each row (int64, one per row)."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.searchsorted(sorted_ids, sorted_ids)
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids)) - starts
    return ranks


def _rows_to_keep(node: WindowNode, held: _Held) -> pa.Table:
    """Return the rows that a later window of their key needs."""
    length, slide = _size(node)
    firsts = held.at(slice(None), (held.after // slide + 1) * slide - length)
    owners = held.rows.column(ID).to_numpy()
    needed = held.rows.filter(pa.array(np.arange(len(owners)) >= firsts[owners]))
    return needed.select([ID, *value_fields(node).names])


def _results(node: WindowNode, held: _Held, keys: pa.Table, run: StepRun) -> pa.Table:
    length, slide = _size(node)
    fires = np.nonzero(held.before // slide != held.after // slide)[0]
    counts = held.after[fires] // slide - held.before[fires] // slide
    owners = np.repeat(fires, counts)
    ends = (np.repeat(held.before[fires] // slide, counts) + _ranks(owners) + 1) * slide
    order = np.argsort(ends, kind="stable")
    owners, ends = owners[order], ends[order]
    windows = zip(ends.tolist(), held.at(owners, ends - length).tolist(), held.at(owners, ends).tolist(), strict=True)
    rows = held.rows
    if not len(owners):
        return schema_of(node.fields).empty_table()
    for name in node.group.names:
        rows = rows.append_column(keys.schema.field(name), keys.column(name).take(rows.column(ID)))
    return results(node, rows, [Complete(*window) for window in windows], run)
