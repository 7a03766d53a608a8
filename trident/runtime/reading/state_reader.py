"""StateReader: a state of a topology that another process runs, or ran; and that topology's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Self

from trident.config import Config
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.errors import ForeignLogError, LogError, UnsupportedOperation
from trident.graph import Graph, StateNode
from trident.planner import make_plan
from trident.roles import Closes
from trident.runtime.reading.open_partitions import graph_to_read, readers_of
from trident.runtime.reading.state_frames import columns_of, html_or_why, results_in
from trident.runtime.reading.state_partitions import StatePartitions
from trident.runtime.reading.views import StateView
from trident.state.interfaces import State, StateType, kind_of
from trident.state.txid import Snapshot


class ForeignLog:
    """The log of a topology that another process runs, or ran. It says what is committed; any thread may ask.

    `states`: the states to read.
    `instead`: how to read states in memory, for the error's text.
    Raises `UnsupportedOperation`: one of `states` is in the memory of the other process.
    Raises `LogError`, `ForeignLogError`: there is no log, or it is of another topology.
    """

    def __init__(self, topology: str, config: Config, states: Iterable[StateNode], instead: str) -> None:
        for state in states:
            if state.spec.facts.in_memory:
                raise UnsupportedOperation(
                    f"state {state.name!r} is in the memory of the process that runs {topology!r}; no other process can read "
                    f"it. {instead}, or keep it in a store"
                )
        log_dir = log_place(topology, config)
        self._reader, self._lock = open_reader(log_dir), threading.Lock()
        try:
            if not self._reader.is_there():
                raise LogError(
                    f"there is no transaction log in {log_dir}, so nothing says what {topology!r} has committed. Run the "
                    "topology first, or name its log with log_dir (--log-dir)"
                )
            found = self.now().topology
            if found != topology:
                raise ForeignLogError(log_dir, f"topology {found!r}", f"topology {topology!r}")
        except BaseException:
            self._reader.close()
            raise

    def now(self) -> LogState:
        """Return what is committed now. The object may change with the next call."""
        with self._lock:
            self._log = self._reader.refresh()
            return self._log

    def close(self) -> None:
        """Release what reading needs."""
        with self._lock:
            self._reader.close()

    def partitions(self, state: str) -> int:
        """Return the number of partitions of a state, as of the latest `now`."""
        layout = self._log.layouts.get(state)
        return 1 if layout is None else layout[0]


class FollowedView(StateView):
    """The view of a state of a topology that another process runs; other partitions if a restart gave it another number.

    `log`: asked for the number of partitions, as of its latest `now`.
    `snapshot`: as of `StateView`.
    `node`: the state as it is read: as former declarations have left it.
    """

    def __init__(
        self, graph: Graph, name: str, config: Config, log: ForeignLog, snapshot: Callable[[], Snapshot] | None = None
    ) -> None:
        self._graph, self._config, self._followed = graph, config, log
        readers = self._open(name)
        columns, results = columns_of(self.node), results_in(graph.nodes, name)
        super().__init__(readers, snapshot, name, columns, self.node.free_keys, results, log.now)

    @property
    def kind(self) -> StateType | None:
        """The kind that the state or its factory declares."""
        return kind_of(self._parts.instances[0], self.node.spec.factory)

    def follow(self) -> Self:
        """Open the partitions that there are now, if there is another number of them."""
        if self._followed.partitions(self._name) != len(self._parts.instances):
            StateView.close(self)  # the instances alone: the log is still followed
            self._parts = self._parts.of(self._open(self._name))
        return self

    def _open(self, name: str) -> list[State]:
        plan = make_plan(graph_to_read(self._graph, self._followed.now().declared, name))
        self.node = plan.states[name]
        return readers_of(plan, self._config, name, self._followed.partitions(name))


class StateReader(FollowedView, Closes):
    """Reads a state through the log of its topology; never writes. A context manager, for any thread.

    Made by `trident.open_state`. All calls see the last committed batch of their time; each compares the stores with the
    log and raises `StateReadError` if they do not belong together. Its methods are those of `StateView`.
    """

    def __init__(self, graph: Graph, name: str, config: Config) -> None:
        self.topology, self.name = graph.name, name
        instead = f'Read it there with running.state("{name}")'
        super().__init__(graph, name, config, ForeignLog(graph.name, config, [graph.state(name)], instead))
        self._following = threading.Lock()

    @property
    def txid(self) -> int:
        """The batch whose state the last call read; for a new reader the last committed one."""
        txid = super().txid
        return self._followed.now().txid if txid is None else txid

    def close(self) -> None:
        """Close the connections to the store and to the log."""
        super().close()
        self._followed.close()

    def __repr__(self) -> str:
        return f"StateReader({self.topology!r}, {self.name!r})"

    def _repr_html_(self) -> str:
        return html_or_why(repr(self), self.first_rows)

    def _current(self) -> StatePartitions:
        with self._following:
            self._followed.now()
            self.follow()
        return super()._current()


def log_place(topology: str, config: Config) -> str:
    """Return where a topology's log is: as it is set, as its cluster has it if it was submitted, else below this folder."""
    from trident.cluster.cluster_log import submitted_log

    return config.log_dir or submitted_log(topology) or config.log_folder(topology)
