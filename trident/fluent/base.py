"""What every family of fluent calls needs: what was declared so far, a stream of it, and what a DRPC stream may not do."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Self

from trident.errors import ConfigError, TopologyError
from trident.fields import Fields, FieldsLike, is_nested
from trident.graph import DrpcNode, Graph, Node, SpoutNode, StateNode
from trident.naming import TridentNames
from trident.operations.several import fields_read, refuse_other_fields
from trident.roles import has
from trident.state.encoding.serializers import type_not_written
from trident.state.interfaces import StateFactory, StateSpec, is_factory

PLACES = ("auto", "driver", "executors")
"""Where a state may be committed."""

_MOST = 1_000_000  # partitions
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Declaration(TridentNames):
    """The nodes and states of a topology by name. The fluent calls check what they add; here only names are checked."""

    def __init__(self, name: str, rename: Mapping[str, str] | None = None) -> None:
        if not is_name(name):
            raise TopologyError(f"{name!r} cannot name a topology; use letters, digits, '_', '.' and '-'")
        if not isinstance(rename, Mapping | None):
            raise TopologyError(f"rename={rename!r}: give the former name of each state or stream by its new one")
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._states: dict[str, StateNode] = {}
        self._hints: dict[str, int] = {}
        self._memory_mb: dict[str, float] = {}
        self._placements: dict[str, str] = {}
        self._assemblies = 0
        self._rename = dict(rename or {})

    def graph(self) -> Graph:
        nodes, states = tuple(self._nodes.values()), tuple(self._states.values())
        hints, memory_mb, placements = dict(self._hints), dict(self._memory_mb), dict(self._placements)
        return Graph(self.name, nodes, states, hints, memory_mb, placements, self._rename)

    def _add(self, node: Node) -> Node:
        if node.id in self._nodes:
            raise TopologyError(
                f"topology {self.name!r} already has a stream {node.id!r}; every stream needs its own name"
            )
        self._nodes[node.id] = node
        return node

    def _put_behind(self, node: Node) -> None:
        """Take a node in place of the one of its id, with all that it reaches moved to the end: its parents stand before it."""
        reached = [each.id for each in self.graph().behind(node.id)]
        self._nodes[node.id] = node
        for id_ in reached:
            self._nodes[id_] = self._nodes.pop(id_)

    def _child_id(self, parent: str, label: str) -> str:
        wanted, number = f"{parent}/{label}", 1
        while (node_id := wanted if number == 1 else f"{wanted}.{number}") in self._nodes:
            number += 1
        return node_id

    def _add_state(self, node: StateNode) -> StateNode:
        name, spec = node.name, node.spec
        if not is_name(name):
            raise TopologyError(f"{name!r} cannot name a state; use letters, digits, '_', '.' and '-': state_name=...")
        if name in self._states:
            raise TopologyError(
                f"topology {self.name!r} already has a state {name!r}; give this one a name of its own: state_name=..."
            )
        for other in self._states.values():
            outer, inner = sorted((spec.place, other.spec.place), key=len)
            if outer and f"{inner}/".startswith(f"{outer}/"):
                where = f"both kept in {inner}" if inner == outer else f"kept in {outer} and inside of it, in {inner}"
                raise TopologyError(
                    f"topology {self.name!r}: states {other.name!r} and {name!r} are {where}; give each a place of its own, "
                    "beside the other"
                )
        for declared in node.value.types:
            if (lacking := type_not_written(spec.facts.serializer, declared)) is not None:
                raise ConfigError(
                    f"serializer='json' of state {name!r}, whose values are {declared}: JSON has no {lacking}. Leave "
                    "serializer out, or declare values that JSON has"
                )
        if spec.facts.layout is not None:
            spec.facts.layout(node.conf(self.name))  # refuses a layout that the state cannot have
        self._states[name] = node
        return node

    def _hint(self, node_id: str, parallelism: int) -> None:
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or not 1 <= parallelism <= _MOST:
            raise TopologyError(f"parallelism_hint({parallelism!r}): expected a whole number from 1 to {_MOST:,}")
        self._hints[node_id] = max(parallelism, self._hints.get(node_id, 0))

    @contextmanager
    def _inside_assembly(self) -> Iterator[bool]:
        self._assemblies += 1
        try:
            yield self._assemblies > 1
        finally:
            self._assemblies -= 1

    def _place(self, state: str, where: str) -> None:
        if where not in PLACES:
            raise TopologyError(
                f"placement({where!r}) of state {state!r}: expected one of {', '.join(map(repr, PLACES))}"
            )
        self._placements[state] = where


def is_name(name: object) -> bool:
    """Whether something can name a topology, a stream, a state or a function; names of folders are made of it."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def spec_of(state: StateFactory | StateSpec) -> StateSpec:
    if isinstance(state, StateSpec):
        return state
    if is_factory(state):
        return StateSpec(state)
    raise TopologyError(f"{state!r} is not a state: {_instead(state)}")


def _instead(state: object) -> str:
    if isinstance(state, (str, PathLike)):
        return f"it only names a place. DeltaState({str(state)!r}) is a state in that folder"
    if isinstance(state, type):
        return f"it is a class; give an instance of it: {state.__name__}(...)"
    return "give one of a store, such as DeltaState(path), or an object with make_state(...)"


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
        return TopologyError(f"stream {self.get_name()!r}: {what}")

    def _select(self, fields: FieldsLike) -> Fields:
        return self.fields.select(Fields(fields).names, self.get_name())

    def _child_id(self, label: str) -> str:
        return self._topology._child_id(self._node.id, self._label or label)

    def _state_name(self, given: str | None, otherwise: str) -> str:
        return (self._label or otherwise) if given is None else given

    def _then(self, label: str, kind: type[Node], fields: Fields, **rest: Any) -> Self:
        return type(self)(self._topology, child_of([self], label, kind, fields, **rest))

    def _operation_args(self, args: Sequence[Any]) -> tuple[Fields, Any, Fields | None]:
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
    first = streams[0]
    return first._topology._add(kind(first._child_id(label), tuple(one._node.id for one in streams), fields, **rest))


def key_of(stream: StreamBase, fields: FieldsLike, call: str) -> Fields:
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
    """Refuse to bring DRPC requests together with anything but themselves, as Storm does."""
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
