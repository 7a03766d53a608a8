"""`join` within a batch, and `join_within`: rows of streams that have the same key, and times that are near."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, unquoted
from trident.fluent.base import StreamBase, check_streams, child_of, is_fields, key_of, refuse_state
from trident.fluent.combining import check_keys, named
from trident.fluent.declaration import Declaration, spec_of
from trident.fluent.windowing import check_own_names, event_time_type, keeping
from trident.graph import JoinNode, JoinSide, JoinWithinNode, Node, StateNode
from trident.state.interfaces import StateFactory, StateSpec


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
    """Add a join; see `TridentTopology.join`."""
    rest, mode = _trailing(list(args), JoinOutFieldsMode, JoinOutFieldsMode.COMPACT)
    rest, types = _trailing(rest, JoinType, JoinType.INNER)
    streams, keys, out = _sides(topology, rest)
    inputs = [stream.fields for stream in streams]
    check_keys("join", streams, keys)
    fields = named("join", streams[0], out, joined_fields(mode, inputs, keys))
    outer, preserve = outer_of(types, len(streams)), mode is JoinOutFieldsMode.PRESERVE
    return child_of(
        streams, "join", JoinNode, fields, inputs=tuple(inputs), groups=tuple(keys), outer=outer, preserve=preserve,
        null_keys_match=null_keys_match,
    )  # fmt: skip


def _trailing(args: list[Any], kind: type[Enum], default: Any) -> tuple[list[Any], Any]:
    """Take the last argument off if it is of a kind, or a list of that kind."""
    last = args[-1] if args else None
    if isinstance(last, kind) or (
        isinstance(last, (list, tuple)) and last and all(isinstance(one, kind) for one in last)
    ):
        return args[:-1], last
    return args, default


def _sides(topology: Declaration, args: list[Any]) -> tuple[list[StreamBase], list[Fields], Fields]:
    if len(args) == 3 and not is_fields(args[0]) and isinstance(args[0], (list, tuple)):
        handles, key_fields = list(args[0]), list(args[1])
    else:
        handles, key_fields = list(args[:-1:2]), list(args[1:-1:2])
    if len(handles) < 2 or len(handles) != len(key_fields) or not is_fields(args[-1]):
        raise TopologyError(
            f"topology {topology.name!r}: join takes (stream, key fields, stream, key fields, …, output fields[, join type"
            "[, mode]]) or (streams, key fields of each, output fields[, join type[, mode]]), of two streams or more"
        )
    streams = check_streams(topology, "join", handles)
    keys = [key_of(stream, fields, "join") for stream, fields in zip(streams, key_fields, strict=True)]
    return streams, keys, Fields(args[-1])


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
    """Return for each side whether it may be missing."""
    each = [types] * sides if isinstance(types, JoinType) else list(types)
    if len(each) != sides:
        raise TopologyError(f"join of {sides} streams got {len(each)} join types; give one, or one for each stream")
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
    """Add a join over time; see `TridentTopology.join_within`."""
    from states.memory import MemoryMapState

    handles = check_streams(topology, "join_within", list(streams))
    for stream in handles:
        refuse_state(stream, "join_within")
        check_own_names(stream, "join_within cannot take", stream.fields.names)
    groups = [key_of(stream, key, "join_within") for stream, key in zip(handles, keys, strict=True)]
    check_keys("join_within", handles, groups)
    sides = _sides_in_time(handles, groups, times, delay, outer_of(join_type, 2))
    earliest, latest = _bounds(handles[0], within)
    inputs = [stream.fields for stream in handles]
    fields = named("join_within", handles[0], Fields(out), joined_fields(JoinOutFieldsMode.COMPACT, inputs, groups))
    name = state_name or handles[0]._label or f"{fields.names[0]}-join"
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
    names = [unquoted(field) for field in fields]
    for stream, field in zip(streams, names, strict=True):
        event_time_type(stream, field)
    return tuple(
        JoinSide(stream.fields, key, field, one // _US, missing)
        for stream, key, field, one, missing in zip(streams, keys, names, delays, outer, strict=True)
    )


def _bounds(stream: StreamBase, within: Any) -> tuple[int, int]:
    """Return how much later the right time may be, least and most, in microseconds."""
    found = (-within, within) if isinstance(within, timedelta) else _pair(within, timedelta)
    if found is None or found[0] > found[1] or any(abs(one) > _MOST for one in found):
        raise stream._wrong(
            f"join_within got within={within!r}; give a timedelta that is not negative, or two, the least and the most by "
            "which the right time may be later than the left one (100 years at most)"
        )
    return found[0] // _US, found[1] // _US


def _pair(value: Any, kind: type) -> Pair | None:
    """Return one value for each side; None if it is neither one nor two of a kind."""
    if isinstance(value, kind):
        return value, value
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, kind) for one in value):
        return value[0], value[1]
    return None
