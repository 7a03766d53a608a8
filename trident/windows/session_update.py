"""Session windows: what their state holds, and one batch within the commit of that state.

Rows of a key that are no more than a gap apart are one session, whether they were kept or come now; so a row between two open
sessions makes them one. A session is *over* when the watermark is beyond its last row and the gap; then it is given, and
forgotten. Rows are late if what they belong to, with all that is kept and comes with them, was over before the batch.

    ("key", *key)    -> version, when to look again, then columns, a row for each session, or for each tuple if the aggregator
                        takes tuples: first time, last time, the values
    ("windows",)     -> the directory of `timer_index`, with the watermark, and its chunks

A key is *due* at the earliest end of its sessions. Most tuples only make a session longer; then it keeps its place and is
looked at too early, so it is noted once in the time of a gap.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.graph import WindowNode
from trident.steps.key_columns import Ints
from trident.steps.rows import StepRun
from trident.windows.grid import Spans, sessions_of
from trident.windows.timer_index import ID, NEVER, DueRecords, keys_together
from trident.windows.window_partitions import Share
from trident.windows.window_rows import (
    AT,
    END,
    NOTHING,
    SESSION,
    START,
    bigint,
    combine_by,
    late_rows,
    partials,
    session_results,
    value_fields,
    with_column,
    with_nothing,
    without_late,
)

_TIMES = Fields.of([START, AT], ["bigint"] * 2)


def update_sessions(node: WindowNode, state: Any, share: Share) -> pa.Table:
    """Add a batch to a partition of the state, between `begin_commit` and `commit`; return the rows of complete sessions."""
    of, moment = (node.group, share.place, node.config.times, "the sessions of a window"), share.moment
    records = DueRecords(state, *of, [], _TIMES.concat(value_fields(node)))
    assert node.config.event_time is not None, node
    watermark, gap = moment.watermark(records.frontier, node.config.event_time), node.config.length * node.config.per_ms
    if watermark is None or not (share.tables or watermark != records.frontier or records.must_write(moment.given)):
        return schema_of(node.fields).empty_table()
    came = _came(node, share.tables)
    keys, names, ids = keys_together(node.group, [came, records.take(watermark - 1)])
    _, (kept,) = records.read(names)
    came = with_column(came, ID, ids[: came.num_rows])
    columns = list(kept.column_names)
    both = ([table.column(name).to_numpy() for table in (kept, came)] for name in (ID, START, AT))
    numbers, sessions = sessions_of(Spans(*map(np.concatenate, both)), gap)
    ends = sessions.lasts + gap
    kept = with_column(kept, SESSION, numbers[: kept.num_rows])
    came = with_column(came, SESSION, numbers[kept.num_rows :])
    were_over = ends < (NEVER if records.frontier is None else records.frontier)
    came, late = without_late(node, came, were_over[came.column(SESSION).to_numpy()])
    rows = _together(node, kept, came, sessions, share.run)
    over = ends[rows.column(SESSION).to_numpy()] < watermark
    complete, open_ones = rows.filter(pa.array(over)), rows.filter(pa.array(~over))
    ends_of_keys = _due(open_ones, ends, len(names))
    empty = (ends_of_keys == NEVER).tolist()
    records.keep(keys, [(ends_of_keys, watermark - 1)], watermark, (), empty, open_ones.select(columns))
    return pa.concat_tables([_results(node, complete, sessions, keys, share.run), late_rows(node, late)])


def _came(node: WindowNode, tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows that come; a tuple is a row that ends when it begins."""
    if not tables:
        fields = node.group.concat(_TIMES).concat(value_fields(node))
        more = [name for name in node.late.names if name not in fields.names]
        return schema_of(fields.concat(node.late.select(more))).empty_table()
    table = pa.concat_tables(tables)
    table = table if START in table.column_names else table.append_column(START, table.column(AT))
    return with_nothing(table) if value_fields(node) is NOTHING else table


def _together(node: WindowNode, kept: pa.Table, came: pa.Table, sessions: Spans, run: StepRun) -> pa.Table:
    """Return all rows by session: one for each partial result, or tuples in the order of their times."""
    if not node.combines:
        rows = pa.concat_tables([kept, came.select(kept.column_names).cast(kept.schema)])
        order = np.lexsort((rows.column(START).to_numpy(), rows.column(SESSION).to_numpy()))
        return rows.take(pa.array(order))
    if len(node.late):
        came = partials(node, came, bigint(SESSION), run)
    kept = kept.select([SESSION, *node.member.outputs.names])
    rows = pa.concat_tables([kept, came.select(kept.column_names).cast(kept.schema)])
    rows = combine_by(node, rows, bigint(SESSION), run).sort_by(SESSION)
    numbers = rows.column(SESSION).to_numpy()
    for name, ofs in zip((ID, START, AT), sessions, strict=True):
        rows = with_column(rows, name, ofs[numbers])
    return rows


def _results(node: WindowNode, rows: pa.Table, sessions: Spans, keys: pa.Table, run: StepRun) -> pa.Table:
    """Return what complete sessions give, in the order of their last times."""
    if not rows.num_rows:
        return schema_of(node.fields).empty_table()
    numbers = rows.column(SESSION).to_numpy()
    columns = dict(zip(keys.column_names, keys.take(rows.column(ID)).columns, strict=True))
    columns |= {name: rows.column(name) for name in value_fields(node).names}
    held = pa.table({**columns, START: sessions.starts[numbers], END: sessions.lasts[numbers]})
    return session_results(node, held, run)


def _due(rows: pa.Table, ends: Ints, count: int) -> Ints:
    """Return for each key when the first of its sessions ends (int64, one per key); `NEVER` if it has none."""
    due = np.full(count, NEVER)
    keys, firsts = np.unique(rows.column(ID).to_numpy(), return_index=True)  # rows are by session
    due[keys] = ends[rows.column(SESSION).to_numpy()[firsts]]
    return due
