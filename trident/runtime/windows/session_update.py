"""One batch of a session window, within the commit of its state.

Rows of a key that are no more than a gap apart are one session, whether they were kept or come now; so a row between two open
sessions makes them one. A session is *over* when the watermark is beyond its last row and the gap; then it is given, and
forgotten. Rows are late if what they belong to, with all that is kept and comes with them, was over before the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import WindowNode
from trident.operations.metrics import count_again
from trident.runtime.steps.key_columns import Ints, group_ids, one_form
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.fired_rows import session_results
from trident.runtime.windows.kept_sessions import ID, KeptSessions
from trident.runtime.windows.session_spans import Spans, sessions_of
from trident.runtime.windows.shares import ONE, Moment, PartitionPlace
from trident.runtime.windows.worker_input import (
    AT,
    END,
    NOTHING,
    ROWS,
    SESSION,
    START,
    bigint,
    merged,
    value_fields,
    with_column,
    with_nothing,
)
from trident.state.interfaces import Key


def update_sessions(
    node: WindowNode, state: Any, tables: Sequence[pa.Table], moment: Moment, run: StepRun, place: PartitionPlace = ONE
) -> pa.Table:
    """Add a batch to a partition of the state, between `begin_commit` and `commit`; return the rows of complete sessions.

    Parameters
    ----------
    tables
        What `worker_input` made of the batch for this partition, in the order of its parts; each has rows.
    moment
        What all partitions know of the batch.
    place
        Which partition it is.
    """
    store = KeptSessions(node, state, place)
    watermark = _moved(node, store.watermark, moment)
    if watermark is None or not (tables or watermark != store.watermark or store.must_write(moment.given)):
        return schema_of(node.fields).empty_table()
    came = [table if START in table.column_names else with_column(table, START, table.column(AT)) for table in tables]
    keys, names, own = _keys(node, [*came, store.due_keys(watermark)])
    kept = store.read(names)
    rows = pa.concat_tables([kept, *_numbered(node, came, own, kept.schema)])
    rows, spans = _together(node, rows, _tuples(kept, came), store.watermark, run)
    over = spans.lasts + node.config.length < watermark
    complete = _results(node, rows.filter(pa.array(over)), _of(spans, over), keys, run)
    stay = _of(spans, ~over)
    store.write(
        names,
        keys,
        rows.filter(pa.array(~over)).select(kept.column_names),
        _earliest(stay, node.config.length, len(names)),
        watermark,
    )
    return complete


_NO_SESSION = -(1 << 62)


def _moved(node: WindowNode, before: int | None, moment: Moment) -> int | None:
    """Return the watermark after the batch: the latest time of all keys less the delay; it never goes back."""
    reached = moment.reached[0]
    if reached is None or node.config.event_time is None:
        return before
    reached -= node.config.event_time.delay_ms
    return reached if before is None else max(before, reached)


def _keys(node: WindowNode, tables: Sequence[pa.Table]) -> tuple[pa.Table, list[Key], Ints]:
    """Return the distinct keys of the tables, their names in the state, and the number of the key of each row."""
    schema = schema_of(node.group)
    whole = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    ids, firsts = group_ids(whole.columns, whole.num_rows)
    keys = one_form(whole.take(pa.array(firsts, pa.int64())), schema.names)
    return keys, list(zip(repeat("key"), *(column.to_pylist() for column in keys.columns))), ids


def _numbered(node: WindowNode, tables: Sequence[pa.Table], ids: Ints, schema: pa.Schema) -> list[pa.Table]:
    """Return the rows that come with the number of their key, in the columns of those that are kept."""
    numbered, first = [], 0
    for table in tables:
        table = with_nothing(table) if value_fields(node) is NOTHING else table
        table = with_column(table, ID, ids[first : first + table.num_rows])
        numbered.append(table.select(schema.names).cast(schema))
        first += table.num_rows
    return numbered


def _tuples(kept: pa.Table, tables: Sequence[pa.Table]) -> Ints:
    """Return how many tuples that come now each row stands for."""
    sizes = [
        table.column(ROWS) if ROWS in table.column_names else np.ones(table.num_rows, np.int64) for table in tables
    ]
    return np.concatenate([np.zeros(kept.num_rows, np.int64), *sizes])


def _together(
    node: WindowNode, rows: pa.Table, tuples: Ints, before: int | None, run: StepRun
) -> tuple[pa.Table, Spans]:
    """Return the rows of sessions that were not over before, by key and time, and the session of each; count the others.

    Partial results of a session become one row.
    """
    if not rows.num_rows:
        return rows, Spans(*(np.empty(0, np.int64) for _ in range(3)))
    gap = node.config.length
    numbers, found = sessions_of(Spans(*(rows.column(name).to_numpy() for name in (ID, START, AT))), gap)
    if before is not None and (late := (found.lasts + gap < before)[numbers]).any():
        count_again({f"{node.state}/late": int(tuples[late].sum())})
        rows, numbers = rows.filter(pa.array(~late)), numbers[~late]
    if not node.combines:
        order = np.lexsort((rows.column(START).to_numpy(), numbers))
        return rows.take(pa.array(order)), Spans(*(column[numbers[order]] for column in found))
    rows = merged(node, with_column(rows, SESSION, numbers), bigint(SESSION), run).sort_by(SESSION)
    spans = Spans(*(column[rows.column(SESSION).to_numpy()] for column in found))
    columns = zip((ID, START, AT), map(pa.array, spans), strict=True)
    values = {name: rows.column(name) for name in node.member.outputs.names}
    return pa.table({**dict(columns), **values}), spans


def _results(node: WindowNode, rows: pa.Table, spans: Spans, keys: pa.Table, run: StepRun) -> pa.Table:
    """Return what complete sessions give, in the order of their last times."""
    if not rows.num_rows:
        return schema_of(node.fields).empty_table()
    columns = dict(zip(keys.column_names, keys.take(pa.array(spans.keys)).columns, strict=True))
    columns |= {name: rows.column(name) for name in value_fields(node).names}
    return session_results(node, pa.table({**columns, START: spans.starts, END: spans.lasts}), run)


def _of(spans: Spans, some: Any) -> Spans:
    return Spans(*(column[some] for column in spans))


def _earliest(spans: Spans, gap: int, count: int) -> Ints:
    """Return for each key when the first of its sessions ends (int64, one per key); `_NO_SESSION` if it has none."""
    due = np.full(count, _NO_SESSION)
    keys, firsts = np.unique(spans.keys, return_index=True)  # the first row of a key is of its first session
    due[keys] = spans.lasts[firsts] + gap
    return due
