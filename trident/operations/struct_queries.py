"""`MapGet` and `SnapshotGet` over a state of structs: each field of the value fills an output field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, split_commas
from trident.operations.builtin import MapGet, SnapshotGet
from trident.operations.interfaces import BaseQueryFunction
from trident.tuples import TridentCollector, TridentTuple

__all__ = ["StructQuery", "spread"]


class StructQuery(BaseQueryFunction[Any, Any]):
    """A query whose result is a struct, or None; emits the struct's fields, or as many times None.

    Parameters
    ----------
    query
        The query that finds the struct.
    fields
        The struct's fields, in order.
    """

    def __init__(self, query: MapGet | SnapshotGet, fields: Fields) -> None:
        self.query, self._fields = query, fields
        self.output_types = [type_ or "" for type_ in fields.types]

    def batch_retrieve(self, state: Any, args: Sequence[TridentTuple]) -> Sequence[Any]:
        """Find the structs."""
        return self.query.batch_retrieve(state, args)

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        """Emit the fields."""
        collector.emit([None if result is None else result[name] for name in self._fields.names])


def spread(function: Any, value: Fields, out: Fields, stream: str) -> Any:
    """Return the query, made to fill several output fields if the state's value is a struct of as many."""
    if not isinstance(function, (MapGet, SnapshotGet)) or len(out) < 2 or len(value) != 1:
        return function
    type_ = value.types[0] or ""
    if not type_.startswith("struct<"):
        return function
    fields = Fields(split_commas(type_[len("struct<") : -1]))
    if len(fields) != len(out):
        raise TopologyError(
            f"stream {stream!r}: the state's value is a {type_}, but {len(out)} output fields are named: {list(out.names)}; "
            f"name {len(fields)}, or one for the whole struct"
        )
    return StructQuery(function, fields)
