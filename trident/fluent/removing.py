"""`TridentState.remove`: the tuples of a stream name keys that a state is to remove."""

from __future__ import annotations

from dataclasses import replace

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.base import StreamBase, check_streams, key_of, refuse_state
from trident.fluent.declaration import Declaration
from trident.graph import REMOVED, Graph, JoinWithinNode, PersistNode, QueryNode, StateNode, WindowNode


def remove(topology: Declaration, state: StateNode, given: object, fields: FieldsLike | None) -> None:
    """Let a stream name keys that a state is to remove; see `TridentState.remove`."""
    writer = _writer(topology.graph(), state)
    (stream,) = check_streams(topology, "remove", [given])
    refuse_state(stream, "remove")
    key = _key(stream, state, fields)
    if stream._node.id in _behind(topology.graph(), writer):
        raise TopologyError(
            f"remove keys of state {state.name!r}: stream {stream.get_name()!r} exists only after the state's own "
            "update, of which the removals are part. Use a stream from before the state, or query the state with "
            "state_query, which sees it as it was after the previous batch"
        )
    parents, removals = (*writer.parents, stream._node.id), (*writer.removals, key)
    topology._put_behind(replace(writer, parents=parents, removals=removals))


def _writer(graph: Graph, state: StateNode) -> PersistNode:
    """Return the node that writes a state; `TopologyError` if it is none whose keys can be removed."""
    writer = next((node for node in graph.nodes if isinstance(node, PersistNode) and node.state == state.name), None)
    if writer is None:
        why = "it is static: nothing updates it"
    elif isinstance(writer, (WindowNode, JoinWithinNode)):
        why = "it keeps the tuples of a window or of a join, which leave it by themselves"
    elif writer.aggregation is None:
        why = "its updater chooses the keys. Merge the streams, and let the updater call state.multi_remove(keys)"
    elif not len(writer.aggregation.group):
        why = "it is a single value and has no keys"
    elif REMOVED in writer.aggregation.group.names:
        why = f"no field of its key may be called {REMOVED!r}, as the keys to remove are marked. Rename it"
    else:
        return writer
    raise TopologyError(f"remove keys of state {state.name!r}: {why}")


def _key(stream: StreamBase, state: StateNode, fields: FieldsLike | None) -> Fields:
    key = key_of(stream, state.key_fields.names if fields is None else fields, "remove")
    if key.types != state.key_fields.types:
        raise TopologyError(
            f"remove keys of state {state.name!r}: the fields ({key}) of stream {stream.get_name()!r} must be as many as the "
            f"key has ({state.key_fields}), of the same types in the same order. Use each or map to change types"
        )
    return key


def _behind(graph: Graph, writer: PersistNode) -> set[str]:
    """Return the nodes that run after a state's update: they take what it gives, or ask a state for its own batch."""
    reached = {writer.id}
    while True:
        states = {node.state for node in graph.nodes if isinstance(node, PersistNode) and node.id in reached}
        more = {
            node.id
            for node in graph.nodes
            if not reached.isdisjoint(node.parents)
            or (isinstance(node, QueryNode) and node.sees_batch and node.state in states)
        }
        if more <= reached:
            return reached
        reached |= more
