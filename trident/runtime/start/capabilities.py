"""At start: can the opened states do what the topology asks of them, and is every pairing exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trident.errors import ConfigError, DirtyReadError, InexactPairingError, TopologyError
from trident.graph import Graph, JoinWithinNode, PersistNode, WindowNode
from trident.planner import Plan
from trident.planner.guarantees import early_reads, is_exact, kind_text, spout_type_of
from trident.state.interfaces import State, StateType, kind_of

States = Mapping[str, Sequence[State]]
Kinds = Mapping[str, StateType | None]


def check_states(plan: Plan, graph: Graph, states: States, allow_inexact: bool) -> None:
    """Refuse a topology whose states cannot do what it asks, or are not exact together with its spouts and queries."""
    kinds = kinds_of(plan, states)
    _check_capabilities(plan, states, kinds)
    if not allow_inexact:
        _check_pairings(plan, graph, states, kinds)
        _check_reads(plan, graph, states, kinds)


def _check_capabilities(plan: Plan, states: States, kinds: Kinds) -> None:
    """Refuse a state that lacks what the topology does with it, before anything runs."""
    for node in _persists(plan):
        needed = ["begin_commit", "commit"]
        if isinstance(node, (WindowNode, JoinWithinNode)):
            _check_window(node, states[node.state][0], kinds[node.state])
            needed += ["multi_get", "multi_put"]
        if node.aggregation is not None:
            needed.append("multi_update" if node.aggregation.grouped else "update")
        if node.removals:
            needed.append("multi_remove")
        for name in (name for name in needed if not states[node.state][0].offers(name)):
            raise TopologyError(
                f"state {node.state!r} ({type(states[node.state][0]).__name__}) has no method {name!r}: "
                + _lack(node, name)
            )


def kinds_of(plan: Plan, states: States) -> dict[str, StateType | None]:
    """Return the kind that each opened state, or its factory, declares; None of one that declares none.

    Raises `ConfigError`: there is no such kind, or the two declare different ones.
    """
    kinds: dict[str, StateType | None] = {}
    for name, partitions in states.items():
        state, factory = partitions[0], plan.states[name].spec.factory
        try:
            kinds[name] = kind_of(state, factory)
        except ConfigError as error:
            raise ConfigError(
                f"state {name!r} ({type(state).__name__} of {type(factory).__name__}): {error}"
            ) from error
    return kinds


def _check_window(node: WindowNode | JoinWithinNode, state: State, kind: StateType | None) -> None:
    if kind is not StateType.OPAQUE:
        found = kind.value if kind is not None else "of a kind that it does not say"
        raise TopologyError(
            f"state {node.state!r} ({type(state).__name__}) is {found}, but {_held(node)} {node.id!r} needs an opaque map: "
            f"only that lets a replay take back what a failed attempt put into a {_held(node)}"
        )


def _held(node: PersistNode) -> str:
    return node.config.what if isinstance(node, WindowNode) else "join"


def _lack(node: PersistNode, name: str) -> str:
    if isinstance(node, (WindowNode, JoinWithinNode)):
        return f"a {_held(node)} needs an opaque map state"
    if name == "multi_update":
        return "a grouped persistent_aggregate needs a MapState"
    if name == "multi_remove":
        return "a stream removes keys from it (remove), which needs a map whose keys can be removed"
    if name == "update":
        return "an ungrouped persistent_aggregate needs a Snapshottable; wrap the map in SnapshottableMap"
    return "it is no State"


def _check_pairings(plan: Plan, graph: Graph, states: States, kinds: Kinds) -> None:
    """Refuse a spout and a state that are not exact together; see the guarantee matrix."""
    for node in _persists(plan):
        kind, keeps = kinds[node.state], states[node.state][0].keeps_attempts()
        if kind is None:
            continue  # a user's own state: what it does with a replay is up to the state
        for spout in graph.sources_of(node.id):
            promise = spout_type_of(spout.spout)
            if not is_exact(promise, kind, keeps):
                raise InexactPairingError(spout.id, promise.value, node.state, kind_text(kind, keeps))


def _check_reads(plan: Plan, graph: Graph, states: States, kinds: Kinds) -> None:
    """Refuse a query that may read what a failed attempt wrote, if its answers flow into a state that is to be exact."""
    for query, state, into in early_reads(graph, plan.commits):
        read = states[state][0]
        if read.offers("multi_get_at") and (read.offers("get_at") or not read.offers("get")):
            continue  # a view reads it as of a batch, by whatever method the query uses
        for fed in into:
            if kinds[fed] is not None:
                kind = kinds[state]
                raise DirtyReadError(query, state, "of a kind of its own" if kind is None else kind.value, fed)


def lasting_states(plan: Plan, states: States) -> set[str]:
    """Return the states from which nothing takes back what a failed attempt wrote: it stays, also for other tuples or code.

    An opaque state that says that it keeps the attempts is none: it knows what a lost one wrote. Any other is one, also a
    user's own.
    """
    kinds = kinds_of(plan, states)
    return {
        node.state
        for node in _persists(plan)
        if kinds[node.state] is not StateType.OPAQUE or not states[node.state][0].keeps_attempts()
    }


def is_all_in_memory(plan: Plan) -> bool:
    """Whether every state that a plan updates is in this process's memory."""
    return all(plan.states[node.state].spec.facts.in_memory for node in _persists(plan))


def _persists(plan: Plan) -> Iterator[PersistNode]:
    return (node for node in plan.commits if isinstance(node, PersistNode))
