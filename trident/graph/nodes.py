"""The declared graph: frozen nodes, no engine object in them.

A node's id is its parent's id and its own label, so it does not depend on what is declared elsewhere. `parents` name the
nodes whose tuples it takes; its `fields` are what it gives.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trident.errors import TopologyError
from trident.fields import Fields
from trident.state.interfaces import StateSpec

if TYPE_CHECKING:
    from trident.operations.expressions import Expression
    from trident.operations.windows import WindowConfig

__all__ = [
    "AggregateNode",
    "Aggregation",
    "DrpcNode",
    "EachNode",
    "FilterNode",
    "Graph",
    "MapNode",
    "Member",
    "MergeNode",
    "Node",
    "PeekNode",
    "PersistNode",
    "ProjectNode",
    "QueryNode",
    "Resources",
    "SelectNode",
    "SpoutNode",
    "StateNode",
    "WindowNode",
]


@dataclass(frozen=True)
class Node:
    """What all nodes have.

    Attributes
    ----------
    id
        Unique in the topology and stable from one start to the next.
    parents
        Ids of the nodes whose tuples this one takes.
    fields
        What it gives, with types.
    """

    id: str
    parents: tuple[str, ...]
    fields: Fields


@dataclass(frozen=True)
class SpoutNode(Node):
    """A source. `id` is the stream's name."""

    spout: Any = None


@dataclass(frozen=True)
class DrpcNode(Node):
    """Where the requests of a DRPC function come in, a tuple each."""

    function: str = ""


@dataclass(frozen=True)
class EachNode(Node):
    """`each` with a function: `outputs` are appended."""

    inputs: Fields = Fields()
    function: Any = None
    outputs: Fields = Fields()


@dataclass(frozen=True)
class FilterNode(Node):
    """`each`/`filter` with a filter over `inputs`, `where` with a condition; `whole`: it is given whole tuples."""

    inputs: Fields = Fields()
    filter: Any = None
    whole: bool = False


@dataclass(frozen=True)
class MapNode(Node):
    """`map` and `flat_map` (`flat`): replaces all fields."""

    inputs: Fields = Fields()
    function: Any = None
    flat: bool = False


@dataclass(frozen=True)
class PeekNode(Node):
    """`peek`."""

    inputs: Fields = Fields()
    consumer: Any = None


@dataclass(frozen=True)
class ProjectNode(Node):
    """`project`: keeps `fields`, in their order."""


@dataclass(frozen=True)
class SelectNode(Node):
    """`select`: an expression for each of `fields`, in their order."""

    expressions: tuple[Expression, ...] = ()

    def needed(self, names: Container[str]) -> dict[str, Expression]:
        """Return what has to be computed for some of the fields: an exploded one always, it says how many rows there are."""
        pairs = zip(self.fields.names, self.expressions, strict=True)
        return {name: one for name, one in pairs if name in names or one.kind == "explode"}


@dataclass(frozen=True)
class MergeNode(Node):
    """`merge`: the union of all parents, field by position. `inputs` are the fields of each parent."""

    inputs: tuple[Fields, ...] = ()


@dataclass(frozen=True)
class Member:
    """One aggregator of an `AggregateNode`: what it sees, and what it gives."""

    inputs: Fields
    aggregator: Any
    outputs: Fields


@dataclass(frozen=True)
class AggregateNode(Node):
    """Aggregates each partition of a batch; gives `group` and the members' outputs, their cross product if there are many.

    A full aggregate is a partial one (`partial`: of any piece of a partition, nothing for an empty one), a
    `RepartitionNode`, and a second one that merges; without combiners it is the last two.
    """

    group: Fields = Fields()
    grouped: bool = False
    members: tuple[Member, ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class Aggregation:
    """How a batch's tuples become one value per key.

    Attributes
    ----------
    group
        The grouping fields (empty and `grouped` False for one value per state).
    inputs, aggregator, output
        What the aggregator sees, the combiner or reducer, and its one output field.
    combines
        True for a combiner: the batch is aggregated in parts before it reaches the state.
    """

    group: Fields
    grouped: bool
    inputs: Fields
    aggregator: Any
    output: Fields
    combines: bool

    @cached_property
    def partial(self) -> Fields:
        """The fields of a part that is already aggregated: the grouping fields, then the output."""
        return self.group.concat(self.output)


@dataclass(frozen=True)
class PersistNode(Node):
    """Writes a state; gives the stream of new values. Either `aggregation` or `updater` (over `inputs`) is set."""

    state: str = ""
    inputs: Fields = Fields()
    aggregation: Aggregation | None = None
    updater: Any = None


@dataclass(frozen=True)
class WindowNode(PersistNode):
    """Keeps tuples, or partial aggregates, in a state until their window is complete; gives what the windows come to.

    Attributes
    ----------
    window
        Which windows there are; set in every node.
    group, grouped, member
        What is aggregated in each window, and how.
    bounds
        The fields behind the grouping fields that tell which window a tuple is of; none or two.
    """

    window: WindowConfig | None = None
    group: Fields = Fields()
    grouped: bool = False
    member: Member = Member(Fields(), None, Fields())
    bounds: Fields = Fields()

    @property
    def config(self) -> WindowConfig:
        """The window."""
        assert self.window is not None, self
        return self.window

    @property
    def combines(self) -> bool:
        """Whether partial aggregates are kept in place of tuples."""
        return hasattr(self.member.aggregator, "combine")


@dataclass(frozen=True)
class QueryNode(Node):
    """`state_query`: looks tuples up in a state; `outputs` are appended."""

    state: str = ""
    inputs: Fields = Fields()
    function: Any = None
    outputs: Fields = Fields()


@dataclass(frozen=True)
class StateNode:
    """A state of the topology.

    Attributes
    ----------
    name
        Unique in the topology; with the topology's name the default key prefix.
    spec
        Factory and fixed number of partitions.
    static
        True if no stream updates it.
    key_fields, value
        Fields of the key and of the value (empty where a user's updater decides).
    """

    name: str
    spec: StateSpec
    static: bool = False
    key_fields: Fields = Fields()
    value: Fields = Fields()


@dataclass(frozen=True)
class Resources:
    """What a step asks for: percent of a core, and MiB on and off the heap; None where nobody said it."""

    cpu_percent: float | None = None
    memory_mb: float | None = None
    off_heap_mb: float | None = None


@dataclass(frozen=True)
class Graph:
    """A whole topology, in the order of declaration (so parents stand before children)."""

    name: str
    nodes: tuple[Node, ...]
    states: tuple[StateNode, ...]
    hints: dict[str, int] = field(default_factory=dict)
    resources: dict[str, Resources] = field(default_factory=dict)

    def node(self, node_id: str) -> Node:
        """Return a node by id."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def state(self, name: str) -> StateNode:
        """Return a state by name; `TopologyError` naming those that exist."""
        for state in self.states:
            if state.name == name:
                return state
        raise TopologyError(f"topology {self.name!r} has no state {name!r}; it has {[s.name for s in self.states]}")

    def children(self, node_id: str) -> list[Node]:
        """Return the nodes that take the tuples of a node, in order of declaration."""
        return [node for node in self.nodes if node_id in node.parents]

    def spouts(self) -> list[SpoutNode]:
        """Return the sources."""
        return [node for node in self.nodes if isinstance(node, SpoutNode)]

    def sources_of(self, node_id: str) -> list[SpoutNode]:
        """Return the spouts whose tuples reach a node."""
        above = {node_id, *self.above(node_id)}
        return [spout for spout in self.spouts() if spout.id in above]

    def functions(self) -> list[DrpcNode]:
        """Return where DRPC requests come in, one a function."""
        return [node for node in self.nodes if isinstance(node, DrpcNode)]

    def behind(self, node_id: str) -> list[Node]:
        """Return the nodes that a node's tuples reach, itself first, in order of declaration."""
        reached = {node_id}
        found = []
        for node in self.nodes:
            if node.id == node_id or any(parent in reached for parent in node.parents):
                reached.add(node.id)
                found.append(node)
        return found

    def of_batches(self) -> Graph:
        """Return the graph without what DRPC requests run through: no stream has tuples of both."""
        requests = {node.id for function in self.functions() for node in self.behind(function.id)}
        return replace(self, nodes=tuple(node for node in self.nodes if node.id not in requests))

    def above(self, node_id: str) -> set[str]:
        """Return the ids of all nodes whose tuples reach a node, without itself."""
        found: set[str] = set()
        waiting = list(self.node(node_id).parents)
        while waiting:
            parent = waiting.pop()
            if parent not in found:
                found.add(parent)
                waiting.extend(self.node(parent).parents)
        return found
