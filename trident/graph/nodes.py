"""The nodes of streams: where tuples come from, and what happens to each of them.

A node's id is its parent's id and its own label, so it does not depend on what is declared elsewhere. `parents` name the
nodes whose tuples it takes; its `fields` are what it gives.

Nodes whose tuples change partitions within a batch: repartitioning, joins, reducers of several streams.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trident.fields import Fields

if TYPE_CHECKING:
    from trident.operations.expressions import Expression


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

    def needed(self, names: Container[str]) -> dict[str, Expression]:
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
    grouped: bool = False
    reducer: Any = None


@dataclass(frozen=True)
class JoinNode(Node):
    """`join`: rows of several streams with the same key; `groups` are the join fields of each.

    `outer`: whether the side may be missing.
    `preserve`: whether all fields of all sides are kept, else the key once and then the other fields of each side.
    `null_keys_match`: whether null is a key as any other.
    """

    inputs: tuple[Fields, ...] = ()
    groups: tuple[Fields, ...] = ()
    outer: tuple[bool, ...] = ()
    preserve: bool = False
    null_keys_match: bool = True


ExchangeNode = RepartitionNode | MultiReduceNode | JoinNode
