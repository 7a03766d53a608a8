"""Turns a graph into a plan: which steps run together, what is exchanged, in what order; and the plan of a DRPC function."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trident.errors import TopologyError
from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    EachNode,
    ExchangeNode,
    FilterNode,
    Graph,
    JoinNode,
    JoinWithinNode,
    MapNode,
    MergeNode,
    MultiReduceNode,
    Node,
    PeekNode,
    PersistNode,
    ProjectNode,
    QueryNode,
    RepartitionNode,
    Routing,
    SelectNode,
    SpoutNode,
    StateNode,
    WindowNode,
)
from trident.plan.plan import Exchange, Fragment, Plan, Sink, Step, kept_by, most_kept, partitions_of_state


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
    """All fragments and exchanges; made last to first, because a fragment sends only what the one behind it reads."""
    fragments: dict[str, Fragment] = {}
    exchanges: dict[str, Exchange] = {}
    kept: dict[str, int] = {}
    for node in reversed([node for node in graph.nodes if is_entry(graph, node)]):
        fragment = fragment_of(graph, node, exchanges)
        sinks = tuple(replace(sink, kept=kept.get(sink.target, 0)) for sink in fragment.sinks)
        fragment = replace(fragment, sinks=sinks)
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
    entries = [n for n in graph.nodes if isinstance(n, (PersistNode, QueryNode, ExchangeNode)) and is_entry(graph, n)]
    states = {node.id for node in entries if not isinstance(node, ExchangeNode)}
    before = {node.id: graph.above(node.id) for node in entries}
    waiting = {node.id: node for node in entries if node.id in states or before[node.id] & states}
    updates = {node.state: node.id for node in entries if isinstance(node, PersistNode)}
    for node in entries:
        if isinstance(node, QueryNode) and node.sees_batch:
            before[node.id].add(updates[node.state])
    order: list[PersistNode | QueryNode | ExchangeNode] = []
    while waiting:
        ready = [node for node in waiting.values() if before[node.id].isdisjoint(waiting)]
        node = min(ready, key=lambda one: 0 if isinstance(one, QueryNode) else 2 if isinstance(one, PersistNode) else 1)
        order.append(waiting.pop(node.id))
    return tuple(order)


# How many partitions an exchange has: hints of the steps from it to the next exchange, and of states that keep them.


def width_of(graph: Graph, entry: Node, fragment: Fragment) -> int | None:
    """Return the number of partitions of an entry: 1 for global ones, else the largest hint, or what a state keeps.

    Raises `TopologyError`: the hints behind an `identity_partition` ask for another number than there is before it.
    """
    behind: dict[str, set[str]] = {}  # for each identity partition of the fragment, the steps from it on
    for step in fragment.steps:
        if isinstance(step.node, RepartitionNode):
            behind[step.id] = {step.id}
        for ids in behind.values():
            if any(source in ids for source in step.sources):
                ids.add(step.id)
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


@dataclass(frozen=True)
class RequestPlan:
    """How requests are answered: the source of requests, then the steps, parents first. The last step gives the answer."""

    topology: str
    function: str
    nodes: tuple[Node, ...]
    states: dict[str, StateNode]


def make_request_plan(graph: Graph, function: str) -> RequestPlan:
    entries = {node.function: node for node in graph.functions()}
    if function not in entries:
        raise TopologyError(
            f"topology {graph.name!r} has no DRPC function {function!r}; it has {list(entries)}. Declare one with "
            "new_drpc_stream(function)"
        )
    # Each two-step aggregate is one step, because there is one partition only.
    known = {node.id: node for node in graph.behind(entries[function].id)}
    needless: set[str] = set()
    found = []
    for node in known.values():
        exchange = known.get(node.parents[0]) if isinstance(node, AggregateNode) else None
        part = known.get(exchange.parents[0]) if isinstance(exchange, RepartitionNode) else None
        if isinstance(node, AggregateNode) and exchange and isinstance(part, AggregateNode) and part.partial:
            needless |= {exchange.id, part.id}
            node = replace(node, parents=part.parents, members=part.members)
        found.append(node)
    nodes = tuple(node for node in found if node.id not in needless)
    queried = {node.state: graph.state(node.state) for node in nodes if isinstance(node, QueryNode)}
    return RequestPlan(graph.name, function, nodes, queried)


def is_entry(graph: Graph, node: Node) -> bool:
    """Whether a fragment begins at the node. A query of a static state is an ordinary step: it runs in the workers."""
    if isinstance(node, QueryNode):
        return not graph.state(node.state).static
    if isinstance(node, RepartitionNode):
        return node.routing.kind != "identity"
    return isinstance(node, (SpoutNode, PersistNode, ExchangeNode))


def fragment_of(graph: Graph, entry: Node, exchanges: Mapping[str, Exchange]) -> Fragment:
    inner = [_inside(node, reached) for node, reached in _walk_fragment(graph, entry) if not is_entry(graph, node)]
    sinks = tuple(
        _sink(node, port, source, exchanges)
        for source in [entry, *inner]
        for node in graph.children(source.id)
        if is_entry(graph, node)
        for port, parent in enumerate(node.parents)
        if parent == source.id
    )
    needed: dict[str, set[str]] = {}  # for each step and for the entry, the columns that a later step or a sink reads
    for sink in sinks:
        needed.setdefault(sink.source, set()).update(sink.fields.names)
    for node in reversed(inner):
        own = needed.setdefault(node.id, set())
        for port, parent in enumerate(node.parents):
            needed.setdefault(parent, set()).update(_reads(node, port, own))
    steps = tuple(
        Step(node.id, node.parents, node, tuple(n for n in node.fields.names if n in needed.get(node.id, ())))
        for node in inner
    )
    fields = entry.fields
    if isinstance(entry, RepartitionNode):
        # It sends only the columns that are read behind it, or that choose the partition; at least one, because a table
        # without columns loses its rows in transport.
        names = {*needed.get(entry.id, ()), *entry.routing.fields.names}
        fields = fields.select([name for name in fields.names if name in names] or list(fields.names[:1]))
    return Fragment(entry.id, fields, steps, sinks)


def inputs_of(node: ExchangeNode, fragment: Fragment) -> tuple[Fields, ...]:
    if isinstance(node, RepartitionNode):
        return (fragment.fields,)
    return tuple(
        Fields.of(*zip(*dict([*group.pairs, *fields.pairs]).items(), strict=True))
        for group, fields in zip(node.groups, node.inputs, strict=True)
    )


def _walk_fragment(graph: Graph, entry: Node) -> Iterator[tuple[Node, set[str]]]:
    """Iterate over the nodes of the entry's fragment, parents before children, each with the nodes reached before it."""
    reached = {entry.id}
    for node in graph.nodes:
        if any(parent in reached for parent in node.parents):
            yield node, reached
            if not is_entry(graph, node):
                reached.add(node.id)


def _inside(node: Node, reached: set[str]) -> Node:
    """Return the node with its parents in this fragment only; the other parents' fragments have the step as well."""
    if not isinstance(node, MergeNode):
        return node
    pairs = [pair for pair in zip(node.parents, node.inputs, strict=True) if pair[0] in reached]
    return replace(node, parents=tuple(p for p, _ in pairs), inputs=tuple(f for _, f in pairs))


def _sink(node: Node, port: int, source: Node, exchanges: Mapping[str, Exchange]) -> Sink:
    if isinstance(node, ExchangeNode):
        return Sink(node.id, source.id, exchanges[node.id].inputs[port], None, port, _routing(node, port))
    if not isinstance(node, PersistNode):
        return Sink(node.id, source.id, source.fields)
    if isinstance(node, JoinWithinNode):
        return Sink(node.id, source.id, node.sides[port].fields, port=port, join=node)
    if isinstance(node, WindowNode):
        event_time = node.config.event_time
        time = [] if event_time is None else [event_time.field]
        read = (*node.group.names, *node.inputs.names, *time, *node.late.names)
        return Sink(node.id, source.id, source.fields.select(list(dict.fromkeys(read))), window=node)
    aggregation = node.aggregation
    if aggregation is None:
        return Sink(node.id, source.id, node.inputs)
    if port:
        removed = source.fields.select(list(node.removals[port - 1].names))
        return Sink(node.id, source.id, removed, port=port, removes=aggregation.group)
    names = dict.fromkeys((*aggregation.group.names, *aggregation.inputs.names))
    return Sink(node.id, source.id, source.fields.select(list(names)), aggregation)


def _routing(node: ExchangeNode, port: int) -> Routing:
    if isinstance(node, RepartitionNode):
        return node.routing
    return Routing("hash", node.groups[port]) if len(node.groups[port]) else Routing("global")


def _reads(node: Node, port: int, needed: set[str]) -> set[str]:
    if isinstance(node, (EachNode, QueryNode)):
        return set(node.inputs.names) | (needed - set(node.outputs.names))
    if isinstance(node, (FilterNode, PeekNode)):
        return set(node.inputs.names) | needed
    if isinstance(node, MapNode):
        return set(node.inputs.names)
    if isinstance(node, SelectNode):
        return {name for expression in node.expressions_for(needed).values() for name in expression.fields()}
    if isinstance(node, AggregateNode):
        return {*node.group.names, *(name for member in node.members for name in member.inputs.names)}
    if isinstance(node, MergeNode):
        return {node.inputs[port].names[node.fields.position(name)] for name in needed}
    assert isinstance(node, (ProjectNode, RepartitionNode)), node
    return needed
