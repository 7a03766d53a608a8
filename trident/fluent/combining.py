"""Several streams become one: `merge`, `multi_reduce` and `join` within a batch; `join_within` also over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, unquote
from trident.fluent.base import (
    Declaration,
    StreamBase,
    check_streams,
    child_of,
    is_fields,
    key_of,
    refuse_state,
    spec_of,
)
from trident.fluent.windowing import check_own_names, event_time_type, keeping
from trident.graph import JoinNode, JoinSide, JoinWithinNode, MergeNode, MultiReduceNode, Node, StateNode
from trident.operations.adapters import output_fields
from trident.operations.interfaces import GroupedMultiReducer, MultiReducer
from trident.roles import has
from trident.state.interfaces import StateFactory, StateSpec


def merge(topology: Declaration, args: Sequence[Any]) -> Node:
    rest = list(args)
    out = Fields(rest.pop(0)) if rest and rest[0] and is_fields(rest[0]) else None
    streams = check_streams(
        topology, "merge", rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    )
    first = streams[0]
    inputs = tuple(_in_order_of(first, stream, out) for stream in streams)
    fields = first.fields if out is None else rename_to("merge", first, out, first.fields)
    return child_of(streams, "merge", MergeNode, fields, inputs=inputs)


def _in_order_of(first: StreamBase, stream: StreamBase, out: Fields | None) -> Fields:
    """Return the fields of a stream in the order of the first one's names; others go by position if `out` is given."""
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
    from trident.stream import GroupedStream

    if len(args) < 3:
        raise TopologyError(f"topology {topology.name!r}: multi_reduce takes (streams, reducer, output fields)")
    *before, reducer, out = args
    given, handles = _inputs_and_streams(before)
    kinds = {isinstance(handle, GroupedStream) for handle in handles}
    if len(kinds) > 1:
        raise TopologyError("multi_reduce takes streams that are all grouped (group_by) or all ungrouped; got both")
    grouped = True in kinds
    streams = check_streams(topology, "multi_reduce", [one.to_stream() if grouped else one for one in handles])
    if isinstance(reducer, type) or not has(reducer, "init", "execute", "complete"):
        raise streams[0]._wrong(
            f"multi_reduce takes (streams, reducer, output fields); got {reducer!r}, a reducer has the methods init, execute "
            "and complete"
        )
    if isinstance(reducer, MultiReducer if grouped else GroupedMultiReducer):
        raise streams[0]._wrong(
            f"multi_reduce of streams that are {'grouped takes a Grouped' if grouped else 'not grouped takes a '}MultiReducer, "
            f"got a {type(reducer).__name__}"
        )
    inputs = _inputs(streams, given)
    groups = [handle.get_group_fields() for handle in handles] if grouped else [Fields()] * len(streams)
    check_keys("multi_reduce", streams, groups)
    fields = output_fields(reducer, Fields(out), streams[0].get_name())
    return child_of(
        streams, "multi_reduce", MultiReduceNode, fields, inputs=tuple(inputs), groups=tuple(groups), reducer=reducer
    )


def _inputs_and_streams(args: Sequence[Any]) -> tuple[list[Fields], list[Any]]:
    """Read `(stream, …)`, `(fields, stream, …)`, `(streams)` or `(fields of each, streams)`."""
    if len(args) == 2 and all(isinstance(one, (list, tuple)) for one in args):
        return [Fields(fields) for fields in args[0]], list(args[1])
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        return [], list(args[0])
    return [Fields(one) for one in args if is_fields(one)], [one for one in args if not is_fields(one)]


def _inputs(streams: Sequence[StreamBase], given: Sequence[Fields]) -> list[Fields]:
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
    for stream, key in zip(streams, keys, strict=True):
        if key.types != keys[0].types:
            raise TopologyError(
                f"{call}: the key of stream {stream.get_name()!r} ({key}) must have as many fields as that of stream "
                f"{streams[0].get_name()!r} ({keys[0]}), of the same types in the same order. Use each or map to change types"
            )


def rename_to(call: str, stream: StreamBase, out: Fields, fields: Fields) -> Fields:
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


class JoinType(Enum):
    """Whether a side of a join may be missing: `OUTER` at a side's place fills it with nulls where it has no row."""

    INNER = "inner"
    OUTER = "outer"

    @staticmethod
    def mixed(*types: JoinType) -> list[JoinType]:
        """Return one type for each side: `mixed(INNER, OUTER)` keeps the rows of the first side (SQL's left join)."""
        return list(types)


class JoinOutFieldsMode(Enum):
    """What a join gives: `COMPACT` the key once, then the other fields of each side; `PRESERVE` all fields of all sides."""

    COMPACT = "compact"
    PRESERVE = "preserve"


def join(topology: Declaration, args: Sequence[Any], null_keys_match: bool) -> Node:
    rest, mode = _trailing(list(args), JoinOutFieldsMode, JoinOutFieldsMode.COMPACT)
    rest, types = _trailing(rest, JoinType, JoinType.INNER)
    if len(rest) == 3 and not is_fields(rest[0]) and isinstance(rest[0], (list, tuple)):
        handles, key_fields = list(rest[0]), list(rest[1])
    else:
        handles, key_fields = list(rest[:-1:2]), list(rest[1:-1:2])
    if len(handles) < 2 or len(handles) != len(key_fields) or not is_fields(rest[-1]):
        raise TopologyError(
            f"topology {topology.name!r}: join takes (stream, key fields, stream, key fields, …, output fields[, join type"
            "[, mode]]) or (streams, key fields of each, output fields[, join type[, mode]]), of two streams or more"
        )
    streams = check_streams(topology, "join", handles)
    keys = [key_of(stream, fields, "join") for stream, fields in zip(streams, key_fields, strict=True)]
    out = Fields(rest[-1])
    inputs = [stream.fields for stream in streams]
    check_keys("join", streams, keys)
    fields = rename_to("join", streams[0], out, joined_fields(mode, inputs, keys))
    outer, preserve = outer_of(types, len(streams)), mode is JoinOutFieldsMode.PRESERVE
    return child_of(
        streams, "join", JoinNode, fields, inputs=tuple(inputs), groups=tuple(keys), outer=outer, preserve=preserve,
        null_keys_match=null_keys_match,
    )  # fmt: skip


def _trailing(args: list[Any], kind: type[Enum], default: Any) -> tuple[list[Any], Any]:
    last = args[-1] if args else None
    if isinstance(last, kind) or (
        isinstance(last, (list, tuple)) and last and all(isinstance(one, kind) for one in last)
    ):
        return args[:-1], last
    return args, default


def joined_fields(mode: JoinOutFieldsMode, inputs: Sequence[Fields], keys: Sequence[Fields]) -> Fields:
    """Return the fields that a join gives; names that come twice get a number, they are only for messages."""
    if mode is JoinOutFieldsMode.PRESERVE:
        pairs = [pair for fields in inputs for pair in fields.pairs]
    else:
        pairs = keys[0].pairs
        for fields, key in zip(inputs, keys, strict=True):
            pairs += [pair for pair in fields.pairs if pair[0] not in key.names]
    names: list[str] = []
    for name, _ in pairs:
        number, unique = 1, name
        while unique in names:
            number += 1
            unique = f"{name}{number}"
        names.append(unique)
    return Fields.of(names, [type_ for _, type_ in pairs])


def outer_of(types: Any, sides: int) -> tuple[bool, ...]:
    each = types if isinstance(types, list | tuple) else [types] * sides
    if len(each) != sides or not all(isinstance(one, JoinType) for one in each):
        raise TopologyError(
            f"join of {sides} streams got the join type {types!r}; give a JoinType, or one for each stream"
        )
    return tuple(one is JoinType.OUTER for one in each)


_US = timedelta(microseconds=1)
_MOST = timedelta(days=36_525)

Pair = tuple[Any, Any]


def join_within(
    topology: Declaration,
    streams: Sequence[Any],
    keys: Sequence[FieldsLike],
    out: FieldsLike,
    times: str | Sequence[str],
    within: timedelta | Sequence[timedelta],
    delay: timedelta | Sequence[timedelta],
    state: StateFactory | StateSpec | None,
    join_type: JoinType | Sequence[JoinType],
    state_name: str | None,
) -> Node:
    from states.memory import MemoryMapState

    handles = check_streams(topology, "join_within", list(streams))
    for stream in handles:
        refuse_state(stream, "join_within")
        check_own_names(stream, "join_within cannot take", stream.fields.names)
    groups = [key_of(stream, key, "join_within") for stream, key in zip(handles, keys, strict=True)]
    check_keys("join_within", handles, groups)
    sides = _sides_in_time(handles, groups, times, delay, outer_of(join_type, 2))
    # How much later the right time may be, least and most.
    found = _pair(within, timedelta)
    if isinstance(within, timedelta) and -_MOST <= within <= _MOST:
        found = (-within, within)
    if found is None or found[0] > found[1] or not all(-_MOST <= one <= _MOST for one in found):
        raise handles[0]._wrong(
            f"join_within got within={within!r}; give a timedelta that is not negative, or two, the least and the most by "
            "which the right time may be later than the left one (100 years at most)"
        )
    earliest, latest = found[0] // _US, found[1] // _US
    inputs = [stream.fields for stream in handles]
    fields = rename_to("join_within", handles[0], Fields(out), joined_fields(JoinOutFieldsMode.COMPACT, inputs, groups))
    name = handles[0]._state_name(state_name, f"{fields.names[0]}-join")
    spec = MemoryMapState.opaque() if state is None else spec_of(state)
    # A row is kept until the other side's watermark is beyond the last time that may meet it.
    kept_us = max(0, latest + sides[1].delay_us, sides[0].delay_us - earliest)
    topology._add_state(StateNode(name, keeping(handles[0], "join", name, spec, -(-kept_us // 1000))))
    within_us = {"earliest_us": earliest, "latest_us": latest}
    return child_of(handles, f"join_within@{name}", JoinWithinNode, fields, state=name, sides=sides, **within_us)


def _sides_in_time(
    streams: Sequence[StreamBase], keys: Sequence[Fields], times: Any, delay: Any, outer: Sequence[bool]
) -> tuple[JoinSide, ...]:
    fields = _pair(times, str)
    if fields is None:
        raise streams[0]._wrong(f"join_within got times={times!r}; name the time of each side: ('at', 'at')")
    delays = _pair(delay, timedelta)
    if delays is None or any(not timedelta(0) <= one <= _MOST for one in delays):
        raise streams[0]._wrong(
            f"join_within got delay={delay!r}; give a timedelta, or one for each side: how far out of order its tuples may come"
        )
    names = [unquote(field) for field in fields]
    for stream, field in zip(streams, names, strict=True):
        event_time_type(stream, field)
    return tuple(
        JoinSide(stream.fields, key, field, one // _US, missing)
        for stream, key, field, one, missing in zip(streams, keys, names, delays, outer, strict=True)
    )


def _pair(value: Any, kind: type) -> Pair | None:
    if isinstance(value, kind):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, kind) for one in value):
        return value[0], value[1]
    return None
