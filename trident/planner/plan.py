"""The plan: what runs where, as data. No engine object in it; both runners execute the same plan.

A *fragment* begins at an entry (a spout, a persisted state's new values, a query's answers), applies steps, and ends at
sinks, each the input of a later entry. Fragments of spouts run in workers; the others run where the state is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trident.fields import Fields
from trident.graph import Aggregation, PersistNode, QueryNode, SpoutNode, StateNode

__all__ = ["Fragment", "Plan", "Sink", "Step"]


@dataclass(frozen=True)
class Step:
    """One operation of a fragment.

    Attributes
    ----------
    id, source
        This step and the step (or entry) whose tuples it takes.
    node
        The graph's node: what to do.
    keep
        The output columns that somebody needs; the others are dropped at once.
    """

    id: str
    source: str
    node: Any
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Sink:
    """Where tuples leave a fragment: the input of entry `target`, partially aggregated if `aggregation` combines."""

    target: str
    source: str
    fields: Fields
    aggregation: Aggregation | None = None


@dataclass(frozen=True)
class Fragment:
    """Steps between an entry and the next entries, in order; one pass over the tuples."""

    entry: str
    fields: Fields
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]


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
        Persists and queries in the order in which a batch runs them.
    states
        By name.
    partitions
        Number of partitions of each state.
    """

    topology: str
    spouts: tuple[SpoutNode, ...]
    fragments: dict[str, Fragment]
    commits: tuple[PersistNode | QueryNode, ...]
    states: dict[str, StateNode]
    partitions: dict[str, int]
    hints: dict[str, int] = field(default_factory=dict)
