"""StateReader, JointReader: states of a topology that another process runs, or ran, and that topology's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from trident.config import Config
from trident.errors import (
    ConfigError,
    ForeignLogError,
    LogError,
    StaleTransactionError,
    StateError,
    UnsupportedOperation,
)
from trident.graph import Graph, StateNode
from trident.log.log_address import open_reader
from trident.log.log_state import LogState
from trident.plan import make_plan
from trident.read.open_partitions import graph_to_read, readers_of
from trident.read.state_partitions import ROUNDS, StatePartitions, read_in_rounds
from trident.read.views import LISTING_ROUNDS, StateView, columns_of, html_or_why, results_in
from trident.roles import Closes, close_on_error
from trident.state.interfaces import State, StateType, kind_of
from trident.state.txid import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")


class ForeignLog:
    """The log of a topology that another process runs, or ran. It says what is committed; any thread may ask."""

    def __init__(self, topology: str, config: Config, states: Iterable[StateNode], instead: str) -> None:
        for state in states:
            if state.spec.facts.in_memory:
                raise UnsupportedOperation(
                    f"state {state.name!r} is in the memory of the process that runs {topology!r}; no other process can read "
                    f"it. {instead}, or keep it in a store"
                )
        log_dir = log_place(topology, config)
        self._reader, self._lock = open_reader(log_dir), threading.Lock()
        with close_on_error(self._reader.close):
            if not self._reader.is_there():
                raise LogError(
                    f"there is no transaction log in {log_dir}, so nothing says what {topology!r} has committed. Run the "
                    "topology first, or name its log with log_dir (--log-dir)"
                )
            found = self.now().topology
            if found != topology:
                raise ForeignLogError(log_dir, f"topology {found!r}", f"topology {topology!r}")

    def now(self) -> LogState:
        """Return what is committed now. The object may change with the next call."""
        with self._lock:
            self._log = self._reader.refresh()
            return self._log

    def close(self) -> None:
        with self._lock:
            self._reader.close()

    def partitions(self, state: str) -> int:
        """Return the number of partitions of a state, as of the latest `now`."""
        layout = self._log.layouts.get(state)
        return 1 if layout is None else layout[0]


class FollowedView(StateView):
    """The view of a state of a topology that another process runs; other partitions if a restart gave it another number."""

    def __init__(
        self, graph: Graph, name: str, config: Config, log: ForeignLog, snapshot: Callable[[], Snapshot] | None = None
    ) -> None:
        self._graph, self._config, self._followed = graph, config, log
        readers = self._open(name)
        columns, results = columns_of(self.node), results_in(graph.nodes, name)
        super().__init__(readers, snapshot, name, columns, self.node.free_keys, results, log.now)

    @property
    def kind(self) -> StateType | None:
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

    Made by `trident.open_state`. All calls see the last committed batch of their time; each compares the stores with the log
    and raises `StateReadError` if they do not belong together. Its methods are those of `StateView`.
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


def snapshots_of(now: Callable[[], LogState], names: Sequence[str]) -> dict[str, Snapshot]:
    """Return the point to read each state at, all of one batch. The log is read once, and may go on meanwhile."""
    committed = now()
    while True:
        before = committed.txid
        snapshots = {name: committed.snapshot(name) for name in names}
        if committed.txid == before:
            return snapshots


class JointReader(Closes):
    """Reads several states through the log of their topology, all at one committed batch; never writes.

    Made by `trident.open_states`. A context manager, for any thread; calls take turns. States must be opaque: values of other
    kinds hold no value before, so two of them cannot be seen as of one batch beside a commit.

    A read that two batches overtake is made again, at a newer batch, up to 100 times; then `StaleTransactionError` is raised.
    Stores that do not belong to the log raise `StateReadError`. `txid` is the batch of the last call; None before the first.
    """

    def __init__(self, graph: Graph, names: Sequence[str], config: Config) -> None:
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"open the states {list(names)} of {graph.name!r} together: name one or more, each once")
        self.topology, self.names = graph.name, tuple(names)
        self.txid: int | None = None
        nodes = [graph.state(name) for name in names]
        self._log = ForeignLog(graph.name, config, nodes, "Read it there with running.state(name)")
        self._lock, self._is_reading = threading.RLock(), False
        self._snapshots: dict[str, Snapshot] = {}
        self._views: dict[str, FollowedView] = {}
        with close_on_error(self.close):
            for name in names:
                self._views[name] = FollowedView(
                    graph, name, config, self._log, partial(self._snapshots.__getitem__, name)
                )
                if (kind := self._views[name].kind) is not StateType.OPAQUE:
                    raise UnsupportedOperation(
                        f"state {name!r} is {'of no declared kind' if kind is None else kind.value}: it shows its latest "
                        "writes, and not those of one batch. Open it alone with open_state, or declare it opaque"
                    )

    def read(self, function: Callable[[Mapping[str, StateView]], R]) -> R:
        """Call a function with the states by name, and return what it returns; all that it reads is of one batch.

        It is called again if commits overtake it, so it should only read, and return values and no iterators. A state is
        read as by `trident.open_state`: `multi_get(keys)`, `get()`, `get_tuples(prefix, limit)`.
        """
        return self._read(function, ROUNDS)

    def multi_get(self, keys: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Read keys of some of the states: for each one value per key, in the order asked, None where absent."""
        unknown = [name for name in keys if name not in self.names]
        if unknown:
            raise StateError(f"read the states {unknown} of {self.topology!r}: those opened are {list(self.names)}")
        return self.read(lambda states: {name: states[name].multi_get(given) for name, given in keys.items()})

    def to_dataframes(self, spark: SparkSession) -> dict[str, DataFrame]:
        """Return each state as a DataFrame, all as of one batch; see `StateView.to_dataframe`."""
        return self._read(
            lambda states: {name: view.to_dataframe(spark) for name, view in states.items()}, LISTING_ROUNDS
        )

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self._log.close()

    def __repr__(self) -> str:
        return f"JointReader({self.topology!r}, {list(self.names)!r})"

    def _repr_html_(self) -> str:
        def first_rows(states: Mapping[str, StateView]) -> str:
            return "".join(view.first_rows() for view in states.values())

        return html_or_why(repr(self), lambda: self.read(first_rows))

    def _read(self, function: Callable[[Mapping[str, StateView]], R], rounds: int) -> R:
        def once() -> R:
            self._snapshots.update(snapshots_of(self._log.now, self.names))
            found = function({name: view.follow() for name, view in self._views.items()})
            self.txid = self._snapshots[self.names[0]].txid
            return found

        with self._lock:
            if self._is_reading:
                raise StateError(
                    f"read states of {self.topology!r} within read(): that might be as of another batch. Read the "
                    "states that the function is given"
                )
            self._is_reading = True
            try:
                stale = StaleTransactionError
                return read_in_rounds(
                    once, lambda e: isinstance(e, stale) or isinstance(e.__cause__, stale), None, rounds
                )
            finally:
                self._is_reading = False


def log_place(topology: str, config: Config) -> str:
    """Return where a topology's log is: as it is set, as its cluster has it if it was submitted, else below this folder."""
    from trident.cluster_state.cluster_address import submitted_log

    return config.log_dir or submitted_log(topology) or config.log_folder(topology)
