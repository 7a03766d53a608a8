"""One driver of a simulated run: the production loop over watched stores, log and spouts, turned step by step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from trident.config import Config
from trident.coordination.memory_log import MemoryLog
from trident.graph import Graph, Node, PersistNode, SpoutNode
from trident.planner import make_plan
from trident.planner.guarantees import spout_type_of
from trident.runtime.drive import Drive
from trident.runtime.start.opened_topology import OpenedTopology
from trident.spout.interfaces import TransactionAttempt
from trident.testing.backend.faulty_map import InjectedFault
from trident.testing.simulation.fault_plan import Fault
from trident.testing.simulation.simulated_map import SimulatedStore, watched_spec
from trident.testing.simulation.simulated_spout import SimulatedSpout
from trident.testing.topology.driver_points import WatchedLog
from trident.testing.topology.driver_result import HandClock, Unheard

_OBSERVED = ("defined", "processed", "recorded")


class Died(BaseException):
    """The driver is dead; nothing in it may handle that."""


class World(Protocol):
    """What a driver asks of the run that it is in."""

    def due(self, point: str, txid: int, state: str, last: bool = True) -> Fault | None:
        """Return what goes wrong at a point, if anything; not again if this was the `last` question."""

    def rows_of(self, stream: str, txid: int) -> int:
        """Return how many rows of a stream a batch takes, which is asked for once more."""

    def note(self, text: str, attempt: TransactionAttempt | None = None) -> None:
        """Add a line to the trace."""

    def went_wrong(self, fault: Fault, attempt: TransactionAttempt) -> None:
        """Note a fault, which happens now."""

    def set_back(self, fault: Fault) -> None:
        """Let a store lose the last batch."""

    def replaced(self, fault: Fault) -> None:
        """Let a successor work, while the caller is paused."""


@dataclass(frozen=True)
class Simulated:
    """What all drivers of a run have in common.

    `rows`: by stream.
    `stores`: by state.
    `opened`: what drivers have opened so far.
    """

    graph: Graph
    config: Config
    rows: Mapping[str, pa.Table]
    stores: Mapping[str, SimulatedStore]
    log: MemoryLog
    opened: list[OpenedTopology] = field(default_factory=list)


class Seam:
    """The points that one driver comes by: there it goes on, fails, dies, or is paused."""

    def __init__(self, world: World, txid: int) -> None:
        self._world, self._starting = world, txid
        self._attempt: TransactionAttempt | None = None  # that commits
        self.is_dead = self.fences = False

    def __reduce__(self) -> tuple[Any, ...]:
        return object, ()  # a worker has no part in the simulation

    def rows_of(self, stream: str, txid: int) -> int:
        return self._world.rows_of(stream, txid)

    def began(self, attempt: TransactionAttempt, text: str) -> None:
        self._world.note(text, attempt)

    def observe(self, point: str, attempt: TransactionAttempt) -> None:
        """Come by a point of the loop."""
        if point == "committing":
            self._attempt = attempt
        if point == "recorded":
            self._world.note("committed", attempt)
        if point in _OBSERVED:
            self.reach(point, txid=attempt.txid)

    def is_due(self, point: str, state: str) -> bool:
        return self._attempt is not None and self._world.due(point, self._attempt.txid, state, False) is not None

    def reach(self, point: str, state: str = "", txid: int = 0) -> None:
        """Come by a point of a batch: of the running commit, where no other is given."""
        if self.is_dead:
            raise Died
        attempt = None if txid else self._attempt
        fault = self._world.due(point, txid or (self._starting if attempt is None else attempt.txid), state)
        if fault is not None:
            if fault.kind == "pause" and not self.fences and fault.is_in_commit:
                fault = replace(fault, kind="crash")  # no store is there to refuse what it would write later
            self._world.went_wrong(fault, attempt or TransactionAttempt(fault.txid, 0))
            self._happens(fault)

    def _happens(self, fault: Fault) -> None:
        if fault.kind == "pause":
            self._world.replaced(fault)
        elif fault.is_live:
            self._world.set_back(fault)
        elif fault.kind in ("error", "lost_answer"):
            raise InjectedFault(f"simulated: {fault}")
        else:
            self.is_dead = True
            if fault.kind == "set_back":
                self._world.set_back(fault)
            raise Died


class SimulatedDriver:
    """Opens everything as a start of the topology does, over the stores and the log of the run, and takes them over."""

    def __init__(self, simulated: Simulated, world: World, number: int) -> None:
        self.number = number
        self.seam = seam = Seam(world, simulated.log.state.txid + 1)
        graph, config = _watched(simulated, seam), simulated.config
        plan = make_plan(graph)
        reopened = lambda states: simulated.log.reopened(True)  # noqa: E731
        self.opened = opened = OpenedTopology(graph, plan, config, reopened, seam.reach, False)
        opened.log = WatchedLog(opened.log, seam)
        simulated.opened.append(opened)
        self.unfenced = tuple(name for name, each in opened.states.items() if not each[0].facts.fences)
        seam.fences = not self.unfenced
        self.loop = Drive(graph, opened, Unheard(graph.name), observer=seam.observe, clock=HandClock()).loop
        seam.reach("start")


def _watched(simulated: Simulated, seam: Seam) -> Graph:
    """Return the graph with simulated spouts and watched states, and updaters of its own as in a process of its own."""
    graph = simulated.graph
    states = tuple(
        replace(node, spec=watched_spec(node, simulated.stores[node.name], seam), migrate=None) for node in graph.states
    )
    return replace(graph, nodes=tuple(_of_driver(node, simulated, seam) for node in graph.nodes), states=states)


def _of_driver(node: Node, simulated: Simulated, seam: Seam) -> Node:
    if isinstance(node, SpoutNode):
        promise = spout_type_of(node.spout)
        return replace(node, spout=SimulatedSpout(node.id, node.fields, promise, simulated.rows[node.id], seam))
    if isinstance(node, PersistNode) and node.updater is not None:
        return replace(node, updater=copy.copy(node.updater))
    return node
