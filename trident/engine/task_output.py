"""What a task gives back: rows for the states, frames for other partitions, counts, failures.

A pass over a fragment counts rows and nanoseconds, as whole numbers in one list for each fragment: a small batch takes a tenth
of a millisecond, so nothing is named there. `trident/run/progress.py` knows what each number means.

::

    [ROWS, NS,  rows and nanoseconds of the first step, … of the last step,  … of the first sink, … of the last sink]

`ROWS` are those that the entry gave, `NS` is how long the whole pass took, with the entry's own work. A step counts the rows
that it gave. Dead letters that come back are rows that no operation gave; they are counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

import pyarrow as pa

from trident.counts import KeyCounts, add_counts, add_keys
from trident.engine.routing import RowFrame
from trident.spout.interfaces import PartitionRead
from trident.steps.failures import Failure


@dataclass
class TaskOutput:
    """The output of one part of a batch.

    `sinks`: the input tables of entries, by the id of the entry.
    `rows`: how many tuples each spout emitted, by its name.
    `failure`: why the part failed; everything else is then ignored.
    `captured`: tuples that were left out as dead letters.
    `frames`: rows for exchanges that have not run yet.
    `metrics`: what operations counted, as `operation/counter`.
    `bytes_shuffled`, `bytes_collected`: what tasks sent to tasks of the next stage, and what they returned to the driver. 0 in
    this process.
    `bytes_spilled`: what Spark wrote to disk because its stages had more rows than memory. Asked for where much was shuffled.
    `metadata`: what emitters returned besides rows, by spout and partition. It comes from the run of the task that gave the
    rows.
    `level`, `task`: the level that it comes from (0: a spout) and the number of the task in it. Outputs are merged in this
    order, in whatever order they arrive, and the failure of the lowest one is the cause.
    `sources`: on Spark, by stage, a digest of the runs that it read of the stage's tasks; equal for all that read the stage.
    `touched`, `keys`, `key_counts`: the partitions of each state that tasks have committed, how many keys each state got, and
    what became of them.
    `written`: by state and partition, the marks of the keys that tasks have written, where any partition may write any key.
    `staged`: by state and partition, what the driver has yet to publish; see `State.stage`.
    `timers`: before which times no timer by the time of the batch is due in the partitions that tasks have committed, in
    milliseconds since 1970.
    `fenced`: the arguments of the `FencedError`, if the task failed because a store refused the writers of this driver.
    `kept`: what the runner needs to commit in a later job; Spark keeps the rows as long as this is referred to.
    `figures`: by entry, what the passes over its fragment counted; see `Figures`.
    `put_back`: by step, or entry, how many dead letters came back there, if any did.
    """

    sinks: dict[str, list[pa.Table]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    captured: list[Failure] = field(default_factory=list)
    frames: list[RowFrame] = field(default_factory=list)
    level: int = 0
    task: int = 0
    sources: dict[int, str] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    bytes_shuffled: int = 0
    bytes_spilled: int = 0
    bytes_collected: int = 0
    metadata: dict[str, dict[str, PartitionRead]] = field(default_factory=dict)
    touched: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    key_counts: dict[str, KeyCounts] = field(default_factory=dict)
    written: dict[str, dict[int, list[bytes]]] = field(default_factory=dict)
    staged: dict[str, dict[int, bytes]] = field(default_factory=dict)
    timers: list[int] = field(default_factory=list)
    fenced: tuple[Any, ...] = ()
    kept: object | None = None
    figures: dict[str, list[int]] = field(default_factory=dict)
    put_back: dict[str, int] = field(default_factory=dict)

    @property
    def tuples(self) -> int:
        """How many tuples all spouts emitted."""
        return sum(self.rows.values())


def merge_outputs(outputs: Sequence[TaskOutput]) -> TaskOutput:
    """Merge outputs; the first failure of the lowest level is the failure."""
    failed = min((output for output in outputs if output.failure is not None), key=lambda o: o.level, default=None)
    if failed is not None:
        # Nothing of the others: the attempt does not count.
        return TaskOutput(failure=failed.failure, fenced=failed.fenced)
    merged = TaskOutput()
    for output in outputs:
        add_counts(merged.rows, output.rows)
        add_counts(merged.metrics, output.metrics)
        add_counts(merged.keys, output.keys)
        merged.captured.extend(output.captured)
        merged.frames.extend(output.frames)
        merged.timers.extend(output.timers)
        for entry, figures in output.figures.items():  # whose lists stay as they are
            before = merged.figures.get(entry)
            merged.figures[entry] = figures if before is None else list(map(add, before, figures))
        if output.put_back:
            add_counts(merged.put_back, output.put_back)
        merged.bytes_shuffled += output.bytes_shuffled
        merged.bytes_collected += output.bytes_collected
        merged.bytes_spilled += output.bytes_spilled
        for spout, read in output.metadata.items():
            merged.metadata.setdefault(spout, {}).update(read)
        for state, partitions in output.touched.items():
            merged.touched[state] = sorted({*merged.touched.get(state, ()), *partitions})
        for state, written in output.written.items():
            merged.written.setdefault(state, {}).update(written)
        for state, staged in output.staged.items():
            merged.staged.setdefault(state, {}).update(staged)
        for state, counts in output.key_counts.items():
            add_keys(merged.key_counts, state, counts)
        for target, tables in output.sinks.items():
            merged.sinks.setdefault(target, []).extend(tables)
    return merged


ROWS, NS = 0, 1
HEAD = EACH = 2
"""How many numbers there are before those of the first step, and of each step and sink."""

Figures = Mapping[str, list[int]]
"""By entry, what was counted."""
