"""What every family of calls on a stream needs: the stream's node, its name, and adding the next node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, is_nested
from trident.fluent.declaration import Declaration
from trident.graph import Node
from trident.naming import TridentNames
from trident.roles import has

if TYPE_CHECKING:
    from typing import Self

__all__ = ["StreamBase", "is_fields", "key_of"]


class StreamBase(TridentNames):
    """A node of the graph, seen as the stream of its tuples."""

    def __init__(self, topology: Declaration, node: Node, label: str | None = None) -> None:
        self._topology, self._node, self._label = topology, node, label

    @property
    def fields(self) -> Fields:
        """Names and types of the tuples' values."""
        return self._node.fields

    @property
    def node_id(self) -> str:
        """The id of the last step: unique in the topology, and the same at each start."""
        return self._node.id

    def get_name(self) -> str:
        """Return the label given by `name`, else the id of the last step."""
        return self._label or self._node.id

    def _select(self, fields: FieldsLike) -> Fields:
        return self.fields.select(Fields(fields).names, self.get_name())

    def _child_id(self, label: str) -> str:
        return self._topology._child_id(self._node.id, self._label or label)

    def _child(self, label: str, kind: type[Node], fields: Fields, **rest: Any) -> Node:
        return self._topology._add(kind(self._child_id(label), (self._node.id,), fields, **rest))

    def _then(self, label: str, kind: type[Node], fields: Fields, **rest: Any) -> Self:
        return type(self)(self._topology, self._child(label, kind, fields, **rest))

    def _operation_args(self, args: Sequence[Any]) -> tuple[Fields, Any, Fields | None]:
        """Read `([fields,] operation[, output fields])`."""
        rest = list(args)
        inputs = self._select(rest.pop(0)) if rest and is_fields(rest[0]) else None
        if not rest or len(rest) > 2:
            raise TopologyError(
                f"stream {self.get_name()!r}: expected ([fields,] operation[, output fields]), got {args!r}"
            )
        out = Fields(rest[1]) if len(rest) == 2 else None
        if inputs is None:
            # as in Storm, an aggregator without input fields sees empty tuples; an updater sees everything
            inputs = self.fields if has(rest[0], "update_state") else Fields()
        return inputs, rest[0], out


def is_fields(value: object) -> bool:
    """Whether an argument names fields."""
    return isinstance(value, (str, Fields)) or (
        isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    )


def key_of(stream: StreamBase, fields: FieldsLike, call: str) -> Fields:
    """Return the named fields of a stream as a key; `TopologyError` if they cannot be one."""
    key = stream.fields.select(Fields(fields).names, stream.get_name())
    if not len(key):
        raise TopologyError(f"stream {stream.get_name()!r}: {call} needs at least one field")
    for name, type_ in zip(key.names, key.types, strict=True):
        if is_nested(type_):
            raise TopologyError(
                f"stream {stream.get_name()!r}: cannot {call.replace('_', ' ')} {name!r}, which is {type_}; a key is made "
                "of plain values. Derive a text or a number from it with each, and use that"
            )
    return key
