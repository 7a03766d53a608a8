"""Turns a graph into a plan: which steps run together, what is exchanged, in which order a batch runs and commits."""

from __future__ import annotations

from trident.errors import TopologyError
from trident.graph import ExchangeNode, Graph, Node, PeekNode, PersistNode, QueryNode
from trident.planner.fragments import fragment_of, inputs_of, is_entry
from trident.planner.kept_partitions import keeping, kept_by, partitions_of_state
from trident.planner.plan import Exchange, Fragment, Plan
from trident.planner.widths import width_of

__all__ = ["make_plan"]


def make_plan(graph: Graph) -> Plan:
    """Return the plan of a graph's batches; `TopologyError` if there are none. DRPC requests have plans of their own."""
    functions = [node.function for node in graph.functions()]
    graph = graph.of_batches()
    spouts = tuple(graph.spouts())
    if not spouts and functions:
        raise TopologyError(
            f"topology {graph.name!r} has DRPC functions only ({', '.join(functions)}), so there are no batches to run; ask "
            "them with LocalDRPC(topology) of trident.drpc, or serve them with the command trident drpc"
        )
    if not spouts:
        raise TopologyError(f"topology {graph.name!r} has no stream; begin with new_stream(name, spout)")
    if not any(isinstance(node, (PeekNode, PersistNode)) or _is_query(graph, node) for node in graph.nodes):
        raise TopologyError(f"topology {graph.name!r} keeps nothing: no stream ends in a state or a peek")
    fragments, exchanges = _fragments(graph)
    commits = _commit_order(graph)
    partitions = {node.state: partitions_of_state(graph, node) for node in commits if isinstance(node, PersistNode)}
    states = {state.name: state for state in graph.states}
    levels = _levels(fragments, [id_ for id_ in exchanges if id_ not in {node.id for node in commits}])
    hints, resources = dict(graph.hints), dict(graph.resources)
    return Plan(
        graph.name, spouts, fragments, commits, states, partitions, hints, exchanges, levels, resources,
        dict(graph.placements),
    )  # fmt: skip


def _fragments(graph: Graph) -> tuple[dict[str, Fragment], dict[str, Exchange]]:
    """All fragments and exchanges, in order of declaration.

    They are made last to first, because a fragment sends to an exchange only what the fragment behind it reads.
    """
    fragments: dict[str, Fragment] = {}
    exchanges: dict[str, Exchange] = {}
    kept: dict[str, int] = {}
    for node in reversed([node for node in graph.nodes if is_entry(graph, node)]):
        fragment = keeping(fragment_of(graph, node, exchanges), kept)
        kept[node.id] = kept_by(graph, node, fragment)
        width = width_of(graph, node, fragment)
        if isinstance(node, ExchangeNode):
            exchanges[node.id] = Exchange(node, inputs_of(node, fragment), width)
        fragments[node.id] = fragment
    return dict(reversed(fragments.items())), dict(reversed(exchanges.items()))


def _levels(fragments: dict[str, Fragment], exchanges: list[str]) -> tuple[tuple[str, ...], ...]:
    """Return the exchanges before any commit, each one level above the highest that feeds it."""
    level: dict[str, int] = {}
    for entry, fragment in fragments.items():  # those that feed an entry come before it
        for sink in fragment.sinks:
            level[sink.target] = max(level.get(sink.target, 0), level.get(entry, 0) + 1)
    numbers = sorted({level[entry] for entry in exchanges})
    return tuple(tuple(entry for entry in exchanges if level[entry] == number) for number in numbers)


def _commit_order(graph: Graph) -> tuple[PersistNode | QueryNode | ExchangeNode, ...]:
    """Parents before children; among those that may run, queries before persists, then as declared.

    A state without `prev` shows its latest write, so queries go first and see it as after the batch before. Exchanges go
    before persists too, because of the queries behind them. A query that sees its own batch goes after the state's update.
    That cannot be a circle: the state that a query names was declared before it, with all that feeds it.
    """
    waiting = [n for n in graph.nodes if isinstance(n, (PersistNode, QueryNode, ExchangeNode)) and is_entry(graph, n)]
    states = {node.id for node in waiting if not isinstance(node, ExchangeNode)}
    waiting = [node for node in waiting if node.id in states or graph.above(node.id) & states]
    updates = {node.state: node.id for node in waiting if isinstance(node, PersistNode)}
    above = {node.id: graph.above(node.id) & {node.id for node in waiting} for node in waiting}
    for node in waiting:
        if isinstance(node, QueryNode) and node.sees_batch:
            above[node.id].add(updates[node.state])
    order: list[PersistNode | QueryNode | ExchangeNode] = []
    done: set[str] = set()
    while waiting:
        ready = [node for node in waiting if above[node.id] <= done]
        node = min(ready, key=_rank)
        order.append(node)
        done.add(node.id)
        waiting.remove(node)
    return tuple(order)


def _rank(node: Node) -> int:
    return 0 if isinstance(node, QueryNode) else 2 if isinstance(node, PersistNode) else 1


def _is_query(graph: Graph, node: Node) -> bool:
    return isinstance(node, QueryNode) and is_entry(graph, node)
