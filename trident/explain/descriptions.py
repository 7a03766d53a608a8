"""`describe`: each state with its kind, its store, and its guarantee for each spout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trident.fields import Fields
from trident.graph import Graph, JoinWithinNode, PersistNode, SpoutNode, WindowNode
from trident.operations.names import operation_name
from trident.planner import Plan, make_plan
from trident.planner.guarantees import early_reads, is_exact, lack_text, spout_type_of
from trident.spout.interfaces import SpoutType
from trident.state.interfaces import StateSpec, StateType
from trident.state.map_state import MapStateFactory


def describe(graph: Graph) -> list[dict[str, Any]]:
    """Return one mapping for each state, in order of declaration; see `TridentTopology.describe`."""
    plan = make_plan(graph)
    writers = {node.state: node for node in graph.nodes if isinstance(node, PersistNode)}
    lines = []
    for state in graph.states:
        kind, writer = state.spec.kind, writers.get(state.name)
        asked, layout = state.spec.required_num_partitions or graph.hints.get(state.name, 1), state.spec.facts.layout
        sources = () if writer is None else graph.sources_of(writer.id)
        lines.append(
            {
                "state": state.name,
                "kind": None if kind is None else kind.value,
                "store": store_of(state.spec),
                "partitions": plan.partitions.get(state.name, asked),
                "static": state.static,
                "key": _typed(state.key_fields),
                "value": _typed(state.value),
                "streams": {spout.id: _pairing(graph, plan, spout, writer) for spout in sources if writer is not None},
                **_window(writer),
                **({} if layout is None else {"layout": layout(state.conf(graph.name))}),
            }
        )
    return lines


def store_of(spec: StateSpec) -> str:
    """Return what a state's store is called: the class that the user wrote, else the name of the state's factory."""
    factory = spec.factory.backing_map_factory if isinstance(spec.factory, MapStateFactory) else spec.factory
    return spec.store or operation_name(factory)


def _window(writer: PersistNode | None) -> dict[str, Any]:
    """Describe the window, or the join over time, that a state holds."""
    if isinstance(writer, JoinWithinNode):
        return {"key": _typed(writer.sides[0].key), "value": _typed(writer.fields), "window": f"join {writer}"}
    if not isinstance(writer, WindowNode):
        return {}
    return {"key": _typed(writer.group), "value": _typed(writer.value), "window": str(writer.config)}


def _typed(fields: Fields) -> list[str]:
    return [f"{name}: {type_}" for name, type_ in zip(fields.names, fields.types, strict=True)]


def _pairing(graph: Graph, plan: Plan, spout: SpoutNode, writer: PersistNode) -> dict[str, Any]:
    """Describe one cell of the guarantee matrix, and what else reaches the state on the way from the spout."""
    promise, spec = spout_type_of(spout.spout), graph.state(writer.state).spec
    if spec.kind is None:
        cell, exact = f"({promise.value} spout, state of your own)", None
        why = "what it does with a replayed batch is up to the state"
    else:
        cell = f"({promise.value} spout, {spec.kind.value} state{lack_text(spec.kind, spec.facts.keeps_attempts)})"
        exact = is_exact(promise, spec.kind, spec.facts.keeps_attempts)
        why = _why(promise, spec.kind, exact)
        if exact:
            exact, why = next(_spoiled(graph, plan, spout, writer), (exact, why))
    guarantee = {True: "exact", False: "not exact", None: "unknown"}[exact]
    return {"spout": promise.value, "cell": cell, "exact": exact, "guarantee": guarantee, "why": why}


def _spoiled(graph: Graph, plan: Plan, spout: SpoutNode, writer: PersistNode) -> Iterator[tuple[bool | None, str]]:
    """Return what else flows into the state, in addition to the spout's tuples, as `(is it exact, why)`, the worst first."""
    above = graph.above(writer.id)
    found: list[tuple[bool | None, str]] = []
    for read in early_reads(graph, plan.commits):
        if read.query in above and spout.id in graph.above(read.query):
            kind = graph.state(read.state).spec.kind
            why = f"query {read.query!r} may read from state {read.state!r} what a failed attempt wrote, and feeds it"
            if kind is not StateType.OPAQUE:
                found.append((None if kind is None else False, why))
    for node in plan.commits:
        if isinstance(node, PersistNode) and node.id in above and spout.id in graph.above(node.id):
            exact = _pairing(graph, plan, spout, node)["exact"]
            if not exact:
                found.append((exact, f"the new values of state {node.state!r}, which feed it, may differ in a replay"))
    yield from sorted(found, key=lambda one: one[0] is None)


def _why(promise: SpoutType, kind: StateType, exact: bool) -> str:
    if kind is StateType.NON_TRANSACTIONAL:
        return "a replay is applied a second time, because the state does not keep which batch wrote a value"
    if promise is SpoutType.NON_TRANSACTIONAL:
        return "a replay may hold tuples twice or not at all, and no state can know"
    if kind is StateType.TRANSACTIONAL:
        if promise is SpoutType.OPAQUE:
            return "a replay may hold other tuples than those that the state has applied"
        return "a replay holds the same tuples, so what is applied already is left as it is"
    if not exact:
        return "what a failed attempt wrote stays where the replay does not write, because no value says which attempt wrote it"
    return "a replay is applied to the value from before the batch"
