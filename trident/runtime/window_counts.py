"""Windows over the count of each key: one record per key, since each key has a count of its own.

`("key", *key)` -> the number of its tuples, and the columns of the panes that a later window needs. A pane of a combiner is
one partial result of so many tuples that no window ends within them; without a combiner it is one tuple. So all panes up to
the last are there, without a gap, and none has to be numbered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import WindowNode
from trident.runtime.groups import Ints, group_ids
from trident.runtime.rows import Run, tuples_of
from trident.runtime.window_grid import Grid
from trident.runtime.window_input import NOTHING, PANE, content_fields, merged, partials, with_column, with_nothing
from trident.runtime.window_results import Complete, results
from trident.state.codec import decode_many, encode_many
from trident.state.interfaces import Key

__all__ = ["update_counts"]

_KEY = "$key"
_VERSION = 1


def update_counts(node: WindowNode, state: Any, table: pa.Table, run: Run) -> pa.Table:
    """Take a batch, which has tuples, into the state; return the rows of the windows that are complete."""
    width = _width(node)
    values = _values(node)
    if values is NOTHING:
        table = with_nothing(table)
    ids, firsts = group_ids([table.column(name) for name in node.group.names], table.num_rows)
    keys = table.select(list(node.group.names)).take(pa.array(firsts))
    names: list[Key] = [("key", *row.values) for row in tuples_of(keys, node.group)]
    counts, kept = _read(state, names, values)
    positions = counts[ids] + _ranks(ids)
    new = with_column(with_column(table, _KEY, ids), PANE, positions // width)
    key = Fields.of([_KEY, PANE], ["bigint", "bigint"])
    if node.combines:
        new = partials(node, new, key, run)
    held = pa.concat_tables([_stored(values, kept, counts, width), new.select([_KEY, PANE, *values.names])])
    if node.combines:
        held = merged(node, held, key, run)
    held = held.sort_by([(_KEY, "ascending"), (PANE, "ascending")])
    after = counts + np.bincount(ids, minlength=len(names))
    starts = np.searchsorted(held.column(_KEY).to_numpy(), np.arange(len(names) + 1))
    first_panes = held.column(PANE).to_numpy()[starts[:-1]]
    spans = [
        _Span(*span)
        for span in zip(counts.tolist(), after.tolist(), starts.tolist(), first_panes.tolist(), strict=False)
    ]
    _write(state, names, spans, starts[1:].tolist(), [held.column(name).to_pylist() for name in values.names], node)
    return _results(node, held, keys, spans, run)


@dataclass(frozen=True)
class _Span:
    """What a batch does to a key.

    Attributes
    ----------
    before, after
        The number of its tuples.
    start, first_pane
        Where its rows begin in the table of all that is held, and the pane of the first one.
    """

    before: int
    after: int
    start: int
    first_pane: int

    def at(self, position: int, width: int) -> int:
        """Return the row of the pane that begins at a position."""
        return self.start + max(position, 0) // width - self.first_pane


def _width(node: WindowNode) -> int:
    return Grid.of(node.config).width if node.combines else 1


def _values(node: WindowNode) -> Fields:
    """The columns that are kept beside the key."""
    fields = content_fields(node)
    names = [name for name in fields.names if name not in node.group.names]
    return fields.select(names) if names else NOTHING


def _ranks(ids: Ints) -> Ints:
    """How many rows of the same key stand before each row."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.searchsorted(sorted_ids, sorted_ids)
    ranks = np.empty(len(ids), np.int64)
    ranks[order] = np.arange(len(ids)) - starts
    return ranks


def _read(state: Any, names: Sequence[Key], values: Fields) -> tuple[Ints, list[list[list[Any]]]]:
    """The count of each key, and its columns."""
    data = state.multi_get(names)
    there = iter(decode_many([one for one in data if one is not None]))
    records: list[list[Any]] = [[_VERSION, 0, *([] for _ in values)] if one is None else next(there) for one in data]
    for name, record in zip(names, records, strict=True):
        if record[0] != _VERSION or len(record) != len(values) + 2:
            raise CorruptValueError(
                f"read window {name!r}: it is of version {record[0]!r} with {len(record) - 2} columns, this topology keeps "
                f"version {_VERSION} with {list(values.names)}; another version of the topology wrote it. Give the window "
                "another state_name"
            )
    return np.array([record[1] for record in records], np.int64), [record[2:] for record in records]


def _stored(values: Fields, kept: list[list[list[Any]]], counts: Ints, width: int) -> pa.Table:
    """The rows that were kept, each with the number of its key and its pane."""
    sizes = np.array([len(columns[0]) if columns else 0 for columns in kept], np.int64)
    ids = np.repeat(np.arange(len(kept)), sizes)
    last = (counts - 1) // width
    panes = np.repeat(last - sizes + 1, sizes) + _ranks(ids)
    columns = [[value for of_key in kept for value in of_key[at]] for at in range(len(values))]
    schema = schema_of(Fields.of([_KEY, PANE], ["bigint", "bigint"]).concat(values))
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, schema.types[2:], strict=True)]
    return pa.table([pa.array(ids, pa.int64()), pa.array(panes, pa.int64()), *arrays], schema=schema)


def _write(
    state: Any,
    names: Sequence[Key],
    spans: Sequence[_Span],
    stops: Sequence[int],
    columns: list[list[Any]],
    node: WindowNode,
) -> None:
    """Keep of each key what a later window needs."""
    config, width = node.config, _width(node)
    records = []
    for span, stop in zip(spans, stops, strict=True):
        first = span.at((span.after // config.slide + 1) * config.slide - config.length, width)
        records.append([_VERSION, span.after, *(column[first:stop] for column in columns)])
    state.multi_put(names, encode_many(records))


def _results(node: WindowNode, held: pa.Table, keys: pa.Table, spans: Sequence[_Span], run: Run) -> pa.Table:
    config, width = node.config, _width(node)
    windows = [
        Complete(end, span.at(end - config.length, width), span.at(end, width))
        for span in spans
        for end in range((span.before // config.slide + 1) * config.slide, span.after + 1, config.slide)
    ]
    for name in node.group.names:
        held = held.append_column(keys.schema.field(name), keys.column(name).take(held.column(_KEY)))
    return results(node, held, windows, run)
