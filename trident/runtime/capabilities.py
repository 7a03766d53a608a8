"""At start: can the opened states do what the topology asks of them, and is every pairing exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.errors import InexactPairingError, TopologyError
from trident.graph import Graph, PersistNode, WindowNode
from trident.planner import Plan
from trident.planner.guarantees import EXACT, spout_type_of
from trident.state.interfaces import StateType

__all__ = ["check_capabilities", "check_pairings", "counts_on_replays"]


def check_capabilities(plan: Plan, states: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a state that lacks what the topology does with it, before anything runs."""
    for node in plan.commits:
        if not isinstance(node, PersistNode):
            continue
        needed = ["begin_commit", "commit"]
        if isinstance(node, WindowNode):
            _check_window(node, states[node.state][0])
            needed += ["multi_get", "multi_put"]
        if node.aggregation is not None:
            needed.append("multi_update" if node.aggregation.grouped else "update")
        for name in needed:
            if not hasattr(states[node.state][0], name):
                raise TopologyError(
                    f"state {node.state!r} ({type(states[node.state][0]).__name__}) has no method {name!r}: "
                    + _lack(node, name)
                )


def _check_window(node: WindowNode, state: Any) -> None:
    kind = getattr(state, "kind", None)
    if kind is not StateType.OPAQUE:
        found = kind.value if isinstance(kind, StateType) else "of a kind that it does not say"
        raise TopologyError(
            f"state {node.state!r} ({type(state).__name__}) is {found}, but window {node.id!r} needs an opaque map: only that "
            "lets a replay take back what a failed attempt put into a window"
        )


def _lack(node: PersistNode, name: str) -> str:
    if isinstance(node, WindowNode):
        return "a window needs an opaque map state"
    if name == "multi_update":
        return "a grouped persistent_aggregate needs a MapState"
    if name == "update":
        return "an ungrouped persistent_aggregate needs a Snapshottable; wrap the map in SnapshottableMap"
    return "it is no State"


def check_pairings(plan: Plan, graph: Graph, states: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a spout and a state that are not exact together; see the guarantee matrix."""
    for node in plan.commits:
        if not isinstance(node, PersistNode):
            continue
        kind = getattr(states[node.state][0], "kind", None)
        if not isinstance(kind, StateType):
            continue  # a user's own state: what it does with a replay is its own affair
        for spout in graph.sources_of(node.id):
            promise = spout_type_of(spout.spout)
            if (promise, kind) not in EXACT:
                raise InexactPairingError(spout.id, promise.value, node.state, kind.value)


def counts_on_replays(plan: Plan, states: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a state is wrong if a batch that it was given in part comes back with other tuples.

    An opaque one is not. Of any other, also a user's own, the definition must be durable before the state is written.
    """
    persists = (node for node in plan.commits if isinstance(node, PersistNode))
    return any(getattr(states[node.state][0], "kind", None) is not StateType.OPAQUE for node in persists)
