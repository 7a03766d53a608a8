"""The declared topology as frozen nodes; no engine object is in them.

A node's id is its parent's id and its own label, so it does not depend on what is declared elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from trident.errors import TopologyError
from trident.fields import Fields
from trident.roles import has
from trident.state.interfaces import StateConf, StateSpec

if TYPE_CHECKING:
    from trident.operations.expressions import Expression
    from trident.operations.windows import WindowConfig


@dataclass(frozen=True)
class Node:
    """What all nodes have: an `id` that is the same at each start, those whose tuples it takes, and what it gives."""

    OPERATION: ClassVar[str] = ""
    """The name of the field whose object processes the tuples, if there is one."""

    id: str
    parents: tuple[str, ...]
    fields: Fields

    @property
    def operations(self) -> tuple[Any, ...]:
        """The objects that process its tuples where it is a step: functions, filters, aggregators."""
        return (vars(self)[self.OPERATION],) if self.OPERATION else ()


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

    OPERATION = "function"

    inputs: Fields = Fields()
    function: Any = None
    outputs: Fields = Fields()


@dataclass(frozen=True)
class FilterNode(Node):
    """`each`/`filter` with a filter over `inputs`, `where` with a condition; `whole`: it is given whole tuples."""

    OPERATION = "filter"

    inputs: Fields = Fields()
    filter: Any = None
    whole: bool = False


@dataclass(frozen=True)
class MapNode(Node):
    """`map` and `flat_map` (`flat`): replaces all fields."""

    OPERATION = "function"

    inputs: Fields = Fields()
    function: Any = None
    flat: bool = False


@dataclass(frozen=True)
class PeekNode(Node):
    """`peek`."""

    OPERATION = "consumer"

    inputs: Fields = Fields()
    consumer: Any = None


@dataclass(frozen=True)
class ProjectNode(Node):
    """`project`: keeps `fields`, in their order."""


@dataclass(frozen=True)
class SelectNode(Node):
    """`select`: an expression for each of `fields`, in their order."""

    expressions: tuple[Expression, ...] = ()

    def expressions_for(self, names: Container[str]) -> dict[str, Expression]:
        """Return what has to be computed for some of the fields: an exploded one always, it says how many rows there are."""
        pairs = zip(self.fields.names, self.expressions, strict=True)
        return {name: one for name, one in pairs if name in names or one.kind == "explode"}


@dataclass(frozen=True)
class MergeNode(Node):
    """`merge`: the union of all parents. `inputs` are the fields of each parent, in the order of what it gives."""

    inputs: tuple[Fields, ...] = ()


@dataclass(frozen=True)
class Routing:
    """Which partitions a tuple goes to.

    `kind`: `hash` (of `fields`), `key` (the same, for rows of a state, whose keys are mostly distinct), `shuffle` (in turn),
    `broadcast` (all), `global` (there is only one), `identity` (stays), `custom` (what `function(tuple, partitions)` says).
    """

    kind: str
    fields: Fields = Fields()
    function: Any = None


@dataclass(frozen=True)
class RepartitionNode(Node):
    """`shuffle`, `partition_by` and so on: the same tuples in other partitions."""

    routing: Routing = Routing("shuffle")


@dataclass(frozen=True)
class MultiReduceNode(Node):
    """`multi_reduce`: processes several streams together; `groups` are the keys of each, without fields if ungrouped."""

    OPERATION = "reducer"

    inputs: tuple[Fields, ...] = ()
    groups: tuple[Fields, ...] = ()
    reducer: Any = None


@dataclass(frozen=True)
class JoinNode(Node):
    """`join`: rows of several streams with the same key; `groups` are the join fields of each, `outer` which may be missing.

    `preserve`: whether all fields of all sides are kept, else the key once and then the other fields of each side.
    """

    inputs: tuple[Fields, ...] = ()
    groups: tuple[Fields, ...] = ()
    outer: tuple[bool, ...] = ()
    preserve: bool = False
    null_keys_match: bool = True


ExchangeNode = RepartitionNode | MultiReduceNode | JoinNode

Migrate = Callable[[Any, str], Any]
"""What makes a stored value of a former type one of the declared type."""


@dataclass(frozen=True)
class Evolution:
    """How a state is stored of which former declarations have written a part.

    `types`: the former types of its values, as `Winners.types`, the last of them up to the attempts of this declaration.
    `type`: as what values are read within a commit: the declared type, and what fields only the last declaration has. So the
    value before a batch has all that the last declaration needs, should it come back.
    `stored`: the type that columns of a store must hold: `type`, and the fields under which former declarations wrote; None:
    all is stored as it is declared, under another `name`.
    `key`, `value`: the names that a store knows the fields of the key and the value by.
    `name`: the name that a store knows the state by; None: the declared one.
    """

    types: tuple[tuple[int, str, Mapping[str, str | None] | None], ...]
    type: str | None
    stored: str | None
    key: tuple[str, ...]
    value: str | None
    name: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """How tuples become a value for each key, or what else an aggregator makes of them.

    `combines`: it can be taken in parts, so a batch is aggregated in parts before it reaches a state.
    `group`: the grouping fields; empty for one value of all tuples.
    """

    inputs: Fields
    aggregator: Any
    outputs: Fields
    combines: bool = False
    group: Fields = Fields()

    @cached_property
    def partial(self) -> Fields:
        """The fields of a part that is already aggregated: the grouping fields, then the output."""
        return self.group.concat(self.outputs)


@dataclass(frozen=True)
class AggregateNode(Node):
    """Aggregates each partition of a batch; gives `group` and the members' outputs, their cross product if there are many.

    A full aggregate is a partial one (`partial`: of any piece of a partition, nothing for an empty one), a
    `RepartitionNode`, and a second one that merges; without combiners it is the last two.
    """

    members: tuple[Aggregation, ...] = ()
    partial: bool = False

    @property
    def group(self) -> Fields:
        return self.members[0].group

    @property
    def operations(self) -> tuple[Any, ...]:
        return tuple(member.aggregator for member in self.members)


REMOVED = "$removed"
"""The first column of a table of keys to remove; it says no more than that they are."""


@dataclass(frozen=True)
class PersistNode(Node):
    """Writes a state by `aggregation` or `updater` (over `inputs`); gives the stream of new values.

    `removals`: for each parent behind the first its fields that are the key that a tuple removes, in the order of the key.
    """

    state: str = ""
    inputs: Fields = Fields()
    aggregation: Aggregation | None = None
    updater: Any = None
    removals: tuple[Fields, ...] = ()


@dataclass(frozen=True)
class WindowNode(PersistNode):
    """Keeps tuples, or partial aggregates, in a state until their window is complete; gives what the windows come to.

    `window`: set in every node. `bounds`: the fields that say which window a tuple belongs to; none or two.
    `late`: the fields of the stream, if it also gives the tuples that come too late: in `$late.` and the field's name, `$late`
    is true in their rows and null in those of windows. Else it has none.
    """

    window: WindowConfig | None = None
    member: Aggregation = Aggregation(Fields(), None, Fields())
    bounds: Fields = Fields()
    late: Fields = Fields()

    @property
    def group(self) -> Fields:
        return self.member.group

    @property
    def config(self) -> WindowConfig:
        assert self.window is not None, self
        return self.window

    @property
    def value(self) -> Fields:
        """What is kept of a window, with types; no fields of a process, whose code decides."""
        return self.member.outputs if self.config.keeps_results else Fields()

    @property
    def combines(self) -> bool:
        return self.member.combines


@dataclass(frozen=True)
class QueryNode(Node):
    """`state_query`; `outputs` are appended. One that `sees_batch` runs after the state's update."""

    OPERATION = "function"

    state: str = ""
    inputs: Fields = Fields()
    function: Any = None
    outputs: Fields = Fields()
    sees_batch: bool = False


@dataclass(frozen=True)
class StateNode:
    """A state of the topology.

    `key_fields`, `value`: empty where a user's updater decides.
    `free_keys`: that updater chooses the keys (`partition_persist`), so the partition does not follow from the key.
    `migrate`: makes a value of the declared type of one of a former type: `(value, former type)`.
    `evolution`: what former declarations have left; None: nothing, or the log was not asked.
    """

    name: str
    spec: StateSpec
    static: bool = False
    key_fields: Fields = Fields()
    value: Fields = Fields()
    free_keys: bool = False
    migrate: Migrate | None = None
    evolution: Evolution | None = None

    def conf(
        self, topology: str, settings: Mapping[str, Any] | None = None, read_only: bool = False, partitions: int = 1
    ) -> StateConf:
        keys = tuple((field, self.key_fields.type_of(field) or "") for field in self.key_fields.names)
        value, named = (self.value.types[0], self.value.names[0]) if len(self.value) else (None, None)
        evolution = self.evolution
        name = self.name if evolution is None else evolution.name or self.name
        if evolution is not None and evolution.stored is not None:
            keys = tuple((stored, type_) for stored, (_, type_) in zip(evolution.key, keys, strict=True))
            value, named = evolution.stored, evolution.value
        free = self.free_keys and partitions > 1
        return StateConf(topology, name, keys, value, settings or {}, read_only, named, free, called=self.name)


@dataclass(frozen=True)
class JoinSide:
    """One stream of a `JoinWithinNode`; its watermark is `delay_us` behind its latest `time`.

    `outer`: whether it may be missing: then a row of the other side that meets none comes with nulls.
    """

    fields: Fields
    key: Fields
    time: str
    delay_us: int = 0
    outer: bool = False

    @property
    def rest(self) -> tuple[str, ...]:
        return tuple(name for name in self.fields.names if name not in self.key.names)


@dataclass(frozen=True)
class JoinWithinNode(PersistNode):
    """Joins two streams (left and right) over time, and keeps their rows in a state as long as they may still meet others.

    `earliest_us`, `latest_us`: how much later than the left row's time the right row's may be; both are included.
    """

    sides: tuple[JoinSide, ...] = ()
    earliest_us: int = 0
    latest_us: int = 0

    def __str__(self) -> str:
        left, right = self.sides
        unit = timedelta(microseconds=1)
        delays = ", ".join(f"{side.time} delay {side.delay_us * unit}" for side in self.sides)
        sides = ", ".join("outer" if side.outer else "inner" for side in self.sides)
        bounds = f"{_signed_time(self.earliest_us)} to {_signed_time(self.latest_us)}"
        return f"({', '.join(left.key)}) = ({', '.join(right.key)}), {right.time} - {left.time} in {bounds} ({sides}); {delays}"


def _signed_time(microseconds: int) -> str:
    amount = timedelta(microseconds=abs(microseconds))
    return f"-{amount}" if microseconds < 0 else str(amount)


def name_of_state(given: Any) -> str:
    if not isinstance(given, str) and not has(given, "state_name"):
        raise TopologyError(f"{given!r} is not a state: give its name, or what persistent_aggregate, for one, returned")
    return given if isinstance(given, str) else str(given.state_name)


@dataclass(frozen=True)
class Graph:
    """A whole topology, in the order of declaration (so parents stand before children)."""

    name: str
    nodes: tuple[Node, ...]
    states: tuple[StateNode, ...]
    hints: dict[str, int] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    placements: dict[str, str] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)

    def node(self, node_id: str) -> Node:
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def state(self, name: str) -> StateNode:
        for state in self.states:
            if state.name == name:
                return state
        raise TopologyError(f"topology {self.name!r} has no state {name!r}; it has {[s.name for s in self.states]}")

    def children(self, node_id: str) -> list[Node]:
        return [node for node in self.nodes if node_id in node.parents]

    def spouts(self) -> list[SpoutNode]:
        return [node for node in self.nodes if isinstance(node, SpoutNode)]

    def sources_of(self, node_id: str) -> list[SpoutNode]:
        above = {node_id, *self.above(node_id)}
        return [spout for spout in self.spouts() if spout.id in above]

    def functions(self) -> list[DrpcNode]:
        return [node for node in self.nodes if isinstance(node, DrpcNode)]

    def behind(self, node_id: str) -> list[Node]:
        """Return the nodes that a node's tuples reach, itself first, in order of declaration."""
        reached = {node_id}
        nodes = []
        for node in self.nodes:
            if node.id == node_id or any(parent in reached for parent in node.parents):
                reached.add(node.id)
                nodes.append(node)
        return nodes

    def of_batches(self) -> Graph:
        """Return the graph without what DRPC requests run through: no stream has tuples of both."""
        requests = {node.id for function in self.functions() for node in self.behind(function.id)}
        return replace(self, nodes=tuple(node for node in self.nodes if node.id not in requests))

    def above(self, node_id: str) -> set[str]:
        """Return the ids of all nodes whose tuples reach a node, without itself."""
        above = set(self.node(node_id).parents)
        for node in reversed(self.nodes):
            if node.id in above:
                above.update(node.parents)
        return above
