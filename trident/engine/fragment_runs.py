"""Runs a fragment over one partition's tables: its steps one after the other, then what each sink gets, cut into frames.

A dead letter returns as a row of the input of the step that it was left out of, beside the batch's other tuples; other steps do
not see it. So a tuple that was left out of one branch of a stream has its effect once on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from trident.arrow import one_table, rows_without_columns, schema_of
from trident.counts import KeyCounts, add_counts, add_keys
from trident.engine.routing import RowFrame, route
from trident.graph import AggregateNode, MergeNode, RepartitionNode
from trident.plan import Exchange, Fragment, Sink, Step
from trident.spout.interfaces import PartitionRead
from trident.steps.aggregates import partial
from trident.steps.applying import apply_step
from trident.steps.failures import FailingAt, Failure, StepFailed, calls_user_code
from trident.steps.in_batch import aggregate
from trident.steps.key_columns import removals_of
from trident.steps.rows import StepRun
from trident.windows.window_rows import join_input, window_input

ROWS, NS = 0, 1
HEAD = EACH = 2  # how many numbers there are before those of the first step, and of each step and sink

Figures = Mapping[str, list[int]]
"""By entry, what the passes over its fragment counted, rows and nanoseconds:

    [ROWS, NS,  rows and nanoseconds of the first step, … of the last step,  … of the first sink, … of the last sink]

`ROWS` are those that the entry gave, `NS` is how long the whole pass took, with the entry's own work. A step counts the rows
that it gave. Dead letters that come back are rows that no operation gave; they are counted apart. A small batch takes a tenth
of a millisecond, so nothing is named here; `trident/run/progress.py` knows what each number means.
"""


@dataclass
class TaskOutput:
    """The output of one part of a batch.

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
    `timers`: before which times no window by the time of the batch ends, and no timer is due, in the partitions that tasks have
    committed, in milliseconds since 1970.
    `fenced`: the arguments of the `FencedError`, if the task failed because a store refused the writers of this driver.
    `kept`: what the runner needs to commit in a later job; Spark keeps the rows as long as this is referred to.
    `figures`: by entry, what the passes over its fragment counted; see `Figures`.
    `put_back`: by step, or entry, how many dead letters came back there, if any did.
    """

    sinks: dict[str, list[pa.Table]] = field(default_factory=dict)  # the input tables of entries, by their ids
    rows: dict[str, int] = field(default_factory=dict)  # how many tuples each spout emitted, by its name
    failure: Failure | None = None  # why the part failed; everything else is then ignored
    captured: list[Failure] = field(default_factory=list)  # tuples that were left out as dead letters
    frames: list[RowFrame] = field(default_factory=list)  # rows for exchanges that have not run yet
    level: int = 0
    task: int = 0
    sources: dict[int, str] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)  # what operations counted, as `operation/counter`
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
        return sum(self.rows.values())


_ADDED = ("captured", "frames", "timers", "bytes_shuffled", "bytes_collected", "bytes_spilled")
_COUNTED = ("rows", "metrics", "keys", "put_back")
_BY_PARTITION = ("metadata", "written", "staged")


def merge_outputs(outputs: Sequence[TaskOutput]) -> TaskOutput:
    # Whichever outputs arrive first, the failure of the lowest level is the cause.
    failed = min((output for output in outputs if output.failure is not None), key=lambda o: o.level, default=None)
    if failed is not None:
        # Nothing of the others: the attempt does not count.
        return TaskOutput(failure=failed.failure, fenced=failed.fenced)
    merged = TaskOutput()
    together = vars(merged)
    for output in outputs:
        one = vars(output)
        for name in _ADDED:
            together[name] += one[name]
        for name in _COUNTED:
            add_counts(together[name], one[name])
        for name in _BY_PARTITION:
            for of, partitions in one[name].items():
                together[name].setdefault(of, {}).update(partitions)
        for entry, figures in output.figures.items():  # whose lists stay as they are
            before = merged.figures.get(entry)
            merged.figures[entry] = figures if before is None else list(map(add, before, figures))
        for state, touched in output.touched.items():
            merged.touched[state] = sorted({*merged.touched.get(state, ()), *touched})
        for state, counts in output.key_counts.items():
            add_keys(merged.key_counts, state, counts)
        for target, tables in output.sinks.items():
            merged.sinks.setdefault(target, []).extend(tables)
    return merged


def whole(fragment: Fragment, tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Return the tables of one partition as its steps need them: as they come, or all in one (also if there are none)."""
    return [one_table(list(tables) or [schema_of(fragment.fields).empty_table()])] if fragment.blocking else tables


def send(
    fragment: Fragment,
    tables: Iterable[pa.Table],
    exchanges: Mapping[str, Exchange],
    run: StepRun,
    index: int,
    output: TaskOutput,
    letters: PutBacks | None = None,
) -> None:
    """Run a fragment over one partition's tables and add what its sinks get to `output`; exchanges get frames."""
    # What is raised is a `StepFailed` of the step that it happened at; the entry's, if it comes from `tables`.
    routed: dict[int, list[pa.Table]] = {}
    figures = output.figures.get(fragment.entry)
    if figures is None:
        figures = output.figures[fragment.entry] = list(fragment.zero_counts)
    with FailingAt(fragment.entry, given=lambda: output.rows.get(fragment.entry)) as here:
        pieces = whole(fragment, tables)
        if letters:
            for (step, _), rows in letters.items():
                add_counts(output.put_back, {step: rows.num_rows})
            check_places(fragment, letters)
            # They come in with a table, and the batch may have no other rows.
            pieces = list(pieces) or [schema_of(fragment.fields).empty_table()]
        for table in pieces:
            inputs = _inputs_of_sinks(fragment, table, run, figures, here, letters or {})
            for at, (sink, data) in enumerate(zip(fragment.sinks, inputs, strict=True)):
                if sink.routing is None and not sink.kept:
                    output.sinks.setdefault(sink.target, []).append(data)
                else:
                    routed.setdefault(at, []).append(data)
            here.step, letters = fragment.entry, None
        # Behind the last table, because the partials of several are merged before they are cut.
        for at, parts in routed.items():
            sink, began = fragment.sinks[at], perf_counter_ns()
            output.frames.extend(route(sink, exchanges.get(sink.target), parts, (fragment.entry, index, at), run))
            figures[HEAD + EACH * (len(fragment.steps) + at) + 1] += perf_counter_ns() - began


@calls_user_code
def _inputs_of_sinks(
    fragment: Fragment, table: pa.Table, run: StepRun, figures: list[int], here: FailingAt, letters: PutBacks
) -> list[pa.Table]:
    """Apply a fragment's steps to a table, counted in `figures`; return the sinks' inputs, partials for a combiner."""
    tables = {fragment.entry: table}
    figures[ROWS] += table.num_rows
    at, began = HEAD, perf_counter_ns()
    for step in fragment.steps:
        here.step = step.id
        sources = [tables[source] for source in step.sources]
        if letters:
            sources[0] = with_rows(sources[0], letters.get((step.id, 0)))
        tables[step.id] = given = run_step(step, sources, run)
        ended = perf_counter_ns()
        figures[at] += given.num_rows
        figures[at + 1] += ended - began
        at, began = at + 2, ended
    inputs = []
    for sink in fragment.sinks:
        here.step, data, began = sink.target, tables[sink.source], perf_counter_ns()
        if fragment.columns[sink.source] != sink.fields.names:
            data = data.select(list(sink.fields.names))
        if letters:
            data = with_rows(data, letters.get((sink.target, sink.port)))
        data = entry_input(sink, data, run)
        figures[at] += data.num_rows
        figures[at + 1] += perf_counter_ns() - began
        at += 2
        inputs.append(data)
    return inputs


def entry_input(sink: Sink, data: pa.Table, run: StepRun) -> pa.Table:
    """Return what is sent to an entry for a table of its fields: partials for a combiner, times for windows, marked keys."""
    if sink.aggregation is not None and sink.aggregation.combines:
        return partial(sink.target, sink.aggregation, data, run.on_error)
    if sink.window is not None:
        return window_input(sink.window, data, run)
    if sink.join is not None:
        return join_input(sink.join, sink.port, data)
    return data if sink.removes is None else removals_of(sink.removes, data)


def run_step(step: Step, sources: list[pa.Table], run: StepRun) -> pa.Table:
    """Apply one step within a partition; `sources` are the tables of the steps that it takes."""
    node = step.node
    if isinstance(node, MergeNode):
        at = [node.fields.position(name) for name in step.keep]
        parts = [
            table.select([fields.names[i] for i in at]).rename_columns(list(step.keep))
            for table, fields in zip(sources, node.inputs, strict=True)
        ]
        return one_table(parts)
    if isinstance(node, AggregateNode):
        return aggregate(step.id, node, sources[0], run).select(list(step.keep))
    if isinstance(node, RepartitionNode):  # one that leaves every tuple where it is; any other begins a fragment
        return sources[0].select(list(step.keep))
    return apply_step(step, sources[0], run.on_error, run.states)


Place = tuple[str, int]  # a place in a fragment: a step, or the entry that a sink sends to, and the number of its input

PutBacks = Mapping[Place, pa.Table]  # the rows that return at each place of a fragment


@dataclass(frozen=True)
class PutBack:
    """The part of a batch that puts dead letters back into one fragment.

    `frames`: for another fragment: the same, to be sent there. Frames without a step are the input of the entry itself.
    """

    tables: PutBacks = field(default_factory=dict)  # for the fragment of a spout: the rows for each place
    frames: Sequence[RowFrame] = ()
    lost: Sequence[Failure] = ()  # letters that have no place in this topology, so they fail again

    @property
    def count(self) -> int:
        rows: int = sum(table.num_rows for table in (*self.tables.values(), *(frame.data for frame in self.frames)))
        return rows + len(self.lost)


def put_backs_of(frames: Iterable[RowFrame]) -> PutBacks:
    # Several frames may bring rows to one step.
    found: dict[Place, pa.Table] = {}
    for frame in sorted(frames, key=lambda frame: frame.order):  # so a replay sees the rows in the same order
        if frame.step:
            place = frame.step, frame.port
            found[place] = with_rows(found[place], frame.data) if place in found else frame.data
    return found


def check_places(fragment: Fragment, letters: PutBacks) -> None:
    # The commit record would mark rows as put back that went nowhere.
    places = {(step.id, 0) for step in fragment.steps} | {(sink.target, sink.port) for sink in fragment.sinks}
    for step, port in letters.keys() - places:
        cause = f"dead letters come in at {step!r} (input {port}), which is not behind {fragment.entry!r}"
        raise StepFailed(Failure(step, None, cause, retry=False))


def with_rows(table: pa.Table, more: pa.Table | None) -> pa.Table:
    if more is None:
        return table
    if not table.num_columns:  # a cast loses the rows of a table without columns
        return rows_without_columns(table.num_rows + more.num_rows)
    return pa.concat_tables([table, more.select(table.schema.names).cast(table.schema)])
