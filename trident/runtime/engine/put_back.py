"""Dead letters on their way back: each returns at the step that it was left out of, beside the batch's other tuples.

A letter returns as a row of the input of a step, or of what a fragment sends to an entry. Other steps of the fragment do not
see it. So a tuple that was processed on one branch of a stream, and was left out of another, has its effect once on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from trident.arrow import rows_without_columns
from trident.planner import Fragment
from trident.runtime.engine.routing import RowFrame
from trident.runtime.steps.failures import Failure, StepFailed

__all__ = ["Place", "PutBack", "PutBacks", "check_places", "put_backs_of", "with_rows"]

Place = tuple[str, int]
"""A place in a fragment: a step, or the entry that a sink sends to, and the number of its input."""

PutBacks = Mapping[Place, pa.Table]
"""The rows that return at each place of a fragment."""


@dataclass(frozen=True)
class PutBack:
    """The part of a batch that puts dead letters back into one fragment.

    Attributes
    ----------
    tables
        For the fragment of a spout: the rows for each place.
    frames
        For another fragment: the same, to be sent there. Frames without a step are the input of the entry itself.
    lost
        Letters that have no place in this topology, so they fail again.
    """

    tables: PutBacks = field(default_factory=dict)
    frames: Sequence[RowFrame] = ()
    lost: Sequence[Failure] = ()

    @property
    def count(self) -> int:
        """How many letters these are."""
        tables = (*self.tables.values(), *(frame.data for frame in self.frames))
        rows: int = sum(table.num_rows for table in tables)
        return rows + len(self.lost)


def put_backs_of(frames: Iterable[RowFrame]) -> PutBacks:
    """Return the rows that frames bring to the steps of a fragment; several frames may bring rows to one step."""
    found: dict[Place, pa.Table] = {}
    for frame in sorted(frames, key=lambda frame: frame.order):  # so a replay sees the rows in the same order
        if frame.step:
            place = frame.step, frame.port
            found[place] = with_rows(found[place], frame.data) if place in found else frame.data
    return found


def check_places(fragment: Fragment, letters: PutBacks) -> None:
    """Raise `StepFailed` if the fragment has no such place, because the commit record would mark the rows as put back."""
    places = {(step.id, 0) for step in fragment.steps} | {(sink.target, sink.port) for sink in fragment.sinks}
    for step, port in letters.keys() - places:
        cause = f"dead letters come in at {step!r} (input {port}), which is not behind {fragment.entry!r}"
        raise StepFailed(Failure(step, None, cause, retry=False))


def with_rows(table: pa.Table, more: pa.Table | None) -> pa.Table:
    """Return a table with the rows of another that has all of its columns."""
    if more is None:
        return table
    if not table.num_columns:  # a cast loses the rows of a table without columns
        return rows_without_columns(table.num_rows + more.num_rows)
    return pa.concat_tables([table, more.select(table.schema.names).cast(table.schema)])
