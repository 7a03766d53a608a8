"""Several streams of one batch become one: `merge`, `multi_reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields
from trident.fluent.base import StreamBase, check_streams, child_of, is_fields
from trident.fluent.declaration import Declaration
from trident.graph import MergeNode, MultiReduceNode, Node
from trident.operations.adapters import output_fields
from trident.operations.interfaces import GroupedMultiReducer, MultiReducer
from trident.roles import has


def merge(topology: Declaration, args: Sequence[Any]) -> Node:
    """Add the union of streams; see `TridentTopology.merge`."""
    rest = list(args)
    out = Fields(rest.pop(0)) if rest and rest[0] and is_fields(rest[0]) else None
    streams = check_streams(
        topology, "merge", rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    )
    first = streams[0]
    inputs = tuple(_in_order_of(first, stream, out) for stream in streams)
    fields = first.fields if out is None else named("merge", first, out, first.fields)
    return child_of(streams, "merge", MergeNode, fields, inputs=inputs)


def _in_order_of(first: StreamBase, stream: StreamBase, out: Fields | None) -> Fields:
    """Return the fields of a stream in the order of the first one's, by their names; `TopologyError` if they do not fit.

    Other names are taken by position if `out` names the fields of the result, and the first one has none of them at another
    place with the same type.
    """
    names, own, fields = first.fields.names, stream.fields.names, stream.fields
    what = (
        f"cannot merge stream {stream.get_name()!r} ({stream.fields}) with stream {first.get_name()!r} ({first.fields})"
    )
    there, here = first.fields.pairs, stream.fields.pairs
    apart = [field for field, other in zip(here, there, strict=False) if field != other and field in there]
    if set(names) == set(own):
        fields = fields.select(names)
    elif out is None or apart or len(own) != len(names):
        raise TopologyError(
            f"{what}: they must have fields of the same names, in any order. Choose fields with project, and rename them with "
            "select(new=col('old')); merge(names, one, other) takes fields by position, if none of them is at two places"
        )
    for name, wanted, type_ in zip(names, first.fields.types, fields.types, strict=True):
        if type_ != wanted:
            raise TopologyError(
                f"{what}: {name!r} is {wanted} in the one and {type_} in the other. Change the type with select or map"
            )
    return fields


def multi_reduce(topology: Declaration, args: Sequence[Any]) -> Node:
    """Add a reducer of several streams; see `TridentTopology.multi_reduce`."""
    from trident.stream import GroupedStream

    if len(args) < 3:
        raise TopologyError(f"topology {topology.name!r}: multi_reduce takes (streams, reducer, output fields)")
    *before, reducer, out = args
    given, handles = _inputs_and_streams(before)
    grouped = [isinstance(handle, GroupedStream) for handle in handles]
    if any(grouped) and not all(grouped):
        raise TopologyError("multi_reduce takes streams that are all grouped (group_by) or all ungrouped; got both")
    streams = check_streams(topology, "multi_reduce", [one.to_stream() if any(grouped) else one for one in handles])
    _check_reducer(streams[0], reducer, any(grouped))
    inputs = _inputs(streams, given)
    groups = [handle.get_group_fields() for handle in handles] if any(grouped) else [Fields()] * len(streams)
    check_keys("multi_reduce", streams, groups)
    fields = output_fields(reducer, Fields(out), streams[0].get_name())
    return child_of(
        streams, "multi_reduce", MultiReduceNode, fields, inputs=tuple(inputs), groups=tuple(groups), reducer=reducer
    )


def _check_reducer(stream: StreamBase, reducer: Any, grouped: bool) -> None:
    if isinstance(reducer, type) or not has(reducer, "init", "execute", "complete"):
        raise stream._wrong(
            f"multi_reduce takes (streams, reducer, output fields); got {reducer!r}, a reducer has the methods init, execute "
            "and complete"
        )
    if isinstance(reducer, MultiReducer if grouped else GroupedMultiReducer):
        raise stream._wrong(
            f"multi_reduce of streams that are {'' if grouped else 'not '}grouped takes a "
            f"{'Grouped' if grouped else ''}MultiReducer, got a {type(reducer).__name__}"
        )


def _inputs_and_streams(args: Sequence[Any]) -> tuple[list[Fields], list[Any]]:
    """Read `(stream, …)`, `(fields, stream, …)`, `(streams)` or `(fields of each, streams)`."""
    if len(args) == 2 and all(isinstance(one, (list, tuple)) for one in args):
        return [Fields(fields) for fields in args[0]], list(args[1])
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        return [], list(args[0])
    return [Fields(one) for one in args if is_fields(one)], [one for one in args if not is_fields(one)]


def _inputs(streams: Sequence[StreamBase], given: Sequence[Fields]) -> list[Fields]:
    """Return what the reducer sees of each stream: the fields given for it, all if none are given."""
    if given and len(given) != len(streams):
        raise TopologyError(f"multi_reduce got input fields for {len(given)} streams, but {len(streams)} streams")
    inputs = [
        stream.fields.select(fields.names, stream.get_name())
        for stream, fields in zip(streams, given or [stream.fields for stream in streams], strict=True)
    ]
    if not all(len(fields) for fields in inputs):
        raise TopologyError("multi_reduce needs at least one input field of each stream")
    return inputs


def check_keys(call: str, streams: Sequence[StreamBase], keys: Sequence[Fields]) -> None:
    """Refuse keys of different lengths or types."""
    for stream, key in zip(streams, keys, strict=True):
        if key.types != keys[0].types:
            raise TopologyError(
                f"{call}: the key of stream {stream.get_name()!r} ({key}) must have as many fields as that of stream "
                f"{streams[0].get_name()!r} ({keys[0]}), of the same types in the same order. Use each or map to change types"
            )


def named(call: str, stream: StreamBase, out: Fields, fields: Fields) -> Fields:
    """Return `fields` under the names of `out`; `TopologyError` if their number, a type, or only the order is another."""
    if len(out) != len(fields):
        raise stream._wrong(
            f"{call} gives {len(fields)} fields ({fields}), but {len(out)} output fields are named: {list(out.names)}"
        )
    if out.names != fields.names and set(out.names) == set(fields.names):
        raise stream._wrong(
            f"{call} gives {list(fields.names)} in this order, and names are given by position, so {list(out.names)} would mix "
            "them up; name them in this order, and reorder them with project afterwards"
        )
    for name, wanted, type_ in zip(out.names, out.types, fields.types, strict=True):
        if wanted not in (None, type_):
            raise stream._wrong(f"{call} gives {type_} for field {name!r}, which is declared {wanted}")
    return Fields.of(out.names, fields.types)
