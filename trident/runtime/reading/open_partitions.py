"""Opens the partitions of declared states, for writing and for reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.errors import StateError
from trident.graph import Evolution, Graph, StateNode
from trident.planner import Plan
from trident.planner.meaning import Meaning, compare, meaning_of
from trident.runtime.reading.conversion import Conversion
from trident.runtime.reading.state_frames import columns_of, results_in
from trident.runtime.reading.state_partitions import CommitGate
from trident.runtime.reading.views import StateView
from trident.state.interfaces import State, StateType, kind_of, state_of
from trident.state.txid import Snapshot

NOT_YET = 1 << 62
"""No attempt: a declaration that has no driver yet has written nothing."""


def with_evolutions(plan: Plan, evolutions: Mapping[str, Evolution]) -> Plan:
    """Return a plan whose states are opened as former declarations have left them."""
    states = {name: replace(node, evolution=evolutions.get(name)) for name, node in plan.states.items()}
    return replace(plan, states=states) if evolutions else plan


def graph_to_read(graph: Graph, declared: Mapping[str, Any], name: str | None = None) -> Graph:
    """Return a topology whose states are opened as former declarations have left them; `declared` as in `LogState`.

    Raises `StateError`: the log has the state `name` under another name.
    """
    compared = compare(Meaning.of_log(declared), meaning_of(graph), NOT_YET)
    evolutions = compared.evolutions
    if known := [old for old, new in compared.renamed.items() if new == name]:
        raise StateError(
            f"state {name!r} of topology {graph.name!r} is called {known[0]!r} in its log: read it by the declaration with "
            "that name, or start the topology with this one, which changes the name there"
        )
    states = tuple(replace(node, evolution=evolutions.get(node.name)) for node in graph.states)
    return replace(graph, states=states) if evolutions else graph


def make_state(
    plan: Plan, config: Config, name: str, partition: int, partitions: int, read_only: bool = False
) -> State:
    """Open one partition of a state of a plan."""
    return open_state(plan.topology, plan.states[name], config.as_mapping(), partition, partitions, read_only)


def open_state(
    topology: str,
    node: StateNode,
    settings: Mapping[str, Any],
    partition: int,
    partitions: int,
    read_only: bool = False,
) -> State:
    """Open one partition of a declared state."""
    conf = node.conf(topology, settings, read_only, partitions)
    conf = replace(conf, migrate=former_types(node))
    state = state_of(node.spec.factory.make_state(conf, partition, partitions))
    if conf.free_keys:
        state.share_keys()
    return state


def former_types(node: StateNode) -> Conversion | None:
    """Return what reads the values that former declarations wrote; None: the state is not opaque, or has no declared type."""
    is_typed = node.value.types and node.value.types[0] is not None
    return Conversion(node) if is_typed and kind_of(node.spec) is StateType.OPAQUE else None


def readers_of(plan: Plan, config: Config, name: str, partitions: int) -> list[State]:
    """Open all partitions of a state of a plan, for reading."""
    return [make_state(plan, config, name, partition, partitions, read_only=True) for partition in range(partitions)]


def view_of(
    plan: Plan,
    config: Config,
    name: str,
    snapshot: Callable[[], Snapshot] | None,
    partitions: int,
    log: Callable[[], LogState] | None = None,
    gate: CommitGate | None = None,
) -> StateView:
    """Open all partitions of a state of a plan as one view; parameters as of `StateView`."""
    node = plan.states[name]
    readers, results = readers_of(plan, config, name, partitions), results_in(plan.commits, name)
    return StateView(readers, snapshot, name, columns_of(node), node.free_keys, results, log, gate)
