"""Windows over the count of each key: one record per key, because each key has a count of its own.

`("key", *key)` -> length, slide, number of tuples, columns of the panes that a later window needs. A pane of a combiner is
one partial result of as many tuples as possible so that no window ends within them; without a combiner it is one tuple. All
panes up to the last exist, without a gap, so they need no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import WindowNode
from trident.operations.windows import WindowConfig
from trident.runtime.steps.key_columns import Ints, group_ids, one_form
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.fired_rows import Complete, results
from trident.runtime.windows.grid import Grid
from trident.runtime.windows.worker_input import (
    NOTHING,
    PANE,
    merged,
    partials,
    value_fields,
    with_column,
    with_nothing,
)
from trident.state.encoding.codec import decode_found, encode_many
from trident.state.interfaces import Key

_KEY = "$key"
_VERSION = 1


def update_counts(node: WindowNode, state: Any, table: pa.Table, run: StepRun) -> pa.Table:
    """Add a batch, which has tuples, to the state; return the rows of the windows that are complete."""
    values = value_fields(node)
    if values is NOTHING:
        table = with_nothing(table)
    ids, firsts = group_ids([table.column(name) for name in node.group.names], table.num_rows)
    keys = one_form(table.select(list(node.group.names)).take(pa.array(firsts)), node.group.names)
    names: list[Key] = list(zip(repeat("key"), *(keys.column(name).to_pylist() for name in keys.column_names)))
    before, stored = _read(state, names, values, node.config)
    held = _held(node, with_column(table, _KEY, ids), before, stored, run)
    _write(state, names, held, node)
    return _results(node, held, keys, run)


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


def _read(state: Any, names: Sequence[Key], values: Fields, config: WindowConfig) -> tuple[Ints, list[list[list[Any]]]]:
    """Return the count of each key (int64, one per key), and its columns."""
    empty = [_VERSION, config.length, config.slide, 0, *([] for _ in values)]
    records: list[list[Any]] = decode_found(state.multi_get(names), empty)
    for version, width in {(record[0], len(record)) for record in records}:
        if version != _VERSION or width != len(empty):
            raise CorruptValueError(
                f"read the records of a window: one is of version {version!r} with {width - 4} columns, this topology keeps "
                f"version {_VERSION} with {list(values.names)}; another version of the topology wrote it. Give the window "
                "another state_name"
            )
    for length, slide in {(record[1], record[2]) for record in records}:
        if (length, slide) != (config.length, config.slide):
            raise CorruptValueError(
                f"read the records of a window: one is of length {length} and slide {slide}, this topology has "
                f"{config.length} and {config.slide}. Give the window another state_name"
            )
    return np.array([record[3] for record in records], np.int64), [record[4:] for record in records]


def _held(node: WindowNode, table: pa.Table, before: Ints, stored: list[list[list[Any]]], run: StepRun) -> _Held:
    """Put the stored rows and the batch's together."""
    values, width = value_fields(node), Grid.of(node.config).width if node.combines else 1
    ids = table.column(_KEY).to_numpy()
    new = with_column(table, PANE, (before[ids] + _ranks(ids)) // width)
    key = Fields.of([_KEY, PANE], ["bigint", "bigint"])
    if node.combines:
        new = partials(node, new, key, run)
    rows = pa.concat_tables([_stored(values, stored, before, width), new.select([_KEY, PANE, *values.names])])
    if node.combines:
        rows = merged(node, rows, key, run)
    rows = rows.sort_by([(_KEY, "ascending"), (PANE, "ascending")])
    after = before + np.bincount(ids, minlength=len(before))
    starts = np.searchsorted(rows.column(_KEY).to_numpy(), np.arange(len(before) + 1))
    return _Held(rows, width, before, after, starts, rows.column(PANE).to_numpy()[starts[:-1]])


def _ranks(ids: Ints) -> Ints:
    """Return the number of rows of the same key before each row (int64, one per row)."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.searchsorted(sorted_ids, sorted_ids)
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids)) - starts
    return ranks


def _stored(values: Fields, stored: list[list[list[Any]]], counts: Ints, width: int) -> pa.Table:
    """The stored rows, each with the number of its key and its pane."""
    sizes = np.array([len(columns[0]) for columns in stored], np.int64)
    ids = np.repeat(np.arange(len(stored)), sizes)
    last = (counts - 1) // width
    panes = np.repeat(last - sizes + 1, sizes) + _ranks(ids)
    schema = schema_of(Fields.of([_KEY, PANE], ["bigint", "bigint"]).concat(values))
    columns = zip(schema.types[2:], zip(*stored, strict=True), strict=True)
    arrays = [pa.array(list(chain.from_iterable(of_keys)), type_) for type_, of_keys in columns]
    return pa.table([pa.array(ids, pa.int64()), pa.array(panes, pa.int64()), *arrays], schema=schema)


def _write(state: Any, names: Sequence[Key], held: _Held, node: WindowNode) -> None:
    """Store for each key what a later window needs."""
    length, slide = node.config.length, node.config.slide
    firsts = held.at(slice(None), (held.after // slide + 1) * slide - length).tolist()
    stops = held.starts[1:].tolist()
    columns = [held.rows.column(name).to_pylist() for name in value_fields(node).names]
    stored = [[column[first:stop] for first, stop in zip(firsts, stops, strict=True)] for column in columns]
    records = [[_VERSION, length, slide, *record] for record in zip(held.after.tolist(), *stored, strict=True)]
    state.multi_put(names, encode_many(records))


def _results(node: WindowNode, held: _Held, keys: pa.Table, run: StepRun) -> pa.Table:
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
        rows = rows.append_column(keys.schema.field(name), keys.column(name).take(rows.column(_KEY)))
    return results(node, rows, [Complete(*window) for window in windows], run)
