"""What an operation is called where people read it; operations over other operations: combiners' halves, queries of structs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, fields_of_struct
from trident.graph import Aggregation
from trident.operations.builtin import Count, First, Last, MapGet, Max, Min, SnapshotGet, Sum
from trident.operations.interfaces import BaseQueryFunction, CombinerAggregator, function_name
from trident.operations.several import MultiAggregate
from trident.roles import has
from trident.tuples import TridentCollector, TridentTuple

_WORD = re.compile(r"[A-Za-z0-9_-]+")


def operation_name(operation: Any) -> str:
    if isinstance(operation, MergedCombiner):
        return operation_name(operation.combiner)
    if isinstance(operation, MultiAggregate):
        return operation.name
    if isinstance(operation, StructQuery):
        return operation_name(operation.query)
    if isinstance(operation, Last) and operation.by is not None:
        return f"{type(operation).__name__}-by-{operation.by}"
    wrapped = operation.function if has(operation, "function") else None
    return function_name(wrapped if callable(wrapped) else operation)


def step_label(call: str, operation: Any, state: str | None = None) -> str:
    """Return what a step is called: its operation, and its state if it has one; the call where the operation has no name."""
    name = operation_name(operation)
    label = name if _WORD.fullmatch(name) else call  # `<lambda>`
    return label if state is None else f"{label}@{state}"


class MergedCombiner(CombinerAggregator[Any]):
    """Combines values that a combiner gave; the combiner is prepared where it made them."""

    def __init__(self, combiner: CombinerAggregator[Any]) -> None:
        self.combiner = combiner

    def init(self, tuple: TridentTuple) -> Any:
        return tuple[0]

    def combine(self, val1: Any, val2: Any) -> Any:
        return self.combiner.combine(val1, val2)

    def zero(self) -> Any:
        return self.combiner.zero()


def merging_member(member: Aggregation) -> Aggregation:
    """Return the member of an aggregate that merges what a combiner's own member gave in part."""
    combiner = member.aggregator
    if type(combiner) is Count:  # the built-in ones keep their Arrow kernels: counts are summed
        combiner = Sum()
    elif not (type(combiner) in (Sum, Min, Max) or (type(combiner) in (First, Last) and combiner.by is None)):
        combiner = MergedCombiner(combiner)
    return replace(member, inputs=member.outputs, aggregator=combiner)


class StructQuery(BaseQueryFunction[Any, Any]):
    """A query whose result is a struct, or None; emits the struct's fields, or as many times None."""

    def __init__(self, query: MapGet | SnapshotGet, fields: Fields) -> None:
        self.query, self._fields = query, fields
        self.output_types = [type_ or "" for type_ in fields.types]

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        return self.query.batch_retrieve(state, args)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        collector.emit([None if result is None else result[name] for name in self._fields.names])


def spread(function: Any, value: Fields, out: Fields, stream: str) -> Any:
    """Return the query, made to fill several output fields if the state's value is a struct of these, or of as many."""
    if not isinstance(function, (MapGet, SnapshotGet)) or len(out) < 2 or len(value) != 1:
        return function
    fields = fields_of_struct(value.types[0])
    if not len(fields):
        return function
    if set(out.names) <= set(fields.names):
        return StructQuery(function, fields.select(out.names))
    if len(fields) != len(out):
        raise TopologyError(
            f"stream {stream!r}: the state's value is a {value.types[0]}, but {len(out)} output fields are named: "
            f"{list(out.names)}; name {len(fields)}, or one for the whole struct"
        )
    return StructQuery(function, fields)
