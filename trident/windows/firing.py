"""One batch of a window, within the commit of its state: it stores the new rows and fires the complete windows.

All windows of a node have one *frontier*: how many tuples there were, the time of the batch, or the watermark. A window
fires when the frontier reaches its end. Only windows over the count of each key have a frontier for each key.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import JoinWithinNode, WindowNode
from trident.operations.windows import SessionWindow, TimersConfig
from trident.steps.failures import calls_user_code
from trident.steps.key_columns import Ints
from trident.steps.rows import StepRun
from trident.windows.grid import Grid
from trident.windows.join_update import update_join
from trident.windows.session_update import update_sessions
from trident.windows.timer_index import ID, KeyRecords, keys_together
from trident.windows.timer_update import update_timers
from trident.windows.window_partitions import Share
from trident.windows.window_rows import (
    AT,
    NOTHING,
    NOWHERE,
    PANE,
    Complete,
    bigint,
    combine_by,
    content_fields,
    late_rows,
    panes_of,
    partials,
    results,
    value_fields,
    with_column,
    with_nothing,
    without_late,
)
from trident.windows.window_state import TupleRun as Chunks
from trident.windows.window_state import WindowStore, mergeable

_Rows = list[pa.RecordBatch]


@calls_user_code
def update_over_time(node: WindowNode | JoinWithinNode, state: Any, share: Share) -> pa.Table:
    """Add the rows of a batch that one partition has, between `begin_commit` and `commit`; return what fired, or was joined."""
    if isinstance(node, JoinWithinNode):
        return update_join(node, state, share)
    filled, lost = _with_times(node, [table for table in share.tables if table.num_rows])
    rows = _update_rows(node, state, replace(share, tables=filled))
    return pa.concat_tables([rows, *(late_rows(node, table) for table in lost)])


def _with_times(node: WindowNode, tables: list[pa.Table]) -> tuple[list[pa.Table], list[pa.Table]]:
    """Return the tuples that have a time, and those that are late rows because no calendar has theirs."""
    if not len(node.late):
        return tables, []
    own, lost = [], []
    for table in tables:
        is_lost = table.column(AT).to_numpy() == NOWHERE
        if is_lost.any():
            lost.append(table.filter(pa.array(is_lost)))
            table = table.filter(pa.array(~is_lost))
        own.extend([table] if table.num_rows else [])
    return own, lost


def _update_rows(node: WindowNode, state: Any, share: Share) -> pa.Table:
    if node.config.counts and len(node.group):
        tables = share.tables
        return _update_counts(node, state, pa.concat_tables(tables), share.run) if tables else _nothing(node)
    if isinstance(node.config, SessionWindow):
        return update_sessions(node, state, share)
    if isinstance(node.config, TimersConfig):
        return update_timers(node, state, share)
    update, now = _Update(node, state, share), share.moment.now
    ended = update.begin_again() if node.config.by_batch_time and now is not None and now.begins_again else []
    update.take(share.tables)
    rows = pa.concat_tables([*ended, update.fire(), *update.late])
    if node.config.by_batch_time and (due := update.next_end()) is not None:
        share.run.timers.append(due)
    return rows


def _nothing(node: WindowNode) -> pa.Table:
    return schema_of(node.fields).empty_table()


class _Update:
    """One batch of a window whose keys have a common frontier."""

    def __init__(self, node: WindowNode, state: Any, share: Share) -> None:
        self._node, self._moment, self._run = node, share.moment, share.run
        self._grid = Grid.of(node.config)
        times = node.config.times
        self._store = WindowStore(state, content_fields(node), self._grid.width, share.place, node.group, times)
        self._before = self._frontier = self._store.directory.frontier
        self._new: dict[int, pa.Table] = {}
        self._began_again = False
        self.late: list[pa.Table] = []

    def begin_again(self) -> list[pa.Table]:
        """Fire all windows that hold rows, and forget how far they have fired; return the rows of what fired."""
        runs = self._store.directory.panes
        panes = sorted(runs)
        before = None if self._before is None else self._grid.complete_up_to(self._before)
        ends = self._grid.ends(panes, before, self._grid.ends_of(panes[-1])[-1]) if panes else []
        read = self._store.read(run for pane in panes for run in runs[pane])
        rows = self._results(ends, {pane: self._pane(pane, runs[pane], read) for pane in panes})
        for pane in panes:
            self._store.remove(pane)
        self._began_again = self._before is not None
        self._before = self._frontier = None
        return [rows]

    def take(self, tables: Sequence[pa.Table]) -> None:
        """Find the pane of each row, and how far the frontier moves."""
        config, several = self._node.config, len(tables) > 1
        if config.by_batch_time:
            assert self._moment.now is not None, self._node
            self._move_to(self._moment.now.ms)
        elif config.event_time is not None:
            # The times of late rows, and of those in other partitions, move the watermark too.
            self._frontier = self._moment.watermark(self._frontier, config.event_time)
        if not tables:
            return
        table = pa.concat_tables(tables)
        key = self._node.group.concat(bigint(PANE))
        if config.by_batch_time:  # the frontier is later than the batch if a store was adopted and the clock is behind
            table = with_column(table, PANE, self._grid.pane_of(np.full(table.num_rows, self._frontier)))
        elif config.event_time is not None:
            table = self._in_time(table)
        else:
            first = self._before or 0
            self._move_to(first + table.num_rows)
            table = with_column(table, PANE, np.arange(first, first + table.num_rows) // self._grid.width)
        if self._node.combines and (config.counts or len(self._node.late)):
            table = partials(self._node, table, key, self._run)
        elif self._node.combines and several:
            table = combine_by(self._node, table, key, self._run)
        self._new = _by_pane(table, self._store.schema)

    def _in_time(self, table: pa.Table) -> pa.Table:
        """Return the rows that some open window holds."""
        if PANE not in table.column_names:
            table = with_column(table, PANE, panes_of(self._node, table))
        if self._before is None:
            return table
        panes = table.column(PANE).to_numpy()
        over = [pane for pane in np.unique(panes).tolist() if self._grid.is_over(pane, self._before)]
        if not over:
            return table
        in_time, late = without_late(self._node, table, np.isin(panes, over))
        self.late = [late_rows(self._node, late)]
        return in_time

    def _move_to(self, ordinate: int) -> None:
        self._frontier = ordinate if self._frontier is None else max(self._frontier, ordinate)

    def fire(self) -> pa.Table:
        """Write what later windows need; return the rows of the windows that are complete."""
        frontier, directory = self._frontier, self._store.directory
        if frontier is None:
            return _nothing(self._node)
        ends = self._complete(frontier)
        moved = self._began_again if self._node.config.by_batch_time else frontier != self._before  # time is in the log
        if not (ends or self._new or moved or self._store.must_write(self._moment.given)):
            return _nothing(self._node)
        added = [pane for pane in self._new if not self._grid.is_over(pane, frontier)]
        merges = {pane: mergeable(directory.panes.get(pane, ()), self._node.combines) for pane in added}
        held = [pane for pane in sorted({*directory.panes, *self._new}) if self._grid.holds(ends, pane)]
        runs = {pane: directory.panes.get(pane, ()) for pane in held}
        read = self._store.read(chain.from_iterable((*runs.values(), *merges.values())))
        rows = self._results(ends, {pane: self._pane(pane, of_pane, read) for pane, of_pane in runs.items()})
        self._keep(merges, read, frontier)
        return rows

    def next_end(self) -> int | None:
        """Return when the next window ends that holds anything; None: none does."""
        panes = self._store.directory.panes
        return None if self._frontier is None else self._grid.next_end(panes, self._frontier)

    def _keep(self, merges: dict[int, Sequence[Chunks]], read: dict[Chunks, _Rows], frontier: int) -> None:
        """Write the rows of this batch, with the runs that they are merged with; remove the panes that are over."""
        for pane, runs in merges.items():
            table = self._table(self._pane(pane, runs, read))
            if runs and self._node.combines:
                table = combine_by(self._node, table, self._node.group, self._run)
            self._store.add(pane, table, runs)
        directory = self._store.directory
        for pane in [pane for pane in directory.panes if self._grid.is_over(pane, frontier)]:
            self._store.remove(pane)
        directory.frontier = frontier
        self._store.write()

    def _complete(self, frontier: int) -> list[int]:
        """Return the ends of the windows that fire: those that the frontier passes, and earlier ones that got late rows."""
        lateness, before = self._grid.lateness, self._before
        reached, until = self._grid.complete_up_to, self._grid.complete_up_to(frontier)
        held = sorted({*self._store.directory.panes, *self._new})
        if before is None:
            return self._grid.ends(held, None, until)
        passed = self._grid.ends(held, reached(before), until)
        if not lateness:
            return passed
        late = [pane for pane in self._moment.panes if not self._grid.is_over(pane, before)]  # in any partition
        return [*self._grid.ends(late, reached(before - lateness), reached(before)), *passed]

    def _pane(self, pane: int, runs: Sequence[Chunks], read: dict[Chunks, _Rows]) -> _Rows:
        stored = [rows for run in runs for rows in read[run]]
        return [*stored, *self._new[pane].to_batches()] if pane in self._new else stored

    def _table(self, rows: _Rows) -> pa.Table:
        return pa.Table.from_batches(rows, self._store.schema)

    def _results(self, ends: Sequence[int], panes: dict[int, _Rows]) -> pa.Table:
        if not ends:
            return _nothing(self._node)
        numbers = list(panes)
        starts = [0, *accumulate(sum(some.num_rows for some in rows) for rows in panes.values())]
        windows = []
        for end in ends:
            first, behind = self._grid.panes_of(end)
            windows.append(Complete(end, starts[bisect_left(numbers, first)], starts[bisect_left(numbers, behind)]))
        windows = [window for window in windows if window.first < window.stop]
        rows = self._table([some for of_pane in panes.values() for some in of_pane])
        return results(self._node, rows.combine_chunks(), windows, self._run)


def _by_pane(table: pa.Table, schema: pa.Schema) -> dict[int, pa.Table]:
    if not table.num_rows:
        return {}
    panes: Ints = table.column(PANE).to_numpy()
    table = table.select(schema.names).cast(schema)
    if np.any(panes[1:] < panes[:-1]):
        order = np.argsort(panes, kind="stable")
        table, panes = table.take(pa.array(order)), panes[order]
    numbers, firsts = np.unique(panes, return_index=True)
    stops = [*firsts[1:].tolist(), len(panes)]
    return {
        pane: table.slice(first, stop - first)
        for pane, first, stop in zip(numbers.tolist(), firsts.tolist(), stops, strict=True)
    }


def _update_counts(node: WindowNode, state: Any, table: pa.Table, run: StepRun) -> pa.Table:
    """Add a batch, which has tuples, to windows over the count of each key; return the rows of those that are complete.

    `("key", *key)` -> length, slide, number of tuples, columns of the panes that a later window needs. A pane of a combiner is
    one partial result of as many tuples as possible so that no window ends within them; without a combiner it is one tuple. All
    panes up to the last exist, without a gap, so they need no numbers.
    """
    if value_fields(node) is NOTHING:
        table = with_nothing(table)
    keys, names, ids = keys_together(node.group, [table])
    length, slide = node.config.length, node.config.slide
    records = KeyRecords(state, "the records of a window", [length, slide, 0], value_fields(node))
    (lengths, slides, counts), (stored,) = records.read(names)
    for other in set(zip(lengths, slides, strict=True)) - {(length, slide)}:
        raise CorruptValueError(
            f"read the records of a window: one is of length {other[0]} and slide {other[1]}, this topology has {length} and "
            f"{slide}. Declare it as it was: another state_name begins with nothing"
        )
    held = _merge_stored(node, with_column(table, ID, ids), np.array(counts, np.int64), stored, run)
    # Kept are the rows that a later window of their key needs.
    firsts = held.at(slice(None), (held.after // slide + 1) * slide - length)
    owners = held.rows.column(ID).to_numpy()
    needed = held.rows.filter(pa.array(np.arange(len(owners)) >= firsts[owners]))
    records.write([lengths, slides, held.after.tolist()], repeat(False), needed.select([ID, *value_fields(node).names]))
    return _results_of_counts(node, held, keys, run)


@dataclass(frozen=True)
class _Held:
    """Everything that the state holds for the keys of a batch, by the number of the key."""

    rows: pa.Table  # ordered by key, then by pane
    width: int  # of a pane, in tuples
    before: Ints  # number of tuples of each key before and after the batch (int64)
    after: Ints
    starts: Ints  # the first row of each key, then the number of rows (int64, keys + 1)
    first_panes: Ints  # the pane of each key's first row (int64)

    def at(self, keys: Any, positions: Ints) -> Ints:
        """Return the rows of the panes that begin at positions of some keys."""
        rows: Ints = self.starts[:-1][keys] + np.maximum(positions, 0) // self.width - self.first_panes[keys]
        return rows


def _merge_stored(node: WindowNode, table: pa.Table, before: Ints, stored: pa.Table, run: StepRun) -> _Held:
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


def _results_of_counts(node: WindowNode, held: _Held, keys: pa.Table, run: StepRun) -> pa.Table:
    length, slide = node.config.length, node.config.slide
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
