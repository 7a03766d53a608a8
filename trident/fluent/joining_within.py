"""`join_within`: rows of two streams that have the same key, and times that lie close together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import StreamBase, key_of
from trident.fluent.combining import check_keys, check_streams, named
from trident.fluent.declaration import Declaration, spec_of
from trident.fluent.drpc_rules import refuse_state
from trident.fluent.joining import JoinOutFieldsMode, JoinType, joined_fields, outer_of
from trident.fluent.windowing import EVENT_TIMES, keeping
from trident.graph import JoinSide, JoinWithinNode, Node
from trident.state.interfaces import StateFactory, StateSpec

__all__ = ["join_within"]

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
    """Add a join over time; see `TridentTopology.join_within`."""
    from states.memory import MemoryMapState

    handles = check_streams(topology, "join_within", list(streams))
    for stream in handles:
        refuse_state(stream, "join_within")
        _check_names(stream)
    groups = [key_of(stream, key, "join_within") for stream, key in zip(handles, keys, strict=True)]
    check_keys("join_within", handles, groups)
    sides = _sides(handles, groups, times, delay, outer_of(join_type, 2))
    earliest, latest = _bounds(handles[0], within)
    inputs = [stream.fields for stream in handles]
    fields = named(
        "join_within", handles[0].get_name(), Fields(out), joined_fields(JoinOutFieldsMode.COMPACT, inputs, groups)
    )
    name = state_name or handles[0]._label or f"{fields.names[0]}-join"
    spec = MemoryMapState.opaque() if state is None else spec_of(state)
    # A row is kept until the other side's watermark is beyond the last time that may meet it.
    kept_us = max(0, latest + sides[1].delay_us, sides[0].delay_us - earliest)
    topology._add_state(name, keeping(handles[0], "join", name, spec, -(-kept_us // 1000)))
    parents = tuple(stream._node.id for stream in handles)
    id_ = handles[0]._child_id(f"join_within@{name}")
    return topology._add(
        JoinWithinNode(id_, parents, fields, state=name, sides=sides, earliest_us=earliest, latest_us=latest)
    )


def _check_names(stream: StreamBase) -> None:
    reserved = [name for name in stream.fields.names if name.startswith("$")]
    if reserved:
        raise TopologyError(
            f"stream {stream.get_name()!r}: join_within cannot take {reserved[0]!r}: names that begin with $ are its own; "
            "rename the field"
        )


def _sides(
    streams: Sequence[StreamBase], keys: Sequence[Fields], times: Any, delay: Any, outer: Sequence[bool]
) -> tuple[JoinSide, ...]:
    name = streams[0].get_name()
    fields = _pair(times, str)
    if fields is None:
        raise TopologyError(
            f"stream {name!r}: join_within got times={times!r}; name the time of each side: ('at', 'at')"
        )
    delays = _pair(delay, timedelta)
    if delays is None or any(not timedelta(0) <= one <= _MOST for one in delays):
        raise TopologyError(
            f"stream {name!r}: join_within got delay={delay!r}; give a timedelta, or one for each side: how far out of order "
            "its tuples may come"
        )
    return tuple(
        JoinSide(stream.fields, key, _time(stream, field), one // _US, missing)
        for stream, key, field, one, missing in zip(streams, keys, fields, delays, outer, strict=True)
    )


def _time(stream: StreamBase, field: str) -> str:
    (type_,) = stream._select([field]).types
    if type_ not in EVENT_TIMES:
        raise TopologyError(
            f"stream {stream.get_name()!r}: the event time {field!r} is {type_}; it must be a timestamp, a timestamp_ntz, or a "
            f"bigint of milliseconds since 1970. The stream has {stream.fields}"
        )
    return field


def _bounds(stream: StreamBase, within: Any) -> tuple[int, int]:
    """Return how much later the right time may be, least and most, in microseconds."""
    found = (-within, within) if isinstance(within, timedelta) else _pair(within, timedelta)
    if found is None or found[0] > found[1] or any(abs(one) > _MOST for one in found):
        raise TopologyError(
            f"stream {stream.get_name()!r}: join_within got within={within!r}; give a timedelta that is not negative, or two, "
            "the least and the most by which the right time may be later than the left one (100 years at most)"
        )
    return found[0] // _US, found[1] // _US


def _pair(value: Any, kind: type) -> Pair | None:
    """Return one value for each side; None if it is neither one nor two of a kind."""
    if isinstance(value, kind):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, kind) for one in value):
        return value[0], value[1]
    return None
