"""Aggregates within a batch (`partition_aggregate`, `aggregate`, `chained_agg` and their like), and `TridentState.remove`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, free_name, is_nested, unquote
from trident.fluent.base import Declaration, StreamBase, check_streams, key_of, refuse_state
from trident.graph import (
    REMOVED,
    AggregateNode,
    Aggregation,
    Graph,
    JoinWithinNode,
    PersistNode,
    QueryNode,
    RepartitionNode,
    Routing,
    SelectNode,
    StateNode,
    WindowNode,
)
from trident.naming import TridentNames
from trident.operations.adapters import aggregate_type, output_fields, refuse_missing_output
from trident.operations.builtin import MaxBy, MaxWithComparator, MinBy, MinWithComparator
from trident.operations.expression_types import type_of
from trident.operations.expressions import col
from trident.operations.names import merging_member, step_label
from trident.operations.several import WideAggregator, result_fields, several, value_of
from trident.roles import has

S = TypeVar("S", bound=StreamBase)


class Aggregating(StreamBase):
    """The calls of `Stream` that aggregate within a batch."""

    def partition_aggregate(self, *args: Any) -> Self:
        """Aggregate each partition of a batch by itself: `([in,] aggregator, out)`; the result replaces the tuples.

        A combiner or a reducer gives one tuple per partition, also for an empty one; an `Aggregator` what it emits.
        """
        return declare(self, [member_of(self, args, "partition_aggregate")], full=False)

    def aggregate(self, *args: Any) -> Self:
        """Aggregate the whole batch: `([in,] aggregator, out)`; the result replaces the tuples.

        A combiner is aggregated in each partition first, and its results are combined; a reducer or an `Aggregator`
        sees all tuples in one partition. An empty batch gives what the aggregator makes of nothing: one tuple `[0]` of
        `Count`. Several combiners by name, as `{"n": Count(), "mean": Avg("euros")}`, give a field each.
        """
        return self._full_aggregate(Fields(), args)

    def chained_agg(self) -> ChainedAggregatorDeclarer[Self]:
        """Begin several aggregators over the same tuples: `.aggregate(...)`, again and again, then `.chain_end()`."""
        return ChainedAggregatorDeclarer(self, Fields())

    def min_by(self, field: str, comparator: Callable[[Any, Any], int] | None = None) -> Self:
        """Keep the tuple of each partition with the least value of a field; of equal ones the last.

        Nulls are skipped; a NaN is greater than any number. `comparator(a, b)` of two values returns
        a negative number, zero or a positive one.

        Different from Storm: an empty partition gives nothing (Storm emits a row of nulls).
        """
        return self._by(field, MinBy(field) if comparator is None else MinWithComparator(comparator, field))

    def max_by(self, field: str, comparator: Callable[[Any, Any], int] | None = None) -> Self:
        """Keep the tuple of each partition with the greatest value of a field; else as `min_by`."""
        return self._by(field, MaxBy(field) if comparator is None else MaxWithComparator(comparator, field))

    def min(self, comparator: Callable[[Any, Any], int]) -> Self:
        """Keep the least tuple of each partition, by a comparator of tuples; of equal ones the last."""
        return self._keep_one(MinWithComparator(comparator), "min")

    def max(self, comparator: Callable[[Any, Any], int]) -> Self:
        """Keep the greatest tuple of each partition, by a comparator of tuples; of equal ones the last."""
        return self._keep_one(MaxWithComparator(comparator), "max")

    def _full_aggregate(self, group: Fields, args: Sequence[Any]) -> Self:
        named = by_name(self, args, "aggregates", "aggregate", group)
        if named is None:
            return declare(self, [member_of(self, args, "aggregate", group)], full=True)
        return results(declare(self, [named], full=True), named)

    def _by(self, field: str, aggregator: MinWithComparator) -> Self:
        label = "max_by" if isinstance(aggregator, (MaxBy, MaxWithComparator)) else "min_by"
        if not isinstance(field, str):
            raise self._wrong(f"{label} takes the name of one field, got {field!r}")
        aggregator.field = unquote(field)
        (type_,) = self.fields.select([aggregator.field], self.get_name()).types
        if isinstance(aggregator, MinBy) and is_nested(type_):
            raise self._wrong(f"{label} cannot order {field!r}, which is {type_}; give it a comparator")
        return self._keep_one(aggregator, label)

    def _keep_one(self, aggregator: MinWithComparator, label: str) -> Self:
        return declare(self, [Aggregation(self.fields, aggregator, self.fields)], full=False, label=label)


class ChainedAggregatorDeclarer(TridentNames, Generic[S]):
    """Several aggregators over the same tuples, made by `chained_agg`.

    `chain_end` gives their outputs side by side; where one emits several tuples, every combination, the last aggregator
    varying fastest. Where one emits nothing, there is no combination (Storm fails).
    """

    def __init__(self, stream: S, group: Fields, members: Sequence[tuple[bool, Aggregation]] = ()) -> None:
        self._stream, self._group, self._members = stream, group, tuple(members)

    def aggregate(self, *args: Any) -> ChainedAggregatorDeclarer[S]:
        """Add an aggregator of the whole batch: `([in,] aggregator, out)`."""
        return self._with(True, member_of(self._stream, args, "aggregate", self._group))

    def partition_aggregate(self, *args: Any) -> ChainedAggregatorDeclarer[S]:
        """Add an aggregator of each partition: `([in,] aggregator, out)`."""
        return self._with(False, member_of(self._stream, args, "partition_aggregate", self._group))

    def chain_end(self) -> S:
        """Return the stream of the results. Combiners are aggregated in part first if all of the chain are combiners."""
        if not self._members:
            raise self._stream._wrong(
                "chained_agg has no aggregator; add one with aggregate(...) or partition_aggregate(...) before chain_end()"
            )
        return declare(self._stream, [member for _, member in self._members], full=self._members[0][0])

    def _with(self, full: bool, member: Aggregation) -> ChainedAggregatorDeclarer[S]:
        if any(other is not full for other, _ in self._members):
            raise self._stream._wrong("a chain is made of aggregate calls or of partition_aggregate calls, not of both")
        return ChainedAggregatorDeclarer(self._stream, self._group, [*self._members, (full, member)])


def by_name(stream: StreamBase, args: Sequence[Any], value: str, call: str, group: Fields) -> Aggregation | None:
    """Read `(aggregates by name[, out])`, or one that has several fields; None if the arguments are others."""
    if not any(isinstance(one, (Mapping, WideAggregator)) for one in args):
        return None
    inputs, given, out = stream._operation_args(args)
    if isinstance(given, WideAggregator):
        refuse_missing_output(call, given, out, stream.get_name())
    name = free_name(value, group) if out is None else out.names[0]
    aggregates = given if isinstance(given, Mapping) else {name: (inputs, given)}
    made = several(aggregates, stream.fields, stream.get_name(), aggregate_type)
    read = dict.fromkeys(name for part in made.parts for name in part.inputs.names)
    return Aggregation(stream._select(Fields.named(read)), made, value_of(made, name), True, group)


def results(stream: S, aggregation: Aggregation) -> S:
    """Return a stream that has the results of several aggregates each as a field, in place of their value."""
    (value,) = aggregation.outputs.names
    columns = {name: col(name) for name in stream.fields.names if name != value}
    given = {name: col(value).field(name) for name in result_fields(aggregation.aggregator).names}
    if both := [name for name in columns if name in given]:
        raise TopologyError(
            f"stream {stream.get_name()!r} gives its key ({', '.join(columns)}) and the results of its aggregates, and both "
            f"have a field {both[0]!r}; give the aggregate another name"
        )
    columns |= given
    types = [type_of(one, stream.fields, stream.get_name()) for one in columns.values()]
    return stream._then("select", SelectNode, Fields.of(list(columns), types), expressions=tuple(columns.values()))


def member_of(
    stream: StreamBase, args: Sequence[Any], call: str, group: Fields = Fields(), in_state: bool = False
) -> Aggregation:
    inputs, aggregator, out = stream._operation_args(args)
    combines = has(aggregator, "combine")
    single = combines or has(aggregator, "reduce")
    refuse_missing_output(call, aggregator, out, stream.get_name())
    fits = not isinstance(aggregator, type) and (single or (has(aggregator, "complete") and not in_state))
    if out is None or not fits:
        takes, kinds = _IN_STATE if in_state else _IN_BATCH
        instead = f"expected an object with combine (CombinerAggregator){kinds}"
        if isinstance(aggregator, type):
            instead = f"which is a class; give an object: {aggregator.__name__}()"
        raise stream._wrong(f"{call} takes ({takes}); got {aggregator!r}, {instead}")
    if not len(out):
        raise stream._wrong(f"{call} needs at least one output field")
    name = stream.get_name()
    typed = aggregate_type(aggregator, inputs, out, name) if single else output_fields(aggregator, out, name)
    return Aggregation(inputs, aggregator, typed, combines, group)


_IN_STATE = "state, [fields,] aggregator, output field", " or reduce (ReducerAggregator)"
_IN_BATCH = "[fields,] aggregator, output fields", ", reduce (ReducerAggregator) or aggregate and complete (Aggregator)"


def declare(stream: S, members: Sequence[Aggregation], full: bool, label: str | None = None) -> S:
    fields = group = members[0].group
    names = [name for member in members for name in member.outputs.names]
    if len(set(names)) < len(names):
        raise stream._wrong(f"output fields of chained aggregators must be distinct, got {names}")
    for member in members:
        fields = fields.concat(member.outputs, stream.get_name())
    call = "aggregate" if full else "partition_aggregate"
    id_ = stream._child_id(label or (step_label(call, members[0].aggregator) if len(members) == 1 else call))
    parent, sent = stream._node.id, stream.fields
    if full:
        if all(member.combines for member in members):
            part = AggregateNode(f"{id_}:part", (parent,), fields, tuple(members), partial=True)
            parent, sent = stream._topology._add(part).id, fields
            members = [merging_member(one) for one in members]
        routing = Routing("hash", group) if len(group) else Routing("global")
        parent = stream._topology._add(RepartitionNode(f"{id_}:exchange", (parent,), sent, routing)).id
    node = AggregateNode(id_, (parent,), fields, tuple(members))
    return type(stream)(stream._topology, stream._topology._add(node))


def remove(topology: Declaration, state: StateNode, given: object, fields: FieldsLike | None) -> None:
    writer = _writer(topology.graph(), state)
    (stream,) = check_streams(topology, "remove", [given])
    refuse_state(stream, "remove")
    key = key_of(stream, state.key_fields.names if fields is None else fields, "remove")
    if key.types != state.key_fields.types:
        raise TopologyError(
            f"remove keys of state {state.name!r}: the fields ({key}) of stream {stream.get_name()!r} must be as many as the "
            f"key has ({state.key_fields}), of the same types in the same order. Use each or map to change types"
        )
    if stream._node.id in _behind(topology.graph(), writer):
        raise TopologyError(
            f"remove keys of state {state.name!r}: stream {stream.get_name()!r} exists only after the state's own "
            "update, of which the removals are part. Use a stream from before the state, or query the state with "
            "state_query, which sees it as it was after the previous batch"
        )
    parents, removals = (*writer.parents, stream._node.id), (*writer.removals, key)
    topology._put_behind(replace(writer, parents=parents, removals=removals))


def _writer(graph: Graph, state: StateNode) -> PersistNode:
    writer = next((node for node in graph.nodes if isinstance(node, PersistNode) and node.state == state.name), None)
    if writer is None:
        why = "it is static: nothing updates it"
    elif isinstance(writer, (WindowNode, JoinWithinNode)):
        why = "it keeps the tuples of a window or of a join, which leave it by themselves"
    elif writer.aggregation is None:
        why = "its updater chooses the keys. Merge the streams, and let the updater call state.multi_remove(keys)"
    elif not len(writer.aggregation.group):
        why = "it is a single value and has no keys"
    elif REMOVED in writer.aggregation.group.names:
        why = f"no field of its key may be called {REMOVED!r}, as the keys to remove are marked. Rename it"
    else:
        return writer
    raise TopologyError(f"remove keys of state {state.name!r}: {why}")


def _behind(graph: Graph, writer: PersistNode) -> set[str]:
    """Return the nodes that run after a state's update: they take what it gives, or ask a state for its own batch."""
    reached = {writer.id}
    while True:
        states = {node.state for node in graph.nodes if isinstance(node, PersistNode) and node.id in reached}
        more = {
            node.id
            for node in graph.nodes
            if not reached.isdisjoint(node.parents)
            or (isinstance(node, QueryNode) and node.sees_batch and node.state in states)
        }
        if more <= reached:
            return reached
        reached |= more
