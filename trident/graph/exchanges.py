"""Nodes whose tuples change partitions within a batch: repartitioning, joins, reducers of several streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trident.fields import Fields
from trident.graph.nodes import Node

__all__ = ["ExchangeNode", "JoinNode", "MultiReduceNode", "RepartitionNode", "Routing"]


@dataclass(frozen=True)
class Routing:
    """Which partitions a tuple goes to.

    Attributes
    ----------
    kind
        `hash` (of `fields`), `key` (the same, for rows of a state, whose keys are mostly distinct), `shuffle` (in turn),
        `broadcast` (all), `global` (there is only one), `identity` (stays),
        `custom` (what `function(tuple, partitions)` says).
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

    inputs: tuple[Fields, ...] = ()
    groups: tuple[Fields, ...] = ()
    grouped: bool = False
    reducer: Any = None

    @property
    def operations(self) -> tuple[Any, ...]:
        """The reducer."""
        return (self.reducer,)


@dataclass(frozen=True)
class JoinNode(Node):
    """`join`: rows of several streams with the same key; `groups` are the join fields of each.

    Attributes
    ----------
    outer
        Whether the side may be missing.
    preserve
        Whether all fields of all sides are kept, else the key once and then the other fields of each side.
    null_keys_match
        Whether null is a key as any other.
    """

    inputs: tuple[Fields, ...] = ()
    groups: tuple[Fields, ...] = ()
    outer: tuple[bool, ...] = ()
    preserve: bool = False
    null_keys_match: bool = True


ExchangeNode = RepartitionNode | MultiReduceNode | JoinNode
