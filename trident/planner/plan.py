"""The plan: what runs where, as data. No engine object in it; both runners execute the same plan.

A *fragment* begins at an entry (a spout, an exchange, a persisted state's new values, a query's answers), applies steps,
and ends at sinks, each the input of a later entry. What comes from spouts alone runs in workers, level by level: first the
fragments of spouts, then the exchanges that they feed, and so on. What comes from a state runs where that is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    Aggregation,
    ExchangeNode,
    PersistNode,
    QueryNode,
    Resources,
    Routing,
    SpoutNode,
    StateNode,
    WindowNode,
)

__all__ = ["Exchange", "Fragment", "Plan", "Sink", "Step"]


@dataclass(frozen=True)
class Step:
    """One operation of a fragment.

    Attributes
    ----------
    id, sources
        This step and the steps (or entry) whose tuples it takes: one, or several of a merge.
    node
        The graph's node: what to do. Of a merge it names only the parents that are in this fragment.
    keep
        The output columns that somebody needs; the others are dropped at once.
    """

    id: str
    sources: tuple[str, ...]
    node: Any
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """Where tuples leave a fragment: the input of entry `target`, partially aggregated if `aggregation` combines.

    Where the target is an exchange, `routing` says to which of its partitions, and `port` as which of its inputs. Where it
    is a window, `window` is its node: its combiner too aggregates in part where time says which window a tuple is of.
    """

    target: str
    source: str
    fields: Fields
    aggregation: Aggregation | None = None
    port: int = 0
    routing: Routing | None = None
    window: WindowNode | None = None


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
        """What the table of the entry and of each step has."""
        return {self.entry: self.fields.names, **{step.id: step.keep for step in self.steps}}

    @cached_property
    def blocking(self) -> bool:
        """Whether a step needs all tuples of the partition at once; it also runs, then, where there are none."""
        return any(isinstance(step.node, AggregateNode) and not step.node.partial for step in self.steps)


@dataclass(frozen=True)
class Exchange:
    """An entry that gathers tuples of other fragments, partition by partition. All partitions run in every batch.

    Attributes
    ----------
    node
        What becomes of the tuples there.
    inputs
        The fields that arrive, by port.
    partitions
        How many; None: as many as the engine works on at once.
    """

    node: ExchangeNode
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
    resources
        What steps and states ask for, by their ids; what comes of it for stages is in `trident.planner.loads`.
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
    resources: dict[str, Resources] = field(default_factory=dict)
