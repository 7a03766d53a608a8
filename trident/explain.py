"""Describes the plan that would run: `explain`, a line for each step of its stages; `describe`, its states as plain data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from trident import graph as nodes
from trident.config import Config
from trident.fields import Fields
from trident.graph import Aggregation, Graph, Node, PersistNode, RepartitionNode, Routing, SpoutNode, WindowNode
from trident.naming import counted
from trident.operations.expressions import Expression, col
from trident.operations.names import operation_name
from trident.plan import Fragment, Plan, Sink, make_plan
from trident.plan.plan import (
    Stage,
    early_reads,
    is_exact,
    lack_text,
    misplaced_states,
    spout_type_of,
    stage_memory,
    stages_of,
)
from trident.redaction import shown_configuration
from trident.spout.interfaces import SpoutType
from trident.state.interfaces import StateType
from trident.state.map_state import MapStateFactory

_ROUTINGS = {"shuffle": "in turn", "broadcast": "to all", "global": "into one", "identity": "stays"}


class Explanation(str):
    """What a topology does, as text; in a notebook it is shown line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        lines = (f"<b>{escape(line)}</b>" if line[:1].strip() else escape(line) for line in self.splitlines())
        return f'<pre style="overflow-x:auto">{chr(10).join(lines)}</pre>'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the lines where a terminal would show a string in quotes."""
        printer.text(str(self))


def explain(graph: Graph, placements: Mapping[str, str] | None = None, config: Config | None = None) -> Explanation:
    """Return what a topology does, where its states are committed, and the settings that are given, each with its origin."""
    plan = make_plan(graph)
    placed = {**dict.fromkeys(plan.partitions, "auto"), **plan.placements, **(placements or {})}
    wanted = [name for name, where in placed.items() if where == "executors" and name in plan.partitions]
    misplaced = misplaced_states(plan, wanted)
    in_executors = [name for name in wanted if name not in misplaced]
    lines = [f"topology {graph.name}"]
    memory = dict(enumerate(stage_memory(plan, in_executors), 1))
    for number, stage in enumerate(stages_of(plan, in_executors), 1):
        mb = memory.get(number)
        takes = [f"  a task takes {mb:g} MiB; a local master sets none aside"] if mb else []
        lines += ["", stage.title, *takes, *_stage(graph, plan, stage)]
    if plan.states:
        lines += ["", "states"]
        for state in describe(graph):
            lines += [*_state(state), *_placement(plan, state["state"], placed, in_executors)]
    if config is not None and config.given:
        lines += ["", "settings"]
        lines += [
            f"  {name}: {value} ({config.origins[name]})" for name, value in shown_configuration(config.given).items()
        ]
    return Explanation("\n".join(lines) + "\n")


def _placement(plan: Plan, name: str, placements: Mapping[str, str], in_executors: Sequence[str]) -> Iterator[str]:
    facts, free = plan.states[name].spec.facts, plan.states[name].free_keys and plan.partitions[name] > 1
    if name in in_executors:
        told = "; the driver publishes what their tasks wrote" if facts.stages_commits else ""
        yield f"      committed by the executors{told}"
    elif placements.get(name) == "auto" and not (facts.in_memory or facts.on_one_machine or free):
        yield "      committed by the driver; on a cluster by the executors, if the store can fence its writers"
    elif name in placements:
        yield "      committed by the driver"


def _stage(graph: Graph, plan: Plan, stage: Stage) -> Iterator[str]:
    for number, entry in enumerate(stage.entries, 1):
        node, fragment = graph.node(entry), plan.fragments[entry]
        yield f"  {f'{number}. ' if stage.driver else ''}{entry}: {_entry(plan, node)}"
        if fragment.steps or fragment.sinks:
            yield f"      gives {', '.join(fragment.fields) or 'nothing'}"
        yield from _fragment(graph, fragment)


def _entry(plan: Plan, node: Node) -> str:
    if isinstance(node, SpoutNode):
        hint = plan.hints.get(node.id)
        return f"{what(node)} ({spout_type_of(node.spout).value}){f', about {hint} tasks' if hint else ''}"
    if node.id in plan.exchanges:
        width = plan.exchanges[node.id].partitions
        partitions = (
            "as many partitions as the engine works on at once" if width is None else counted(width, "partition")
        )
        runs = "" if isinstance(node, RepartitionNode) else f" [{_runs(node)}]"
        return f"{what(node)}; {partitions}{runs}"
    if isinstance(node, PersistNode):
        return f"{what(node)}; {counted(plan.partitions[node.state], 'partition')}"
    return f"{what(node)} [{_runs(node)}]"


def _fragment(graph: Graph, fragment: Fragment) -> Iterator[str]:
    for step in fragment.steps:
        keeps = ", ".join(step.keep) or "nothing"
        yield f"      {_short(step.id, fragment)}: {what(graph.node(step.id))} [{_runs(step.node)}] keeps {keeps}"
    for sink in fragment.sinks:
        yield f"      => {_short(sink.target, fragment)}: {_sink(sink)}"


def _sink(sink: Sink) -> str:
    sent = f"sends {', '.join(sink.fields) or 'only how many tuples there are'}"
    if sink.routing is not None:
        return f"{sent}, {routing_text(sink.routing)}"
    if sink.aggregation is not None or sink.window is not None:
        from trident.steps.applying import sink_runs

        return f"{sent}; {sink_runs(sink.aggregation, sink.window)}"
    if sink.join is not None:
        return f"{sent}, as the {('left', 'right')[sink.port]} side"
    if sink.removes is not None:
        return f"{sent}; the state removes them"
    return sent


def _short(id_: str, fragment: Fragment) -> str:
    """Return an id without the beginning that it shares with the entry of its fragment."""
    return f"…{id_.removeprefix(fragment.entry)}" if id_.startswith(f"{fragment.entry}/") else id_


def _runs(node: Node) -> str:
    from trident.steps.applying import step_runs

    return step_runs(node)


def _state(state: dict[str, Any]) -> Iterator[str]:
    of = (state["kind"] or "a kind of its own", state["store"], counted(state["partitions"], "partition"))
    yield f"  {state['state']}: {', '.join(of)}{', static' if state['static'] else ''}"
    if state["key"] or state["value"]:
        yield f"      key {', '.join(state['key']) or 'none'}; value {', '.join(state['value']) or 'as the updater writes it'}"
    if "window" in state:
        yield f"      {state['window']}"
    if "layout" in state:
        yield f"      stored as {state['layout']}"
    for stream, pairing in state["streams"].items():
        yield f"      {stream}: {pairing['guarantee']} {pairing['cell']}; {pairing['why']}"


def describe(graph: Graph) -> list[dict[str, Any]]:
    """Return one mapping for each state, in order of declaration; see `TridentTopology.describe`."""
    plan = make_plan(graph)
    writers = {node.state: node for node in graph.nodes if isinstance(node, PersistNode)}
    lines = []
    for state in graph.states:
        spec, kind, writer = state.spec, state.spec.kind, writers.get(state.name)
        asked, layout = spec.required_num_partitions or graph.hints.get(state.name, 1), spec.facts.layout
        sources = () if writer is None else graph.sources_of(writer.id)
        # the class that the user wrote, else the name of the state's factory
        factory = spec.factory.backing_map_factory if isinstance(spec.factory, MapStateFactory) else spec.factory
        lines.append(
            {
                "state": state.name,
                "kind": None if kind is None else kind.value,
                "store": spec.store or operation_name(factory),
                "partitions": plan.partitions.get(state.name, asked),
                "static": state.static,
                "key": state.key_fields.typed,
                "value": state.value.typed,
                "streams": {spout.id: _pairing(graph, plan, spout, writer) for spout in sources if writer is not None},
                **_window(writer),
                **({} if layout is None else {"layout": layout(state.conf(graph.name))}),
            }
        )
    return lines


def _window(writer: PersistNode | None) -> dict[str, Any]:
    if isinstance(writer, nodes.JoinWithinNode):
        return {"key": writer.sides[0].key.typed, "value": writer.fields.typed, "window": f"join {writer}"}
    if not isinstance(writer, WindowNode):
        return {}
    return {"key": writer.group.typed, "value": writer.value.typed, "window": str(writer.config)}


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
            exact, why = next(_spoilers(graph, plan, spout, writer), (exact, why))
    guarantee = {True: "exact", False: "not exact", None: "unknown"}[exact]
    return {"spout": promise.value, "cell": cell, "exact": exact, "guarantee": guarantee, "why": why}


def _spoilers(graph: Graph, plan: Plan, spout: SpoutNode, writer: PersistNode) -> Iterator[tuple[bool | None, str]]:
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


def routing_text(routing: Routing) -> str:
    if routing.kind == "hash":
        return f"by {', '.join(routing.fields)}"
    if routing.kind == "custom":
        return f"as {operation_name(routing.function)} says"
    return _ROUTINGS[routing.kind]


def what(node: Node) -> str:
    return next(text(node) for kind, text in _WHAT if isinstance(node, kind))


def _join(node: nodes.JoinNode) -> str:
    keys = " = ".join(f"({', '.join(group)})" for group in node.groups)
    sides = ", ".join("outer" if outer else "inner" for outer in node.outer)
    return f"join {keys} ({sides}) -> {', '.join(node.fields)}"


def _persist(node: PersistNode) -> str:
    aggregation = node.aggregation
    if aggregation is None:
        return f"persist {node.state}: {_call(node.updater, node.inputs)}"
    called = _call(aggregation.aggregator, aggregation.inputs)
    pairs = zip(node.removals, node.parents[1:], strict=True)
    removed = "".join(f"; removes {', '.join(key)} of {stream}" for key, stream in pairs)
    return f"persist {node.state}: {called} -> {', '.join(aggregation.outputs)}{_by(aggregation.group)}{removed}"


def _column(name: str, expression: Expression) -> str:
    return name if repr(expression) == repr(col(name)) else f"{name} = {expression!r}"


def _call(operation: Any, inputs: Fields) -> str:
    if isinstance(operation, Expression):
        return repr(operation)
    return f"{operation_name(operation)}({', '.join(inputs)})"


def _member(member: Aggregation) -> str:
    return f"{_call(member.aggregator, member.inputs)} -> {', '.join(member.outputs)}"


def _by(group: Fields) -> str:
    return f" by {', '.join(group)}" if len(group) else ""


_WHAT: Sequence[tuple[type[Node], Callable[[Any], str]]] = (  # the first class that a node is of
    (nodes.DrpcNode, lambda node: f"requests of {node.function}"),
    (nodes.SpoutNode, lambda node: f"spout {operation_name(node.spout)}"),
    (nodes.EachNode, lambda node: f"each {_call(node.function, node.inputs)} -> {node.outputs}"),
    (nodes.FilterNode, lambda node: f"filter {_call(node.filter, node.inputs)}"),
    (
        nodes.MapNode,
        lambda node: f"{'flat_map' if node.flat else 'map'} {operation_name(node.function)} -> {node.fields}",
    ),
    (nodes.PeekNode, lambda node: f"peek {operation_name(node.consumer)}"),
    (nodes.ProjectNode, lambda node: f"project {', '.join(node.fields)}"),
    (nodes.SelectNode, lambda node: f"select {', '.join(map(_column, node.fields.names, node.expressions))}"),
    (nodes.MergeNode, lambda node: f"merge {len(node.parents)} streams -> {', '.join(node.fields)}"),
    (
        nodes.AggregateNode,
        lambda node: (
            f"aggregate{' in part' if node.partial else ''}{_by(node.group)}: {', '.join(map(_member, node.members))}"
        ),
    ),
    (
        nodes.QueryNode,
        lambda node: (
            f"query {node.state}: {_call(node.function, node.inputs)} -> {node.outputs}"
            f"{', sees this batch' if node.sees_batch else ''}"
        ),
    ),
    (nodes.JoinWithinNode, lambda node: f"join within {node.state}: {node} -> {', '.join(node.fields)}"),
    (
        nodes.WindowNode,
        lambda node: f"{node.config.what} {node.state}: {node.config}{_by(node.group)}: {_member(node.member)}",
    ),
    (nodes.PersistNode, _persist),
    (nodes.RepartitionNode, lambda node: f"repartition {routing_text(node.routing)}"),
    (nodes.JoinNode, _join),
    (
        nodes.MultiReduceNode,
        lambda node: f"multi_reduce {operation_name(node.reducer)} of {len(node.parents)} streams{_by(node.groups[0])}",
    ),
)
