"""`join`: rows of several streams of one batch that have the same key."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields
from trident.fluent.base import StreamBase, is_fields, key_of
from trident.fluent.combining import check_keys, check_streams, named
from trident.fluent.declaration import Declaration
from trident.graph import JoinNode, Node

__all__ = ["JoinOutFieldsMode", "JoinType", "join", "joined_fields", "outer_of"]


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
    fields = named("join", streams[0].get_name(), out, joined_fields(mode, inputs, keys))
    return topology._add(
        JoinNode(
            streams[0]._child_id("join"),
            tuple(stream._node.id for stream in streams),
            fields,
            tuple(inputs),
            tuple(keys),
            outer_of(types, len(streams)),
            mode is JoinOutFieldsMode.PRESERVE,
            null_keys_match,
        )
    )


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
        pairs = [pair for fields in inputs for pair in _pairs(fields)]
    else:
        pairs = _pairs(keys[0])
        for fields, key in zip(inputs, keys, strict=True):
            pairs += [pair for pair in _pairs(fields) if pair[0] not in key.names]
    names: list[str] = []
    for name, _ in pairs:
        number, unique = 1, name
        while unique in names:
            number += 1
            unique = f"{name}{number}"
        names.append(unique)
    return Fields.of(names, [type_ for _, type_ in pairs])


def _pairs(fields: Fields) -> list[tuple[str, str | None]]:
    return list(zip(fields.names, fields.types, strict=True))


def outer_of(types: Any, sides: int) -> tuple[bool, ...]:
    """Return for each side whether it may be missing."""
    each = [types] * sides if isinstance(types, JoinType) else list(types)
    if len(each) != sides:
        raise TopologyError(f"join of {sides} streams got {len(each)} join types; give one, or one for each stream")
    return tuple(one is JoinType.OUTER for one in each)
