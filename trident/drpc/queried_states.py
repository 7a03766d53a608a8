"""The states that requests query, all as after the same committed batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.graph import Graph, StateNode
from trident.planner import RequestPlan
from trident.runtime.reading.open_partitions import open_state
from trident.runtime.reading.state_reader import ForeignLog, snapshots_of
from trident.runtime.reading.views import StateView
from trident.state.txid import Snapshot


@runtime_checkable
class QueriedTopology(Protocol):
    """A topology that runs in this process, as its DRPC functions know it; `RunningTopology` is one."""

    @property
    def graph(self) -> Graph:
        """What was declared."""

    @property
    def config(self) -> Config:
        """The settings that it was started with."""

    @property
    def gate(self) -> AbstractContextManager[Any]:
        """Holding it delays the next commit."""

    @property
    def log_state(self) -> LogState:
        """What is committed now."""

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each state that the topology updates."""


class CommittedLog(Protocol):
    """Says what is committed, to any thread.

    `gate`: holding it delays the next commit; None if another process commits.
    """

    gate: AbstractContextManager[Any] | None

    def now(self) -> LogState:
        """Return what is committed now. The object may change with the next call."""

    def partitions(self, state: str) -> int:
        """Return the number of partitions of a state, as of the latest `now`."""


class OwnLog:
    """The log of a topology that runs in this process."""

    def __init__(self, running: QueriedTopology) -> None:
        self._running = running
        self.gate: AbstractContextManager[Any] | None = running.gate

    def now(self) -> LogState:
        return self._running.log_state

    def partitions(self, state: str) -> int:
        return self._running.partitions.get(state, 1)


class LogOfOthers(ForeignLog):
    """The log of a topology that another process runs, or ran."""

    gate: AbstractContextManager[Any] | None = None

    def __init__(self, topology: str, config: Config, states: Mapping[str, StateNode]) -> None:
        instead = 'Ask that process (running.drpc("function"), or trident run with --drpc-port)'
        super().__init__(topology, config, states.values(), instead)


class RequestStates:
    """The states that one function queries. For one thread at a time."""

    def __init__(self, plan: RequestPlan, config: Config, log: CommittedLog | None) -> None:
        self._plan, self._config, self._log = plan, config, log
        self._static: dict[str, Any] = {}
        self._updated: dict[str, tuple[int, list[Any], Any]] = {}
        self._snapshots: dict[str, Snapshot] = {}

    def renew(self) -> None:
        """Read as after the last committed batch from now on."""
        names = [name for name, node in self._plan.states.items() if not node.static]
        if self._log is None or not names:
            return
        self._snapshots = snapshots_of(self._log.now, names)

    def __call__(self, name: str) -> Any:
        """Return a state for a query function."""
        node = self._plan.states[name]
        if node.static:
            if name not in self._static:
                partitions = node.spec.required_num_partitions or 1
                self._static[name] = self._open(node, 0, partitions)
            return self._static[name].given
        assert self._log is not None, "only functions without updated states go without a log"
        partitions = self._log.partitions(name)
        opened = self._updated.get(name)
        if opened is None or opened[0] != partitions:  # a restart may have changed the number
            _close(opened[1] if opened is not None else [])
            instances = [self._open(node, partition, partitions) for partition in range(partitions)]
            view = StateView.for_query(instances, lambda: self._snapshots[name], node, self._log.now)
            self._updated[name] = (partitions, instances, view)
        return self._updated[name][2]

    def close(self) -> None:
        """Close all instances."""
        _close([*self._static.values(), *(one for _, instances, _ in self._updated.values() for one in instances)])

    def _open(self, node: StateNode, partition: int, partitions: int) -> Any:
        return open_state(self._plan.topology, node, self._config.as_mapping(), partition, partitions, read_only=True)


def _close(instances: list[Any]) -> None:
    for state in instances:
        state.close()
