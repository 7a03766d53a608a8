"""Runs a fragment: its steps one after the other over one Arrow table, then the input of each sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter_ns

import pyarrow as pa

from trident.arrow import concatenated, schema_of
from trident.graph import AggregateNode, MergeNode, RepartitionNode
from trident.planner import Fragment, Sink, Step
from trident.runtime.engine.put_back import PutBacks, check_places, with_rows
from trident.runtime.engine.step_figures import HEAD, ROWS
from trident.runtime.steps.aggregates import partial
from trident.runtime.steps.applying import apply_step
from trident.runtime.steps.failures import failing_at
from trident.runtime.steps.in_batch import aggregate
from trident.runtime.steps.rows import StepRun
from trident.runtime.steps.user_calls import calls_user_code
from trident.runtime.windows.join_input import join_input
from trident.runtime.windows.worker_input import window_input

__all__ = ["run_fragment", "run_step", "whole"]


def whole(fragment: Fragment, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Give the tables of one partition as its steps need them: as they come, or all in one (also if there are none)."""
    if not fragment.blocking:
        yield from tables
        return
    all_of_them = list(tables) or [schema_of(fragment.fields).empty_table()]
    yield concatenated(all_of_them)


@calls_user_code(lambda local: (local["sink"].target if "sink" in local else local["step"].id, None))
def run_fragment(
    fragment: Fragment, table: pa.Table, run: StepRun, figures: list[int], letters: PutBacks | None = None
) -> Iterator[tuple[Sink, pa.Table]]:
    """Apply a fragment's steps to a table of its entry; give the sinks' inputs, as partials for a combiner of a state.

    What is done is counted in `figures`. `letters` are added at their steps.
    """
    if letters:
        check_places(fragment, letters)
    tables = {fragment.entry: table}
    figures[ROWS] += table.num_rows
    at, began = HEAD, perf_counter_ns()
    for step in fragment.steps:
        with failing_at(step.id):  # for a kernel without a result for a column, or a static state that cannot be opened
            sources = [tables[source] for source in step.sources]
            if letters:
                sources[0] = with_rows(sources[0], letters.get((step.id, 0)))
            tables[step.id] = given = run_step(step, sources, run)
        ended = perf_counter_ns()
        figures[at] += given.num_rows
        figures[at + 1] += ended - began
        at, began = at + 2, ended
    for sink in fragment.sinks:
        data, began = tables[sink.source], perf_counter_ns()
        if fragment.columns[sink.source] != sink.fields.names:
            data = data.select(list(sink.fields.names))
        if letters:
            data = with_rows(data, letters.get((sink.target, sink.port)))
        if sink.aggregation is not None and sink.aggregation.combines:
            with failing_at(sink.target):
                data = partial(sink.target, sink.aggregation, data, run.on_error)
        elif sink.window is not None:
            with failing_at(sink.target):
                data = window_input(sink.window, data, run)
        elif sink.join is not None:
            with failing_at(sink.target):
                data = join_input(sink.join, sink.port, data)
        figures[at] += data.num_rows
        figures[at + 1] += perf_counter_ns() - began
        at += 2
        yield sink, data


def run_step(step: Step, sources: list[pa.Table], run: StepRun) -> pa.Table:
    """Apply one step within a partition; `sources` are the tables of the steps that it takes."""
    node = step.node
    if isinstance(node, MergeNode):
        at = [node.fields.position(name) for name in step.keep]
        parts = [
            table.select([fields.names[i] for i in at]).rename_columns(list(step.keep))
            for table, fields in zip(sources, node.inputs, strict=True)
        ]
        return concatenated(parts)
    if isinstance(node, AggregateNode):
        return aggregate(step.id, node, sources[0], run).select(list(step.keep))
    if isinstance(node, RepartitionNode):  # one that leaves every tuple where it is; any other begins a fragment
        return sources[0].select(list(step.keep))
    return apply_step(step, sources[0], run.on_error, run.states)
