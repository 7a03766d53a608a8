"""The plan: what runs where, as data. No engine object in it; both runners execute the same plan.

A *fragment* begins at an entry (a spout, an exchange, a persisted state's new values, a query's answers), applies steps,
and ends at sinks, each the input of a later entry. A fragment that only spouts feed runs in workers, level by level: first
the fragments of spouts, then the exchanges that they feed, and so on. A fragment that a state feeds runs where the state is
committed.

Which entries keep the partitions of the stream in front of them: a `partition_persist` of several, and queries
before one.

As in Storm, an updater gets the tuples as the last `partition_by`, `shuffle`, `global_` … spread them: partition i of the
stream goes to partition i of the state; where the stream has more, i modulo the number of the state's. So if all tuples of
a key are in one partition of the stream, one partition of the state writes the key (R16). A query on the way passes the
partitions on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    Aggregation,
    ExchangeNode,
    Graph,
    JoinWithinNode,
    Node,
    PersistNode,
    QueryNode,
    Routing,
    SpoutNode,
    StateNode,
    WindowNode,
)


@dataclass(frozen=True)
class Step:
    """One operation of a fragment.

    Attributes
    ----------
    id, sources
        This step and the steps (or entry) whose tuples it takes: one, or several for a merge.
    node
        The graph's node: what to do. A merge names only the parents that are in this fragment.
    keep
        The output columns that later steps need; the others are dropped at once.
    """

    id: str
    sources: tuple[str, ...]
    node: Any
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """Where tuples leave a fragment: the input of the entry `target`, as partials if `aggregation` combines.

    If the target is an exchange, `routing` says to which of its partitions, and `port` is the number of its input. If it is
    a window, `window` is its node; its combiner too gives partials, if time says to which window a tuple belongs. If it is a
    join over time, `join` is its node, and `port` the number of its side. If the target keeps the partitions of the stream,
    `kept` is how many it has: it takes the stream's partitions in turn (see `trident/planner/plan.py`). If the tuples are keys
    that a state is to remove, `removes` are the fields of its key, whose names the columns get.
    """

    target: str
    source: str
    fields: Fields
    aggregation: Aggregation | None = None
    port: int = 0
    routing: Routing | None = None
    window: WindowNode | None = None
    join: JoinWithinNode | None = None
    kept: int = 0
    removes: Fields | None = None


@dataclass(frozen=True)
class Fragment:
    """Steps between an entry and the next entries, in order; one pass over the tuples."""

    entry: str
    fields: Fields
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]

    @property
    def ids(self) -> list[str]:
        """The entry, then its steps."""
        return [self.entry, *(step.id for step in self.steps)]

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of the tables of the entry and of each step."""
        return {self.entry: self.fields.names, **{step.id: step.keep for step in self.steps}}

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """A 0 for each number that a pass over it counts: two of the entry, of each step and of each sink."""
        return (0, 0) * (1 + len(self.steps) + len(self.sinks))

    @cached_property
    def blocking(self) -> bool:
        """Whether a step needs all tuples of the partition at once; then it also runs without tuples."""
        return any(isinstance(step.node, AggregateNode) and not step.node.partial for step in self.steps)


@dataclass(frozen=True)
class Exchange:
    """An entry that gathers tuples of other fragments, partition by partition. All partitions run in every batch.

    Attributes
    ----------
    node
        The node: what the exchange does with the tuples; a state's node if executors commit the state.
    inputs
        The fields that arrive, by port.
    partitions
        How many; None: as many as the engine works on at once.
    """

    node: ExchangeNode | PersistNode | QueryNode
    inputs: tuple[Fields, ...]
    partitions: int | None = None


@dataclass(frozen=True)
class Plan:
    """A topology, ready to run.

    Attributes
    ----------
    spouts
        The sources, in order of declaration.
    fragments
        By entry id.
    commits
        Persists, queries and the exchanges behind them, in the order in which a batch runs them.
    states
        By name.
    partitions
        Number of partitions of each state.
    exchanges
        By entry id.
    levels
        The exchanges that run before any state is committed, level by level: each is fed by earlier levels only.
    memory_mb
        The loads of steps and states, by their ids; `trident.planner.placing` computes those of stages.
    placements
        Where states were asked to be committed, by name, if it was said.
    """

    topology: str
    spouts: tuple[SpoutNode, ...]
    fragments: dict[str, Fragment]
    commits: tuple[PersistNode | QueryNode | ExchangeNode, ...]
    states: dict[str, StateNode]
    partitions: dict[str, int]
    hints: dict[str, int] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    levels: tuple[tuple[str, ...], ...] = ()
    memory_mb: dict[str, float] = field(default_factory=dict)
    placements: dict[str, str] = field(default_factory=dict)


def partitions_of_state(graph: Graph, node: PersistNode) -> int:
    return graph.state(node.state).spec.required_num_partitions or graph.hints.get(node.id, 1)


def kept_by(graph: Graph, node: Node, fragment: Fragment) -> int:
    """Return how many partitions an entry keeps of the streams in front of it; 0: it chooses them by itself.

    `fragment` is the one behind it.
    """
    if isinstance(node, QueryNode):
        return most_kept(fragment.sinks)
    if isinstance(node, PersistNode) and graph.state(node.state).free_keys:
        partitions = partitions_of_state(graph, node)
        return partitions if partitions > 1 else 0
    return 0


def keeping(fragment: Fragment, kept: Mapping[str, int]) -> Fragment:
    """Return a fragment whose sinks know which of their targets keep partitions."""
    sinks = tuple(replace(sink, kept=kept.get(sink.target, 0)) for sink in fragment.sinks)
    return replace(fragment, sinks=sinks)


def most_kept(sinks: Iterable[Sink]) -> int:
    """Return the largest number of partitions that a target of these sinks keeps."""
    return max((sink.kept for sink in sinks), default=0)
