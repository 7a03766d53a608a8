"""`describe`: each state with its kind, its store, and what its spouts let it promise."""

from __future__ import annotations

from typing import Any

from trident.fields import Fields
from trident.graph import Graph, PersistNode, StateNode, WindowNode
from trident.operations.names import operation_name
from trident.planner import make_plan
from trident.planner.guarantees import EXACT, spout_type_of
from trident.spout.interfaces import SpoutType
from trident.state.interfaces import StateSpec, StateType

__all__ = ["describe", "store_of"]


def describe(graph: Graph) -> list[dict[str, Any]]:
    """Return one mapping for each state, in order of declaration; see `TridentTopology.describe`."""
    plan = make_plan(graph)
    writers = {node.state: node for node in graph.nodes if isinstance(node, PersistNode)}
    found = []
    for state in graph.states:
        kind, writer = state.spec.kind, writers.get(state.name)
        spouts = [] if writer is None else graph.sources_of(writer.id)
        found.append(
            {
                "state": state.name,
                "kind": None if kind is None else kind.value,
                "store": store_of(state.spec),
                "partitions": plan.partitions.get(state.name, _asked(graph, state)),
                "static": state.static,
                "key": _typed(state.key_fields),
                "value": _typed(state.value),
                "streams": {spout.id: _pairing(spout_type_of(spout.spout), kind) for spout in spouts},
                **_window(writer),
            }
        )
    return found


def store_of(spec: StateSpec) -> str:
    """Return the module of a store of ours, else the name of what makes the state."""
    factory = getattr(spec.factory, "backing_map_factory", spec.factory)
    module = str(getattr(factory, "__module__", type(factory).__module__))
    return module if module.startswith("states.") else f"{module}.{operation_name(factory)}"


def _window(writer: PersistNode | None) -> dict[str, Any]:
    """What a state holds that is a window's."""
    if not isinstance(writer, WindowNode):
        return {}
    return {"key": _typed(writer.group), "value": _typed(writer.member.outputs), "window": str(writer.config)}


def _asked(graph: Graph, state: StateNode) -> int:
    return state.spec.required_num_partitions or graph.hints.get(state.name, 1)


def _typed(fields: Fields) -> list[str]:
    return [f"{name}: {type_}" for name, type_ in zip(fields.names, fields.types, strict=True)]


def _pairing(promise: SpoutType, kind: StateType | None) -> dict[str, Any]:
    """One cell of the guarantee matrix."""
    if kind is None:
        cell, exact = f"({promise.value} spout, state of one's own)", None
        why = "what it does with a replayed batch is its own affair"
    else:
        cell, exact = f"({promise.value} spout, {kind.value} state)", (promise, kind) in EXACT
        why = _why(promise, kind)
    guarantee = {True: "exact", False: "not exact", None: "unknown"}[exact]
    return {"spout": promise.value, "cell": cell, "exact": exact, "guarantee": guarantee, "why": why}


def _why(promise: SpoutType, kind: StateType) -> str:
    if kind is StateType.NON_TRANSACTIONAL:
        return "a replay is applied a second time, for the state does not keep which batch wrote a value"
    if promise is SpoutType.NON_TRANSACTIONAL:
        return "a replay may hold tuples twice or not at all, and no state can know"
    if kind is StateType.TRANSACTIONAL:
        if promise is SpoutType.OPAQUE:
            return "a replay may hold other tuples than those that the state takes for applied"
        return "a replay holds the same tuples, so what is applied already is left as it is"
    return "a replay is applied to the value from before the batch"
