"""JointReader: several states of a topology that another process runs, or ran, all as of one committed batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trident.config import Config
from trident.coordination.log_state import LogState
from trident.errors import ConfigError, StaleTransactionError, StateError, UnsupportedOperation
from trident.graph import Graph
from trident.roles import Closes
from trident.runtime.reading.state_frames import html_or_why
from trident.runtime.reading.state_partitions import ROUNDS, read_in_rounds
from trident.runtime.reading.state_reader import FollowedView, ForeignLog
from trident.runtime.reading.views import LISTING_ROUNDS, StateView
from trident.state.kinds import StateType
from trident.state.txid import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")


class _Now(Protocol):
    def now(self) -> LogState: ...


def snapshots_of(log: _Now, names: Sequence[str]) -> dict[str, Snapshot]:
    """Return the point to read each state at, all of one batch. The log is read once, and may go on meanwhile."""
    committed = log.now()
    while True:
        before = committed.txid
        snapshots = {name: committed.snapshot(name) for name in names}
        if committed.txid == before:
            return snapshots


class JointReader(Closes):
    """Reads several states through the log of their topology, all at one committed batch; never writes.

    Made by `trident.open_states`. A context manager, for any thread; calls take turns. States must be opaque: values of
    other kinds hold no value before, so two of them cannot be seen as of one batch beside a commit.

    A read that two batches overtake is made again, at a newer batch, up to 100 times; then `StaleTransactionError` is raised.
    Stores that do not belong to the log raise `StateReadError`.

    `txid`: the batch as of which the last call read; None before the first.
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
        try:
            for name in names:
                self._views[name] = FollowedView(graph, name, config, self._log, partial(self._snapshot, name))
                if (kind := self._views[name].kind) is not StateType.OPAQUE:
                    raise UnsupportedOperation(
                        f"state {name!r} is {'of no declared kind' if kind is None else kind.value}: it shows its latest "
                        "writes, and not those of one batch. Open it alone with open_state, or declare it opaque"
                    )
        except BaseException:
            self.close()
            raise

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
        """Close the connections to the stores and to the log."""
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
            self._snapshots = snapshots_of(self._log, self.names)
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
                return read_in_rounds(once, _was_overtaken, None, rounds)
            finally:
                self._is_reading = False

    def _snapshot(self, name: str) -> Snapshot:
        return self._snapshots[name]


def _was_overtaken(error: Exception) -> bool:
    return isinstance(error, StaleTransactionError) or isinstance(error.__cause__, StaleTransactionError)
