"""Exchanges: which partition a row goes to, what a partition does with the rows that arrive, and how many it may gather."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import one_table, schema_of
from trident.graph import JoinNode, MultiReduceNode, PersistNode, RepartitionNode, Routing
from trident.naming import shown
from trident.plan import Exchange, Sink
from trident.steps.aggregates import merge_all
from trident.steps.failures import Bounds, Failure, StepFailed, TooManyRows
from trident.steps.in_batch import join, multi_reduce
from trident.steps.key_columns import Ints, group_ids, partitions_of, places_of
from trident.steps.rows import StepRun, iterate
from trident.types import plain_number
from trident.windows.window_partitions import pieces_of

_KEYS_AT_ONCE = 1 << 17  # keys as Python objects take ten times the memory of the columns


class RowFrame(NamedTuple):
    """Rows on their way to one partition of an exchange.

    `target`, `port`, `partition`: the exchange, the number of its input, the number of its partition.
    `order`: the place that the rows come from. Frames are sorted by it, so a replay sees the rows in the same order.
    `step`: the step of the fragment behind the exchange at which dead letters return; empty: the rows are input of the
    exchange.
    """

    target: str
    port: int
    partition: int
    order: tuple[str, int, int]
    data: Any  # the rows: a table, or its bytes between processes
    step: str = ""


def route(
    sink: Sink, exchange: Exchange | None, tables: Sequence[pa.Table], source: tuple[str, int, int], run: StepRun
) -> Iterator[RowFrame]:
    """Cut what one partition sends to an exchange into frames; partitions that get no rows get no frame."""
    # Without an exchange the target keeps the partitions of the stream, and is committed by the driver.
    if sink.kept:
        table = one_table(tables)
        if table.num_rows:
            yield RowFrame(sink.target, sink.port, source[1] % sink.kept, source, table)
        return
    assert exchange is not None, sink
    partitions, routing = exchange.partitions or 1, sink.routing or Routing("global")
    over_time = sink.window or sink.join
    if over_time is not None:
        for partition, port, rows in pieces_of(over_time, tables, partitions):
            yield RowFrame(sink.target, port, partition, source, rows)
        return
    for table in _whole(sink, tables):
        if table.num_rows == 0:
            continue
        for partition, rows in _cut(sink, table, routing, partitions, source[1], run):
            if rows.num_rows:
                yield RowFrame(sink.target, sink.port, partition, source, rows)


def _whole(sink: Sink, tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    # Of partials only so that no table has a key twice: one that is alone is not merged where it arrives.
    if len(tables) > 1 and sink.aggregation is not None and sink.aggregation.combines:
        table = merge_all(sink.aggregation, list(tables))
        return tables if table is None else [table]
    return [one_table(tables)]


def _cut(
    sink: Sink, table: pa.Table, routing: Routing, partitions: int, at: int, run: StepRun
) -> Iterable[tuple[int, pa.Table]]:
    # Also into one partition, because the function may give a tuple to none, or be wrong.
    if routing.kind == "custom":
        return _custom(sink, table, routing, partitions, run)
    if partitions == 1:
        return [(0, table)]
    if routing.kind == "broadcast":
        return [(partition, table) for partition in range(partitions)]
    if routing.kind == "key":
        return _by_place(table, _key_places(table, routing.fields.names, partitions), partitions)
    if routing.kind == "hash":
        return _by_place(table, places_of(table, routing.fields.names, partitions), partitions)
    assert routing.kind == "shuffle", routing
    # In turn, starting at another partition in each part, so that many small parts reach all partitions.
    return _by_place(table, (np.arange(table.num_rows) + at) % partitions, partitions)


def _key_places(table: pa.Table, names: Sequence[str], partitions: int) -> Ints:
    # As `places_of`, but without looking for equal keys.
    places = np.zeros(table.num_rows, np.int64)
    for start in range(0, table.num_rows, _KEYS_AT_ONCE):
        piece = table.slice(start, _KEYS_AT_ONCE)
        columns = [piece.column(name).to_pylist() for name in names]
        keys = list(zip(*columns, strict=True)) or [()] * piece.num_rows
        for partition, rows in partitions_of(keys, partitions).items():
            places[start : start + _KEYS_AT_ONCE][rows] = partition
    return places


def _by_place(table: pa.Table, places: Ints, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    # Stable, so that the rows of a partition keep their order, and a replay gives the same.
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(partitions + 1))
    sorted_ = table.take(pa.array(order))
    for partition in range(partitions):
        start, end = int(bounds[partition]), int(bounds[partition + 1])
        if end > start:
            yield partition, sorted_.slice(start, end - start)


def _custom(
    sink: Sink, table: pa.Table, routing: Routing, partitions: int, run: StepRun
) -> Iterator[tuple[int, pa.Table]]:
    rows: dict[int, list[int]] = {}

    def visit(at: int, row: Any) -> None:
        chosen = routing.function(row, partitions)
        for given in chosen if isinstance(chosen, (list, tuple, set, frozenset, range)) else (chosen,):
            partition = given if isinstance(given, int) else plain_number(given)  # NumPy's are numbers too
            if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < partitions:
                cause = (
                    f"the function of partition returned {chosen!r} for {partitions} partitions; it must return a number "
                    f"from 0 to {partitions - 1}, or several of them"
                )
                raise StepFailed(Failure(sink.target, None, cause, retry=False, can_heal=False))
            rows.setdefault(partition, []).append(at)

    iterate(sink.target, table, routing.fields, run.on_error, visit)
    for partition, ats in sorted(rows.items()):
        yield partition, table.take(pa.array(ats, pa.int64()))


def apply_exchange(exchange: Exchange, frames: Iterable[RowFrame], run: StepRun) -> pa.Table:
    """Return the rows that one partition gives, for any frames: the input table of the fragment behind it."""
    by_port: dict[int, list[pa.Table]] = {port: [] for port in range(len(exchange.inputs))}
    for frame in sorted(frames, key=lambda frame: (frame.port, frame.order)):
        if not frame.step:
            by_port[frame.port].append(frame.data)
    inputs = [
        one_table(by_port[port]) if by_port[port] else schema_of(fields).empty_table()
        for port, fields in enumerate(exchange.inputs)
    ]
    node = exchange.node
    if isinstance(node, RepartitionNode):
        return inputs[0]
    if isinstance(node, JoinNode):
        return join(node, inputs, run.on_error.bounds)
    assert isinstance(node, MultiReduceNode), node  # what executors commit is no exchange of this kind
    return multi_reduce(node, inputs, run)


_HEAVY = 0.1  # which share of a partition's rows makes a key worth naming
_LOOKED_AT = 1_000_000  # rows in which it is looked for


def check_gathered(exchange: Exchange, partition: int, frames: Sequence[RowFrame], bounds: Bounds) -> None:
    """Raise `TooManyRows` if a partition gathers more bytes than `max_bytes_per_partition`, naming a key that has many rows."""
    size = sum(frame.data.nbytes for frame in frames)
    if size <= bounds.per_partition:
        return
    raise TooManyRows(
        f"partition {partition} of {exchange.partitions or 1} gathers {size} bytes of the batch, and at most "
        f"{bounds.per_partition} are allowed. {_heavy_key_note(exchange, frames)}Use smaller batches or more partitions "
        "(parallelism_hint), or raise the setting max_bytes_per_partition"
    )


def _heavy_key_note(exchange: Exchange, frames: Sequence[RowFrame]) -> str:
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
            return f"{share:.0%} of its rows have the key {shown(key)}, and more partitions would not divide them. "
    return ""


def _keys_of(exchange: Exchange) -> list[tuple[str, ...]]:
    node = exchange.node
    if isinstance(node, (JoinNode, MultiReduceNode)):
        return [fields.names for fields in node.groups]
    if isinstance(node, PersistNode):
        return [node.aggregation.group.names if node.aggregation is not None else ()] * (1 + len(node.removals))
    return [node.routing.fields.names if isinstance(node, RepartitionNode) else ()]
