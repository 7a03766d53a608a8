"""What every family of calls on a stream needs, and what a DRPC stream may not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike, is_nested
from trident.fluent.declaration import Declaration
from trident.graph import DrpcNode, Node, SpoutNode
from trident.naming import TridentNames
from trident.operations.several import fields_read, refuse_other_fields
from trident.roles import has

if TYPE_CHECKING:
    from typing import Self


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

    def _wrong(self, what: str) -> TopologyError:
        """Return the error of a call that is wrong; it names the stream."""
        return TopologyError(f"stream {self.get_name()!r}: {what}")

    def _select(self, fields: FieldsLike) -> Fields:
        return self.fields.select(Fields(fields).names, self.get_name())

    def _child_id(self, label: str) -> str:
        return self._topology._child_id(self._node.id, self._label or label)

    def _state_name(self, given: str | None, otherwise: str) -> str:
        """Return what a state is called: as it is given, else as the stream, else otherwise."""
        return (self._label or otherwise) if given is None else given

    def _then(self, label: str, kind: type[Node], fields: Fields, **rest: Any) -> Self:
        return type(self)(self._topology, child_of([self], label, kind, fields, **rest))

    def _operation_args(self, args: Sequence[Any]) -> tuple[Fields, Any, Fields | None]:
        """Read `([fields,] operation[, output fields])`."""
        rest = list(args)
        inputs = self._select(rest.pop(0)) if rest and is_fields(rest[0]) else None
        if not rest or len(rest) > 2:
            raise self._wrong(f"expected ([fields,] operation[, output fields]), got {args!r}")
        out = Fields(rest[1]) if len(rest) == 2 else None
        if inputs is None:
            # as in Storm, an aggregator without input fields sees empty tuples; an updater sees everything
            inputs = self.fields if has(rest[0], "update_state") else self._select(Fields.named(fields_read(rest[0])))
        refuse_other_fields(rest[0], inputs, self.get_name())
        return inputs, rest[0], out


def is_fields(value: object) -> bool:
    return isinstance(value, (str, Fields)) or (
        isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    )


def child_of(streams: Sequence[StreamBase], label: str, kind: type[Node], fields: Fields, **rest: Any) -> Node:
    """Add a node that takes the tuples of streams; its name is made from that of the first."""
    first = streams[0]
    return first._topology._add(kind(first._child_id(label), tuple(one._node.id for one in streams), fields, **rest))


def key_of(stream: StreamBase, fields: FieldsLike, call: str) -> Fields:
    """Return the named fields of a stream as a key; `TopologyError` if they cannot be one."""
    key = stream.fields.select(Fields(fields).names, stream.get_name())
    if not len(key):
        raise stream._wrong(f"{call} needs at least one field")
    for name, type_ in key.pairs:
        if is_nested(type_):
            raise stream._wrong(
                f"cannot {call.replace('_', ' ')} {name!r}, which is {type_}; a key is made of plain values. Derive a text or "
                "a number from it with each, and use that"
            )
    return key


def check_streams(topology: Declaration, call: str, streams: Sequence[Any]) -> list[StreamBase]:
    """Return the streams; `TopologyError` if there are none, if one is none, or one is of another topology."""
    if not streams:
        raise TopologyError(f"topology {topology.name!r}: {call} needs at least one stream")
    for stream in streams:
        if not isinstance(stream, StreamBase):
            raise TopologyError(f"topology {topology.name!r}: {call} takes streams, got {stream!r}")
        if stream._topology is not topology:
            raise TopologyError(
                f"topology {topology.name!r}: {call} got stream {stream.get_name()!r} of another topology "
                f"({stream._topology.name!r})"
            )
    _check_apart(call, streams)
    return list(streams)


def _check_apart(call: str, streams: Sequence[StreamBase]) -> None:
    """Refuse to bring DRPC requests together with anything but themselves.

    Raises `TopologyError`: as in Storm: "Cannot join DRPC stream with streams originating from other spouts".
    """
    origins = [(stream, source) for stream in streams for source in _sources(stream)]
    request = next(((stream, source) for stream, source in origins if isinstance(source, DrpcNode)), None)
    if request is None:
        return
    for stream, source in origins:
        if source.id != request[1].id:
            what = "DRPC function" if isinstance(source, DrpcNode) else "spout"
            raise TopologyError(
                f"{call}: cannot bring stream {request[0].get_name()!r} of DRPC function {_name(request[1])!r} together "
                f"with stream {stream.get_name()!r} of {what} {_name(source)!r}: a request is a batch of its own. Keep the "
                "other stream's tuples in a state, and look them up with state_query"
            )


def refuse_state(stream: StreamBase, call: str) -> None:
    """Refuse to write a state from DRPC requests: they have no txid, so nothing would make the writes exact."""
    if function := _function(stream):
        raise stream._wrong(
            f"{call} cannot take the requests of DRPC function {function!r}; they only read. Feed states from a stream that "
            "has a spout"
        )


def refuse_this_batch(stream: StreamBase, state: str) -> None:
    """Refuse to show a DRPC request the values of its batch."""
    if function := _function(stream):
        raise stream._wrong(
            f"a request of DRPC function {function!r} is in no batch that updates state {state!r}; leave sees out, and it sees "
            "the newest committed batch"
        )


def _function(stream: StreamBase) -> str | None:
    return next((source.function for source in _sources(stream) if isinstance(source, DrpcNode)), None)


def _sources(stream: StreamBase) -> list[Node]:
    graph = stream._topology.graph()
    above = {stream._node.id, *graph.above(stream._node.id)}
    return [node for node in graph.nodes if node.id in above and isinstance(node, (SpoutNode, DrpcNode))]


def _name(source: Node) -> str:
    return source.function if isinstance(source, DrpcNode) else source.id
