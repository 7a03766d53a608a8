"""Dead letters on their way back: each comes in where it was put aside, beside the batch's other tuples.

What comes in at a step, or at what a fragment gives to an entry behind it, is a row of that input; all of the fragment
that does not lie behind it sees nothing of it. So a tuple that had its effect on one branch of a stream, and was put
aside on another, has its effect there once, and once here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from trident.runtime.exchange import Frame
from trident.runtime.rows import Failure

__all__ = ["Place", "PutBack", "PutBacks", "put_backs_of", "with_rows"]

Place = tuple[str, int]
"""Where in a fragment: a step, or the entry that a sink gives to; and as which of its inputs."""

PutBacks = Mapping[Place, pa.Table]
"""What comes in where in a fragment."""


@dataclass(frozen=True)
class PutBack:
    """The part of a batch that puts dead letters back into one fragment.

    Attributes
    ----------
    tables
        For the fragment of a spout: what comes in where.
    frames
        For a fragment elsewhere: the same, to be sent there. Those without a step are what an entry gathers.
    lost
        Letters that have no place in this topology: they fail again.
    """

    tables: PutBacks = field(default_factory=dict)
    frames: Sequence[Frame] = ()
    lost: Sequence[Failure] = ()


def put_backs_of(frames: Iterable[Frame]) -> PutBacks:
    """Return what frames bring to the steps of a fragment."""
    return {(frame.step, frame.port): frame.data for frame in frames if frame.step}


def with_rows(table: pa.Table, more: pa.Table | None) -> pa.Table:
    """Return a table with the rows of another that has all of its columns."""
    if more is None:
        return table
    if not table.num_columns:  # Arrow loses the rows of tables without columns where it puts them together
        return pa.table({"_": pa.nulls(table.num_rows + more.num_rows)}).select([])
    return pa.concat_tables([table, more.select(table.schema.names).cast(table.schema)])
