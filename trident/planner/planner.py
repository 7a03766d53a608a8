"""Turns a graph into a plan: which steps run together, what is exchanged, in what order; and the plan of a DRPC function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trident.errors import TopologyError
from trident.graph import (
    AggregateNode,
    ExchangeNode,
    Graph,
    JoinNode,
    MultiReduceNode,
    Node,
    PeekNode,
    PersistNode,
    QueryNode,
    RepartitionNode,
    StateNode,
)
from trident.planner.fragments import fragment_of, inputs_of, is_entry
from trident.planner.plan import Exchange, Fragment, Plan, keeping, kept_by, most_kept, partitions_of_state


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
    ends = (PeekNode, PersistNode)
    if not any(
        isinstance(node, ends) or (isinstance(node, QueryNode) and is_entry(graph, node)) for node in graph.nodes
    ):
        raise TopologyError(f"topology {graph.name!r} keeps nothing: no stream ends in a state or a peek")
    fragments, exchanges = _fragments(graph)
    commits = _commit_order(graph)
    partitions = {node.state: partitions_of_state(graph, node) for node in commits if isinstance(node, PersistNode)}
    states = {state.name: state for state in graph.states}
    levels = _levels(fragments, [id_ for id_ in exchanges if id_ not in {node.id for node in commits}])
    hints, memory_mb = dict(graph.hints), dict(graph.memory_mb)
    return Plan(
        graph.name, spouts, fragments, commits, states, partitions, hints, exchanges, levels, memory_mb,
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
    before = _before(graph, waiting)
    order: list[PersistNode | QueryNode | ExchangeNode] = []
    done: set[str] = set()
    while waiting:
        ready = [node for node in waiting if before[node.id] <= done]
        node = min(ready, key=_rank)
        order.append(node)
        done.add(node.id)
        waiting.remove(node)
    return tuple(order)


def _before(graph: Graph, nodes: Sequence[PersistNode | QueryNode | ExchangeNode]) -> dict[str, set[str]]:
    """Return for each of these nodes the others that go before it."""
    updates = {node.state: node.id for node in nodes if isinstance(node, PersistNode)}
    before = {node.id: graph.above(node.id) & {node.id for node in nodes} for node in nodes}
    for node in nodes:
        if isinstance(node, QueryNode) and node.sees_batch:
            before[node.id].add(updates[node.state])
    return before


def _rank(node: Node) -> int:
    return 0 if isinstance(node, QueryNode) else 2 if isinstance(node, PersistNode) else 1


# How many partitions an exchange has: hints of the steps from it to the next exchange, and of states that keep them.


def width_of(graph: Graph, entry: Node, fragment: Fragment) -> int | None:
    """Return the number of partitions of an entry: 1 for global ones, else the largest hint; None if there is no hint.

    If a state keeps the stream's partitions, their number counts as a hint.

    Raises `TopologyError`: the hints behind an `identity_partition` ask for another number than there is before it.
    """
    behind = _behind_identity(fragment)
    before = set(fragment.ids).difference(*behind.values())
    width = 1 if _is_single(entry) else max(_largest(graph, before) or 0, most_kept(fragment.sinks)) or None
    for id_, ids in behind.items():
        hint = _largest(graph, ids)
        if hint is not None and hint != width:
            raise TopologyError(
                f"step {id_!r}: identity_partition keeps every tuple in its partition, so the number of partitions "
                f"must stay the same; there are {'as many as the engine has cores' if width is None else width} before, and "
                f"parallelism_hint asks for {hint} after. Give both the same hint, or use shuffle"
            )
    return width


def _is_single(entry: Node) -> bool:
    if isinstance(entry, RepartitionNode):
        return entry.routing.kind == "global"
    return isinstance(entry, (MultiReduceNode, JoinNode)) and not len(entry.groups[0])


def _largest(graph: Graph, ids: set[str]) -> int | None:
    return max((hint for node, hint in graph.hints.items() if node in ids), default=None)


def _behind_identity(fragment: Fragment) -> dict[str, set[str]]:
    """For each identity partition of a fragment, the steps from it on."""
    found: dict[str, set[str]] = {}
    for step in fragment.steps:
        if isinstance(step.node, RepartitionNode):
            found[step.id] = {step.id}
        for ids in found.values():
            if any(source in ids for source in step.sources):
                ids.add(step.id)
    return found


@dataclass(frozen=True)
class RequestPlan:
    """How requests are answered.

    Attributes
    ----------
    topology, function
        Their names.
    nodes
        The source of requests, then the steps, parents before children. The last step gives the answer.
    states
        The states that are queried, by name.
    """

    topology: str
    function: str
    nodes: tuple[Node, ...]
    states: dict[str, StateNode]


def make_request_plan(graph: Graph, function: str) -> RequestPlan:
    """Return the plan of a function; `TopologyError` naming those that there are."""
    entry = next((node for node in graph.functions() if node.function == function), None)
    if entry is None:
        raise TopologyError(
            f"topology {graph.name!r} has no DRPC function {function!r}; it has "
            f"{[node.function for node in graph.functions()]}. Declare one with new_drpc_stream(function)"
        )
    nodes = _in_one_place(graph.behind(entry.id))
    queried = {node.state: graph.state(node.state) for node in nodes if isinstance(node, QueryNode)}
    return RequestPlan(graph.name, function, nodes, queried)


def _in_one_place(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with each two-step aggregate as one step, because there is one partition only."""
    known = {node.id: node for node in nodes}
    needless: set[str] = set()
    found = []
    for node in nodes:
        exchange = known.get(node.parents[0]) if isinstance(node, AggregateNode) else None
        part = known.get(exchange.parents[0]) if isinstance(exchange, RepartitionNode) else None
        if isinstance(node, AggregateNode) and exchange and isinstance(part, AggregateNode) and part.partial:
            needless |= {exchange.id, part.id}
            node = replace(node, parents=part.parents, members=part.members)
        found.append(node)
    return tuple(node for node in found if node.id not in needless)
