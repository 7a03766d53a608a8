"""What each partition of a window, or of a join over time, gets of a batch.

Each partition gets the rows of its keys, by their hash, and all get the same `Moment`: so time passes in a partition that gets
no rows, and what fires does not depend on the number of partitions. Each task sends all partitions the moment of its own rows,
and each partition combines what all tasks sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.graph import JoinWithinNode, WindowNode
from trident.operations.windows import FIRST_MS, EventTime
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key
from trident.steps.failures import TupleErrors
from trident.steps.key_columns import places_of
from trident.steps.rows import StepRun
from trident.windows.window_rows import AT, MARKS, NOWHERE, panes_of

OverTime = WindowNode | JoinWithinNode


class PartitionPlace(NamedTuple):
    """Which partition of a state this is, of how many."""

    partition: int = 0
    partitions: int = 1

    def key(self, *parts: Any) -> Key:
        """Return a key of this partition alone; the only one adds nothing to it."""
        return parts if self.partitions == 1 else (parts[0], self.partitions, self.partition, *parts[1:])


ONE = PartitionPlace()


class Now(NamedTuple):
    """The time of a batch."""

    ms: int  # since 1970
    begins_again: bool = False  # time was ahead; only then is it earlier than the batch before's


@dataclass(frozen=True)
class Moment:
    """What all partitions must know of a batch. It is plain data, so it can go to wherever a partition is committed."""

    given: int  # the rows that came, for all partitions
    # The latest event time: of a window in ordinates, of a join of the left and the right side in microseconds; None: no row.
    reached: tuple[int | None, int | None] = (None, None)
    now: Now | None = None  # None if no window uses it
    # That rows came for, ascending, if the window waits for late rows: they make it fire again, with all keys.
    panes: tuple[int, ...] = ()

    def watermark(self, before: int | None, times: EventTime) -> int | None:
        """Return the watermark of a window after the batch: its latest time less the delay; it never goes back."""
        reached = self.reached[0]
        found: int | None = (
            before if reached is None else later(before, max(reached - times.delay, FIRST_MS * times.per_ms))
        )
        return found


@dataclass(frozen=True)
class Share:
    """What one partition gets of a batch."""

    tables: Sequence[pa.Table]  # its rows, in the order in which they came
    moment: Moment
    run: StepRun
    place: PartitionPlace = ONE

    def __len__(self) -> int:
        return sum(table.num_rows for table in self.tables)


def moment_of(node: OverTime, tables: Iterable[pa.Table], now: Now | None = None) -> Moment:
    given, panes = 0, set[int]()
    reached: list[int | None] = [None, None]
    event_time = node.config.event_time if isinstance(node, WindowNode) else None
    for table in tables:
        given += table.num_rows
        if not table.num_rows or (isinstance(node, WindowNode) and event_time is None):
            continue
        side = 0 if event_time is not None else MARKS.index(table.column_names[0])
        latest = int(table.column(MARKS[side] if event_time is None else AT).to_numpy().max())
        reached[side] = later(reached[side], None if latest == NOWHERE else latest)
        if isinstance(node, WindowNode) and event_time is not None and event_time.lateness_ms:
            panes.update(np.unique(panes_of(node, table)).tolist())
    return Moment(given, (reached[0], reached[1]), now, tuple(sorted(panes)))


def together(moments: Iterable[Moment]) -> Moment:
    """Return the moment of a batch from the moments of its pieces; there is at least one."""
    first, *others = moments
    for one in others:
        reached = tuple(map(later, first.reached, one.reached))
        panes = tuple(sorted({*first.panes, *one.panes}))
        first = Moment(first.given + one.given, (reached[0], reached[1]), first.now, panes)
    return first


def later(one: Any, other: Any) -> Any:
    """Return the later one of two times, either of which may be None, or of two times of each side."""
    if one is None or other is None:
        return other if one is None else one
    return list(map(later, one, other)) if isinstance(one, list) else max(one, other)


def rows_by_partition(node: OverTime, tables: Sequence[pa.Table], partitions: int) -> Mapping[int, Sequence[pa.Table]]:
    """Return the rows of each partition, in the order of the tables; partitions without rows are left out."""
    filled = [table for table in tables if table.num_rows]
    if partitions == 1:
        return {0: filled} if filled else {}
    found: dict[int, list[pa.Table]] = {}
    for table in filled:
        places = places_of(*_key_of(node, table), partitions)
        for partition in np.unique(places).tolist():
            found.setdefault(partition, []).append(table.filter(pa.array(places == partition)))
    return found


def rows_of(place: PartitionPlace, key: Fields, rows: pa.Table) -> pa.Table:
    if place.partitions == 1 or not rows.num_rows:
        return rows
    return rows.filter(pa.array(places_of(rows, key.names, place.partitions) == place.partition))


def shares_of(
    node: OverTime, moment: Moment, rows: Mapping[int, Sequence[pa.Table]], partitions: int, run: StepRun
) -> dict[int, Share]:
    """Return what each of the partitions that commit the batch gets of it; `rows`: of each partition."""
    run = replace(run, on_error=TupleErrors(bounds=run.on_error.bounds))  # its tuples may be of earlier batches
    # A count window of each key concerns the partitions that have rows. Elsewhere all have one frontier, so all of them run
    # where time passes: with each batch that has rows, and by the time of the batch with every batch.
    passes = moment.given or (isinstance(node, WindowNode) and node.config.by_batch_time)
    running: Iterable[int] = range(partitions if passes else 0)
    if isinstance(node, WindowNode) and node.config.counts:
        running = sorted(rows)
    return {at: Share(rows.get(at, ()), moment, run, PartitionPlace(at, partitions)) for at in running}


def _key_of(node: OverTime, table: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return a table with the key's columns, of the same types for both sides of a join, and their names."""
    if isinstance(node, WindowNode):
        return table, node.group.names
    side = node.sides[MARKS.index(table.column_names[0])]
    schema = schema_of(node.sides[0].key)
    keys = table.select(list(side.key.names)).rename_columns(schema.names).cast(schema)
    return keys, node.sides[0].key.names


MOMENT = -1
"""The port of a table that carries a moment."""


def pieces_of(node: OverTime, tables: Sequence[pa.Table], partitions: int) -> Iterator[tuple[int, int, pa.Table]]:
    """Give what a task sends for its rows: the number of the partition, the port (`MOMENT`, or 0) and a table."""
    moment = moment_of(node, tables)
    sent = pa.table({"moment": [encode((moment.given, moment.reached, None, moment.panes))]})
    for partition in range(partitions):
        yield partition, MOMENT, sent
    for partition, rows in sorted(rows_by_partition(node, tables, partitions).items()):
        for table in rows:
            yield partition, 0, table


def read_moment(tables: Iterable[pa.Table], now: Now | None) -> Moment:
    """Return the moment of a batch from what all tasks sent; without rows there is nothing but the time of the batch."""
    sent = [Moment(*decode(data)) for table in tables for data in table.column(0).to_pylist()]
    return replace(together([Moment(0), *sent]), now=now)
