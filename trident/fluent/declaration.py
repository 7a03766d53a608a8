"""What was declared so far: the nodes and states to which every fluent call adds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike

from trident.errors import ConfigError, TopologyError
from trident.graph import Graph, Node, StateNode
from trident.naming import TridentNames
from trident.state.encoding.serializers import type_not_written
from trident.state.interfaces import StateFactory, StateSpec, is_factory

PLACES = ("auto", "driver", "executors")
"""Where a state may be committed."""

_MOST = 1_000_000  # partitions
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Declaration(TridentNames):
    """The nodes and states of a topology by name; streams and states are handles to it.

    Adding is for the fluent calls, which check what they add first; here only names are checked.
    """

    def __init__(self, name: str, rename: Mapping[str, str] | None = None) -> None:
        if not is_name(name):
            raise TopologyError(f"{name!r} cannot name a topology; use letters, digits, '_', '.' and '-'")
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._states: dict[str, StateNode] = {}
        self._hints: dict[str, int] = {}
        self._memory_mb: dict[str, float] = {}
        self._placements: dict[str, str] = {}
        self._assemblies = 0
        self._rename = dict(rename or {})

    def graph(self) -> Graph:
        """Return the declaration so far as frozen data."""
        nodes, states = tuple(self._nodes.values()), tuple(self._states.values())
        hints, memory_mb, placements = dict(self._hints), dict(self._memory_mb), dict(self._placements)
        return Graph(self.name, nodes, states, hints, memory_mb, placements, self._rename)

    def _add(self, node: Node) -> Node:
        if node.id in self._nodes:
            raise TopologyError(
                f"topology {self.name!r} already has a stream {node.id!r}; every stream needs its own name"
            )
        self._nodes[node.id] = node
        return node

    def _put_behind(self, node: Node) -> None:
        """Take a node in place of the one of its id, with all that it reaches moved to the end: its parents stand before it."""
        reached = [each.id for each in self.graph().behind(node.id)]
        self._nodes[node.id] = node
        for id_ in reached:
            self._nodes[id_] = self._nodes.pop(id_)

    def _child_id(self, parent: str, label: str) -> str:
        """`parent/label`, with `.2`, `.3` … for further children of the same label."""
        wanted, number = f"{parent}/{label}", 1
        while (node_id := wanted if number == 1 else f"{wanted}.{number}") in self._nodes:
            number += 1
        return node_id

    def _add_state(self, node: StateNode) -> StateNode:
        name, spec = node.name, node.spec
        if not is_name(name):
            raise TopologyError(f"{name!r} cannot name a state; use letters, digits, '_', '.' and '-': state_name=...")
        if name in self._states:
            raise TopologyError(
                f"topology {self.name!r} already has a state {name!r}; give this one a name of its own: state_name=..."
            )
        for other in self._states.values():
            outer, inner = sorted((spec.place, other.spec.place), key=len)
            if outer and f"{inner}/".startswith(f"{outer}/"):
                where = f"both kept in {inner}" if inner == outer else f"kept in {outer} and inside of it, in {inner}"
                raise TopologyError(
                    f"topology {self.name!r}: states {other.name!r} and {name!r} are {where}; give each a place of its own, "
                    "beside the other"
                )
        for declared in node.value.types:
            if (lacking := type_not_written(spec.facts.serializer, declared)) is not None:
                raise ConfigError(
                    f"serializer='json' of state {name!r}, whose values are {declared}: JSON has no {lacking}. Leave "
                    "serializer out, or declare values that JSON has"
                )
        if spec.facts.layout is not None:
            spec.facts.layout(node.conf(self.name))  # refuses a layout that the state cannot have
        self._states[name] = node
        return node

    def _hint(self, node_id: str, parallelism: int) -> None:
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or not 1 <= parallelism <= _MOST:
            raise TopologyError(f"parallelism_hint({parallelism!r}): expected a whole number from 1 to {_MOST:,}")
        self._hints[node_id] = max(parallelism, self._hints.get(node_id, 0))

    @contextmanager
    def _inside_assembly(self) -> Iterator[bool]:
        """Know that an assembly is at work; gives whether it was applied by another one."""
        self._assemblies += 1
        try:
            yield self._assemblies > 1
        finally:
            self._assemblies -= 1

    def _place(self, state: str, where: str) -> None:
        if where not in PLACES:
            raise TopologyError(
                f"placement({where!r}) of state {state!r}: expected one of {', '.join(map(repr, PLACES))}"
            )
        self._placements[state] = where


def is_name(name: object) -> bool:
    """Whether something can name a topology, a stream, a state or a function; names of folders are made of it."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def spec_of(state: StateFactory | StateSpec) -> StateSpec:
    """Return the spec of what a call was given as a state; `TopologyError` if it is none."""
    if isinstance(state, StateSpec):
        return state
    if is_factory(state):
        return StateSpec(state)
    raise TopologyError(f"{state!r} is not a state: {_instead(state)}")


def _instead(state: object) -> str:
    if isinstance(state, (str, PathLike)):
        return f"it only names a place. DeltaState({str(state)!r}) is a state in that folder"
    if isinstance(state, type):
        return f"it is a class; give an instance of it: {state.__name__}(...)"
    return "give one of a store, such as DeltaState(path), or an object with make_state(...)"
