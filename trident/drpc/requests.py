"""Many requests as one Arrow table: each row has the number of its request, in a column that user code does not see.

A step works on all requests at once if it can: a step that works row by row, or one with a key, to which the number of the
request is added. An aggregate without a key gets that number as its key; requests without rows get the aggregate of nothing.
Any other step runs request by request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import python_of, strict_array
from trident.engine.fragment_runs import run_step
from trident.engine.routing import route
from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    JoinNode,
    MapNode,
    MergeNode,
    MultiReduceNode,
    Node,
    RepartitionNode,
    SelectNode,
)
from trident.operations.expressions import col
from trident.operations.interfaces import ArrowFunction
from trident.plan import Exchange, RequestPlan, Sink, Step
from trident.steps.failures import failing_at
from trident.steps.in_batch import aggregate, join, multi_reduce
from trident.steps.rows import StepRun

_REQUEST = ""  # no field has this name
_NUMBER = Fields.of([_REQUEST], ["bigint"])


class RequestSteps:
    """The steps of a function, ready to be applied to any number of requests."""

    def __init__(self, plan: RequestPlan) -> None:
        self._entry, *nodes = plan.nodes
        self._steps = [(node, _carrying(node)) for node in nodes]  # as declared, and as it runs over numbered rows
        self._answer = plan.nodes[-1]

    def answers(self, args: Sequence[str], run: StepRun) -> list[list[list[Any]]]:
        """Return the answer of each request, in order: the rows of the last step.

        Raises `StepFailed`: a step failed; it is not known for which request.
        """
        numbers = pa.array(range(len(args)), pa.int64())
        tables = {self._entry.id: pa.table([strict_array(args, pa.string()), numbers], [*self._entry.fields, _REQUEST])}
        for node, carrying in self._steps:
            with failing_at(node.id):
                tables[node.id] = _apply(node, carrying, [tables[id_] for id_ in node.parents], len(args), run)
        return _by_request(tables[self._answer.id], self._answer.fields, len(args))


def _by_request(table: pa.Table, fields: Fields, requests: int) -> list[list[list[Any]]]:
    rows_of: list[list[list[Any]]] = [[] for _ in range(requests)]
    columns = [python_of(table.column(name)) for name in fields.names]
    rows = zip(*columns, strict=True) if columns else itertools.repeat((), table.num_rows)
    for number, row in zip(table.column(_REQUEST).to_pylist(), rows, strict=True):
        rows_of[number].append(list(row))
    return rows_of


def _carrying(node: Node) -> Step:
    """Return the step that keeps the number of the request beside all fields."""
    if isinstance(node, AggregateNode):
        members = tuple(replace(one, group=_NUMBER.concat(one.group)) for one in node.members)
        node = replace(node, fields=_NUMBER.concat(node.fields), members=members)
    elif isinstance(node, JoinNode):
        keys = len(node.groups[0])
        names, types = list(node.fields.names), list(node.fields.types)
        node = replace(
            node,
            fields=Fields.of([*names[:keys], _REQUEST, *names[keys:]], [*types[:keys], "bigint", *types[keys:]]),
            inputs=tuple(fields.concat(_NUMBER) for fields in node.inputs),
            groups=tuple(group.concat(_NUMBER) for group in node.groups),
        )
    elif isinstance(node, SelectNode):
        node = replace(node, fields=node.fields.concat(_NUMBER), expressions=(*node.expressions, col(_REQUEST)))
    elif isinstance(node, MergeNode):
        inputs = tuple(fields.concat(_NUMBER) for fields in node.inputs)
        node = replace(node, fields=node.fields.concat(_NUMBER), inputs=inputs)
    return Step(node.id, node.parents, node, tuple(dict.fromkeys([*node.fields.names, _REQUEST])))


def _apply(node: Node, carrying: Step, sources: list[pa.Table], requests: int, run: StepRun) -> pa.Table:
    if isinstance(node, JoinNode) and not node.preserve:
        return join(carrying.node, sources, run.on_error.bounds)
    from_unknown_rows = isinstance(node, MapNode) and isinstance(node.function, ArrowFunction)
    if from_unknown_rows or isinstance(node, (JoinNode, MultiReduceNode)):
        return _one_by_one(node, sources, requests, run)
    if isinstance(node, RepartitionNode) and node.routing.kind == "custom":
        return _route(node, sources[0], run)
    done = run_step(carrying, sources, run)
    if isinstance(node, AggregateNode) and not len(node.group) and not node.partial:
        return _with_aggregates_of_nothing(node, done, sources[0], requests, run)
    return done


def _with_aggregates_of_nothing(
    node: AggregateNode, done: pa.Table, source: pa.Table, requests: int, run: StepRun
) -> pa.Table:
    missing = sorted(set(range(requests)).difference(source.column(_REQUEST).to_pylist()))
    nothing = source.slice(0, 0)
    tables = [_with_number(aggregate(node.id, node, nothing, run), number, done) for number in missing]
    return pa.concat_tables([done, *tables])


def _one_by_one(node: Node, sources: list[pa.Table], requests: int, run: StepRun) -> pa.Table:
    tables = []
    for number in range(requests):
        own = [source.filter(pc.equal(source.column(_REQUEST), number)) for source in sources]
        if isinstance(node, JoinNode):
            table = join(node, own)
        elif isinstance(node, MultiReduceNode):
            table = multi_reduce(node, own, run)
        else:
            table = run_step(Step(node.id, node.parents, node, node.fields.names), own, run)
        tables.append(_with_number(table, number))
    return pa.concat_tables(tables)


def _with_number(table: pa.Table, number: int, like: pa.Table | None = None) -> pa.Table:
    column = pa.array([number] * table.num_rows, pa.int64())
    numbered = table.append_column(_REQUEST, column)
    return numbered if like is None else numbered.select(like.column_names)


def _route(node: RepartitionNode, table: pa.Table, run: StepRun) -> pa.Table:
    """Return the rows of the only partition; a user's function may send a row there several times, or nowhere."""
    sink = Sink(node.id, node.parents[0], node.fields, routing=node.routing)
    frames = route(sink, Exchange(node, (node.fields,), 1), [table], (node.id, 0, 0), run)
    return pa.concat_tables([table.slice(0, 0), *(frame.data for frame in frames)])
